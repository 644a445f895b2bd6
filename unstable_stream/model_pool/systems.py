"""Define the rating systems for the rating fold: TrueSkill, Elo and OpenSkill.

A belief is two numbers, ``mu`` and ``sigma``, in the system's own points; ``sigma`` is 0 where a system has
no uncertainty. The order in which players are listed does not matter to any of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, ClassVar, Protocol

from unstable_stream.errors import ConfigError
from unstable_stream.extensions import KINDS, Reference, Spec, build
from unstable_stream.extensions.build import refuse
from unstable_stream.model_pool.skill import Belief, NormalBeliefs, PairUpdate, check_settings


class RatingSystem(Protocol):
    """A rule that changes the beliefs about models after a game."""

    name: ClassVar[str]
    uncertain: ClassVar[bool]
    """Whether ``sigma`` means anything."""

    @property
    def start(self) -> Belief:
        """Return the belief about a model never seen."""

    def inherited(self, mu: float, sigma: float) -> Belief:
        """Return the belief about a new checkpoint whose parent has ``mu`` and ``sigma``."""

    def pair(self, env_id: str) -> PairUpdate:
        """Return the update for games of two in an environment."""

    def many(
        self, env_id: str, players: Mapping[str, Belief], ranks: Mapping[str, float]
    ) -> Mapping[str, Belief]:
        """Return everybody's belief after a game of three or more; lower ranks are better."""

    def score(self, mu: float, sigma: float) -> float:
        """Return the number that orders a ladder."""

    def parameters(self) -> dict[str, Any]:
        """Return all settings, as JSON values."""


@dataclass(frozen=True)
class Elo:
    """Elo's rating with a constant ``k`` (A. Elo, "The Rating of Chessplayers", 1978, section 1.6).

    A draw is half a win. Among more than two, everybody has played everybody, each such game moving the
    rating by ``k / (players - 1)``. A new checkpoint starts where its parent stands.
    """

    name: ClassVar[str] = "elo"
    uncertain: ClassVar[bool] = False

    k: float = 32.0
    """The most that one game of two can move a rating, in points."""
    mu: float = 1500.0
    """The first rating of a model."""
    scale: float = 400.0
    """A lead of so many points wins ten games for each one lost."""

    def __post_init__(self) -> None:
        check_settings(self, positive=("k", "scale"), others=())
        if not math.isfinite(self.mu):
            raise ConfigError(f"Elo mu is {self.mu}, expected a finite number")

    @property
    def start(self) -> Belief:
        return self.mu, 0.0

    def inherited(self, mu: float, sigma: float) -> Belief:
        return mu, sigma

    def pair(self, env_id: str) -> PairUpdate:
        return self._pair

    def _pair(
        self, mu_w: float, sigma_w: float, mu_l: float, sigma_l: float, drawn: bool
    ) -> tuple[float, float, float, float]:
        change = self.k * ((0.5 if drawn else 1.0) - self._expected(mu_w - mu_l))
        return mu_w + change, sigma_w, mu_l - change, sigma_l

    def many(
        self, env_id: str, players: Mapping[str, Belief], ranks: Mapping[str, float]
    ) -> Mapping[str, Belief]:
        share = self.k / (len(players) - 1)
        after = {}
        for uid, (mu, sigma) in players.items():
            surprises = [
                _result(ranks[uid], ranks[other]) - self._expected(mu - other_mu)
                for other, (other_mu, _) in players.items()
                if other != uid
            ]
            # fsum rounds once, so the result does not depend on the order of the players.
            after[uid] = (mu + share * math.fsum(surprises), sigma)
        return after

    def _expected(self, lead: float) -> float:
        exponent = -lead / self.scale
        return 1.0 / (1.0 + 10.0**exponent) if exponent < 300.0 else 0.0

    def score(self, mu: float, sigma: float) -> float:
        return mu

    def parameters(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class OpenSkill(NormalBeliefs):
    """The Plackett-Luce model of Weng & Lin (JMLR 12, 2011), as the ``openskill`` package computes it."""

    name: ClassVar[str] = "openskill"

    def __post_init__(self) -> None:
        super().__post_init__()
        if find_spec("openskill") is None:
            raise ConfigError(
                "OpenSkill ratings need the openskill package: pip install 'unstable_stream[analytics]'"
            )

    @cached_property
    def _model(self) -> Any:
        from openskill.models import PlackettLuce

        return PlackettLuce(mu=self.mu, sigma=self.sigma, beta=self.beta, tau=self.tau)

    def pair(self, env_id: str) -> PairUpdate:
        return self._pair

    def _pair(
        self, mu_w: float, sigma_w: float, mu_l: float, sigma_l: float, drawn: bool
    ) -> tuple[float, float, float, float]:
        winner, loser = self._rate([(mu_w, sigma_w), (mu_l, sigma_l)], [0.0, 0.0 if drawn else 1.0])
        return (*winner, *loser)

    def many(
        self, env_id: str, players: Mapping[str, Belief], ranks: Mapping[str, float]
    ) -> Mapping[str, Belief]:
        uids = sorted(players, key=lambda uid: (ranks[uid], uid))
        after = self._rate([players[uid] for uid in uids], [ranks[uid] for uid in uids])
        return dict(zip(uids, after, strict=True))

    def _rate(self, beliefs: Sequence[Belief], ranks: list[float]) -> list[Belief]:
        model = self._model
        teams = [[model.rating(mu=mu, sigma=sigma)] for mu, sigma in beliefs]
        return [(rating.mu, rating.sigma) for (rating,) in model.rate(teams, ranks=ranks)]


def _result(rank: float, other: float) -> float:
    return 1.0 if rank < other else 0.5 if rank == other else 0.0


def build_rating_system(spec: Spec, where: str = "rerate --system") -> RatingSystem:
    """Return a rating system: a built-in by name, or an extension.

    Raises:
        ConfigError: it cannot be loaded, does not take its arguments, or lacks what a rating system has.
    """
    kind = KINDS["rating_system"]
    system: RatingSystem = build(kind, spec, where)
    missing = [
        name
        for name in ("name", "uncertain", "start", "inherited", "pair", "many", "score", "parameters")
        if not hasattr(system, name)
    ]
    if missing:
        raise refuse(kind, Reference.parse(spec, where), where, f"has no {', '.join(missing)}")
    return system


def live_rating_system(
    spec: Spec = "trueskill", draw_probability: Mapping[str, float] | None = None
) -> RatingSystem:
    """Return the rating system that a run rates by, which ``verify`` uses as well.

    Args:
        spec: ``model_pool.rating_system``.
        draw_probability: by environment; TrueSkill alone asks for it.

    Raises:
        ConfigError: see :func:`build_rating_system`.
    """
    where = "model_pool.rating_system"
    reference = Reference.parse(spec, where)
    if reference.target == "trueskill":
        arguments = {"draw_probability": draw_probability or {}, **reference.arguments}
        reference = Reference(reference.target, arguments)
    return build_rating_system(reference.spec, where)
