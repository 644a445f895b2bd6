"""TrueSkill: a closed form for two players, the ``trueskill`` package for more.

Source: Herbrich, Minka, Graepel, "TrueSkill: A Bayesian Skill Rating System", NIPS 2006; the two-player
equations are its section 3 with one player a team. For two players the factor graph needs one pass, so
the closed form is exact, and about a hundred times faster than building the graph.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from itertools import combinations, groupby
from statistics import NormalDist
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

from unstable_stream.errors import ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a user would read about escapes in its docstrings when it is compiled
    import trueskill

Belief: TypeAlias = tuple[float, float]
"""``mu`` and ``sigma`` of a model's strength."""
PairUpdate: TypeAlias = Callable[[float, float, float, float, bool], tuple[float, float, float, float]]
"""``(mu, sigma of the winner, mu, sigma of the loser, drawn)`` to the four numbers after the game."""

_Player = TypeVar("_Player", str, int)

_SQRT_2: Final = math.sqrt(2.0)
_SQRT_2_PI: Final = math.sqrt(2.0 * math.pi)

inverse_cdf = NormalDist().inv_cdf


def pdf(x: float) -> float:
    """Return the standard normal density at ``x``."""
    return math.exp(-0.5 * x * x) / _SQRT_2_PI


def cdf(x: float) -> float:
    """Return the standard normal mass below ``x``."""
    return 0.5 * math.erfc(-x / _SQRT_2)  # erfc keeps its relative precision far out in the lower tail


class Skill(NamedTuple):
    """A normal belief about a model's strength."""

    mu: float
    sigma: float


def check_settings(settings: object, positive: Sequence[str], others: Sequence[str]) -> None:
    """Raise :class:`ConfigError` where a setting is not above 0, or one of the others not at least 0."""
    for name in (*positive, *others):
        value = getattr(settings, name)
        if not (math.isfinite(value) and (value > 0.0 or (value == 0.0 and name in others))):
            least = "of at least 0" if name in others else "above 0"
            raise ConfigError(f"{type(settings).__name__} {name} is {value}, expected a number {least}")


@dataclass(frozen=True)
class NormalBeliefs:
    """Settings of systems whose beliefs are normal distributions; the defaults are TrueSkill's paper's."""

    uncertain: ClassVar[bool] = True

    mu: float = 25.0
    """Mean of a model never seen."""
    sigma: float = 25.0 / 3.0
    """Standard deviation of a model never seen."""
    beta: float = 25.0 / 6.0
    """Standard deviation of one game's performance around the skill."""
    tau: float = 0.0
    """Standard deviation of the skill's drift between games. A model here never changes (each checkpoint is
    a model of its own), so there is none; the usual 25/300 is for people, who learn."""
    inherited_sigma: float = 25.0 / 12.0
    """A new checkpoint starts at its parent's ``mu``, with this much uncertainty (a standard deviation)
    added: one update may have changed it by about half a ``beta``."""

    def __post_init__(self) -> None:
        check_settings(self, positive=("sigma", "beta"), others=("tau", "inherited_sigma"))

    @property
    def start(self) -> Belief:
        """Return the belief about a model never seen."""
        return self.mu, self.sigma

    def inherited(self, mu: float, sigma: float) -> Belief:
        """Return the first belief about a child of such a model, never less certain than a stranger's."""
        return mu, min(self.sigma, math.hypot(sigma, self.inherited_sigma))

    def score(self, mu: float, sigma: float) -> float:
        """Return the number that orders a ladder."""
        return mu - 3.0 * sigma

    def parameters(self) -> dict[str, Any]:
        """Return all settings, as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class TrueSkill(NormalBeliefs):
    """TrueSkill. Games of two go by the closed form, games of three and more by the ``trueskill`` package."""

    name: ClassVar[str] = "trueskill"

    draw_probability: Mapping[str, float] = field(default_factory=dict)
    """Probability that two equal models draw, by environment."""
    default_draw_probability: float = 0.1
    """The same for every other environment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for env_id, p in (("default", self.default_draw_probability), *self.draw_probability.items()):
            if not 0.0 < p < 1.0:
                # At 0 a draw would be an impossible event with no defined update.
                raise ConfigError(f"draw_probability of {env_id} is {p}, expected a number between 0 and 1")

    def draw_probability_of(self, env_id: str) -> float:
        """Return the draw probability for an environment."""
        return self.draw_probability.get(env_id, self.default_draw_probability)

    def draw_margin(self, env_id: str, seats: int = 2) -> float:
        """Return the draw margin between two sides with so many seats together, in points."""
        return _margin_in_beta(self.draw_probability_of(env_id)) * self.beta * math.sqrt(seats / 2)

    def pair(self, env_id: str) -> PairUpdate:
        """Return the update for games of two in an environment."""
        noise = 2.0 * self.beta * self.beta
        return partial(update_pair, noise, self.tau * self.tau, self.draw_margin(env_id))

    def many(
        self, env_id: str, players: Mapping[str, Belief], ranks: Mapping[str, float]
    ) -> Mapping[str, Belief]:
        """Return every player's belief after one game among three and more, each on its own.

        Equal ranks draw, and only the order of ranks counts. The result does not depend on the order of
        ``players``.
        """
        uids = sorted(players, key=lambda uid: (ranks[uid], uid))
        try:
            return self._by_package(env_id, uids, players, ranks)
        except (FloatingPointError, ValueError, ZeroDivisionError):
            # Results so unexpected that a truncated normal has no mass left in float64: there each player's
            # updates against all others are averaged.
            update, rated = self.pair(env_id), dict[str, list[Belief]]()
            for one, other in combinations(uids, 2):
                numbers = update(*players[one], *players[other], ranks[one] == ranks[other])
                rated.setdefault(one, []).append(numbers[:2])
                rated.setdefault(other, []).append(numbers[2:])
            return mean_beliefs(rated)

    def _by_package(
        self, env_id: str, uids: Sequence[str], players: Mapping[str, Belief], ranks: Mapping[str, float]
    ) -> dict[str, Belief]:
        """Rate by the ``trueskill`` package, ``uids`` sorted by rank and name.

        Its factor graph compares neighbours only, so within a tie the result depends on who sits in the
        middle. Every rotation of the tied players is rated and the results averaged, which gives equal
        players equal updates.
        """
        environment = trueskill.TrueSkill(
            beta=self.beta,
            tau=self.tau,
            draw_probability=self.draw_probability_of(env_id),
            # The package's own approximation of erfc is good to seven digits only.
            backend=(cdf, pdf, inverse_cdf),
        )
        ties = [list(tied) for _, tied in groupby(uids, key=ranks.__getitem__)]
        rotations = math.lcm(*map(len, ties))
        mus, sigmas = dict.fromkeys(uids, 0.0), dict.fromkeys(uids, 0.0)
        for turn in range(rotations):
            order = [tie[(place + turn) % len(tie)] for tie in ties for place in range(len(tie))]
            teams = [(trueskill.Rating(*players[uid]),) for uid in order]
            rated = environment.rate(teams, [ranks[uid] for uid in order])
            for uid, (rating,) in zip(order, rated, strict=True):
                mus[uid] += rating.mu / rotations
                sigmas[uid] += rating.sigma / rotations
        return {uid: (mus[uid], sigmas[uid]) for uid in uids}

    def match_quality(self, a: Belief, b: Belief) -> float:
        """Return how likely a draw is, relative to two players of equal, certain skill: in (0, 1]."""
        noise = 2.0 * self.beta * self.beta
        c_squared = noise + a[1] * a[1] + b[1] * b[1]
        return math.sqrt(noise / c_squared) * math.exp(-((a[0] - b[0]) ** 2) / (2.0 * c_squared))


def mean_beliefs(rated: Mapping[_Player, Sequence[Belief]]) -> dict[_Player, Belief]:
    """Return the mean of each player's beliefs; it does not depend on their order."""
    return {
        player: (
            math.fsum(mu for mu, _ in each) / len(each),
            math.fsum(sigma for _, sigma in each) / len(each),
        )
        for player, each in sorted(rated.items())
    }


def update_pair(
    noise: float,
    tau_squared: float,
    margin: float,
    mu_w: float,
    sigma_w: float,
    mu_l: float,
    sigma_l: float,
    drawn: bool,
) -> tuple[float, float, float, float]:
    """Return both beliefs after a game of two, as plain numbers for whoever rates millions of games.

    ``noise`` is the variance of a game, ``2 beta**2``; ``margin`` the draw margin in points.
    """
    variance_w = sigma_w * sigma_w + tau_squared
    variance_l = sigma_l * sigma_l + tau_squared
    c_squared = (variance_w + variance_l) + noise
    c = math.sqrt(c_squared)
    difference = (mu_w - mu_l) / c
    v, w = _draw_correction(difference, margin / c) if drawn else _win_correction(difference - margin / c)
    return (
        mu_w + variance_w / c * v,
        math.sqrt(variance_w * (1.0 - variance_w / c_squared * w)),
        mu_l - variance_l / c * v,
        math.sqrt(variance_l * (1.0 - variance_l / c_squared * w)),
    )


def correction(difference: float, margin: float, *, drawn: bool) -> tuple[float, float]:
    """Return ``v`` and ``w`` of the paper for a difference and a draw margin in units of its deviation."""
    return _draw_correction(difference, margin) if drawn else _win_correction(difference - margin)


@lru_cache(maxsize=256)
def _margin_in_beta(draw_probability: float) -> float:
    """The draw margin of two players, in units of beta (equation after (1) in the paper)."""
    return inverse_cdf((draw_probability + 1.0) / 2.0) * _SQRT_2


def _win_correction(x: float) -> tuple[float, float]:
    """``v`` and ``w`` for a win, ``x`` the difference beyond the margin."""
    below = cdf(x)
    if below < 1e-300:
        # So unexpected that the ratio is 0/0: take its limit.
        return -x, 1.0
    v = pdf(x) / below
    return v, min(1.0, max(0.0, v * (v + x)))


def _draw_correction(difference: float, margin: float) -> tuple[float, float]:
    """``v`` and ``w`` for a draw; ``v`` is odd in the difference, so that the order does not matter."""
    distance = abs(difference)
    sign = -1.0 if difference < 0.0 else 1.0
    high, low = margin - distance, -margin - distance
    between = cdf(high) - cdf(low)
    if between < 1e-300:
        return sign * high, 1.0
    pdf_high, pdf_low = pdf(high), pdf(low)
    v = (pdf_low - pdf_high) / between
    w = v * v + (high * pdf_high - low * pdf_low) / between
    return sign * v, min(1.0, max(0.0, w))
