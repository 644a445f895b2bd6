"""The model pool: who exists, how good they are, and who plays next. A fold, and a seeded choice."""

import inspect
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import msgspec

from unstable_stream.errors import ConfigError
from unstable_stream.events import (
    OVERALL,
    Checkpoint,
    Event,
    GameOutcome,
    Rating,
    checkpoint_uid,
    trained_model,
)
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.extensions import KINDS, Reference, Spec, build
from unstable_stream.extensions.build import refuse
from unstable_stream.model_pool.results import (
    ExplorationState,
    ExplorationTracker,
    RecentResults,
    ResultsState,
)
from unstable_stream.model_pool.skill import Skill, TrueSkill
from unstable_stream.model_pool.systems import RatingSystem

OpponentWeight: TypeAlias = Callable[["ModelPool", str, str, str | None], float]
"""``(pool, me, opponent, env_id)`` to a weight of 0 or more: a sampling mode of the user's own. An opponent
is drawn in proportion to it; ``env_id`` is ``None`` when the pool chooses who stays active."""

_CHECKPOINT: Final = "checkpoint"
_NOVELTY_FLOOR = 0.01
# So that an opponent whose games have become familiar is still met now and then.


@dataclass(slots=True)
class Opponent:
    """One member of the pool."""

    uid: str
    kind: str
    """``checkpoint``, or the kind given to :meth:`ModelPool.add_fixed`."""
    path_or_name: str | None
    """Adapter directory (``None``: the base model), or the fixed opponent's name."""
    iteration: int = -1
    """Learner update that made a checkpoint; -1 for fixed opponents."""
    parent_uid: str | None = None
    active: bool = True
    """Whether it may be drawn. Fixed opponents always are."""
    model: str | None = None
    """The trained model that a checkpoint is of; ``None``: the run trains one."""


class _Rated(NamedTuple):
    """The part that is kept of a :class:`~unstable_stream.events.Rating`."""

    mu: float
    sigma: float
    games: int


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """The result of :meth:`ModelPool.state`: all but the checkpoints."""

    active: tuple[str, ...]
    """Checkpoints that may be drawn; weighted modes chose them by the ratings of that moment."""
    ratings: list[tuple[str, str, float, float, int]]
    """Environment, member, mu, sigma, games."""
    seen: dict[str, list[tuple[int, int]]]
    """By split, the ranges of games that were folded."""
    exploration: ExplorationState
    results: ResultsState


class ModelPool:
    """Registry of checkpoints and fixed opponents, their ratings, and the choice of opponents.

    :meth:`apply` folds checkpoints, game outcomes and ratings of one run, in any topic order; events seen
    before change nothing. At most ``max_active_lora`` checkpoints are active, the newest always. The
    others are chosen when a checkpoint arrives: for ``lagged`` the newest inside ``lag_range``, for the
    weighted modes those with the highest weight at that moment, else the newest. Of several trained models
    each has so many; a seat is drawn from the checkpoints of the model whose seat it is.

    Modes (candidates are fixed opponents and active checkpoints, unless said otherwise):

    - ``fixed``: among fixed opponents, uniform unless they have weights.
    - ``mirror``: the newest checkpoint.
    - ``lagged``: uniform among active checkpoints ``lag_range`` back from the newest (1 is the one before
      it, both ends included); mirror while there is none.
    - ``random``: likewise among all, the newest checkpoint included.
    - ``match-quality``: softmax of the logarithm of TrueSkill's match quality with ``uid_me``.
    - ``ts-dist``: softmax of ``-|mu_me - mu| / beta``.
    - ``exploration``: softmax of ``log(novelty + 0.01)``, novelty as in :class:`ExplorationTracker`.
    - ``pfsp-hard``: in proportion to ``1 - x``, with ``x`` the probability to win against the opponent,
      estimated from the latest games: prioritised fictitious self-play of Vinyals et al., "Grandmaster level
      in StarCraft II", Nature 575, 2019. Its exponent ``p`` is ``1 / temperature``.
    - ``pfsp-variance``: likewise in proportion to ``x (1 - x)``, which prefers opponents of equal strength.
    - an extension, an :data:`OpponentWeight`: in proportion to its weights.

    The modes from ``match-quality`` on divide the logarithm of the weight by ``temperature``, leave out
    ``uid_me`` and mirror while there is nobody else.
    """

    def __init__(
        self,
        sample_mode: Spec = "mirror",
        max_active_lora: int = 3,
        lag_range: tuple[int, int] = (1, 7),
        fixed: Sequence[str] | Mapping[str, float] = (),
        *,
        temperature: float = 1.0,
        system: RatingSystem | None = None,
    ) -> None:
        """Start with the fixed opponents and no checkpoint.

        ``fixed`` may give each fixed opponent a weight of its draw in the modes ``fixed`` and ``random``, in
        which checkpoints have 1. ``system`` made the ratings; by default TrueSkill.

        Raises:
            ConfigError: unknown mode, or numbers that leave nobody to draw.
        """
        self._own_weight = build_weight(sample_mode)
        needed = 2 if sample_mode == "lagged" else 1
        if max_active_lora < needed:
            raise ConfigError(
                f"max_active_lora is {max_active_lora}; sample_mode {sample_mode!r} needs at least {needed}"
            )
        if not 1 <= lag_range[0] <= lag_range[1]:
            raise ConfigError(f"lag_range is {list(lag_range)}; expected 1 <= low <= high")
        if not temperature > 0.0:
            raise ConfigError(f"temperature is {temperature}; expected a number above 0")
        self.sample_mode = Reference.parse(sample_mode).text
        self.max_active_lora = max_active_lora
        self.lag_range = lag_range
        self.temperature = temperature
        self.system = system or TrueSkill()
        self.exploration = ExplorationTracker()
        self.results = RecentResults()
        self._members: dict[str, Opponent] = {}
        self._checkpoints: list[Opponent] = []  # by iteration
        self._ratings: dict[tuple[str, str], _Rated] = {}
        self._seen: dict[str, IndexSet] = {}
        self._fixed_weights = dict(fixed) if isinstance(fixed, Mapping) else {}
        for name in fixed:
            self.add_fixed(name)

    # -- membership ---------------------------------------------------------------------------

    def add_checkpoint(
        self, path: str | None, iteration: int, uid: str | None = None, parent_uid: str | None = None
    ) -> str:
        """Register a checkpoint and return its uid; one already known changes nothing.

        ``path`` ``None`` is the base model. A negative ``iteration`` means the initial policy, as 0 does.
        """
        iteration = max(iteration, 0)
        uid = uid if uid is not None else checkpoint_uid(iteration)
        if uid not in self._members:
            member = self._join(uid, path, iteration, parent_uid)
            self._checkpoints.sort(key=_age)
            self._choose_active(member.model)
        return uid

    def _join(self, uid: str, path: str | None, iteration: int, parent_uid: str | None) -> Opponent:
        member = Opponent(uid, _CHECKPOINT, path, iteration, parent_uid, model=trained_model(uid))
        self._members[uid] = member
        self._checkpoints.append(member)
        return member

    def add_fixed(self, name: str, kind: str = "fixed") -> str:
        """Register a fixed opponent and return its uid, which is its name."""
        self._members.setdefault(name, Opponent(name, kind, name))
        return name

    def validate(self) -> None:
        """Raise :class:`ConfigError` if the mode can never draw anybody."""
        if self.sample_mode == "fixed" and not self._fixed():
            raise ConfigError(
                "sample_mode 'fixed' needs fixed opponents and the pool has none: name one, or use 'mirror'"
            )

    # -- fold ---------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take one event in; families it does not know change nothing."""
        if isinstance(event, Checkpoint):
            self.add_checkpoint(event.path, event.iteration, event.model_uid, event.parent_uid)
        elif isinstance(event, Rating):
            known = self._ratings.get((event.env_id, event.model_uid))
            if known is None or event.games > known.games:
                self._ratings[event.env_id, event.model_uid] = _Rated(event.mu, event.sigma, event.games)
        elif isinstance(event, GameOutcome):
            self._apply_outcome(event)

    def _apply_outcome(self, event: GameOutcome) -> None:
        if not self._seen.setdefault(event.split, IndexSet()).add(event.game_index):
            return
        if event.split == "train" and event.position is None:
            # A seat that is not trained is an opponent; in mirror self-play the model is its own.
            opponents = {seat.model_uid for seat in event.seats if not seat.trained}
            opponents = opponents or {seat.model_uid for seat in event.seats}
            actions = [action.action for action in event.actions]
            self.exploration.add(event.env_id, sorted(opponents), actions)
            self.results.add(event)

    def state(self) -> PoolState:
        """Return the state of the fold, without the checkpoints."""
        return PoolState(
            active=tuple(member.uid for member in self._checkpoints if member.active),
            ratings=[(*key, *rated) for key, rated in sorted(self._ratings.items())],
            seen={split: seen.ranges() for split, seen in sorted(self._seen.items())},
            exploration=self.exploration.state(),
            results=self.results.state(),
        )

    def load_state(self, state: PoolState, checkpoints: Iterable[Checkpoint]) -> None:
        """Let a pool with the same settings and no checkpoint go on from a state.

        ``checkpoints``: all of them, in the order in which they came.
        """
        active = frozenset(state.active)
        for each in checkpoints:
            member = self._join(each.model_uid, each.path, max(each.iteration, 0), each.parent_uid)
            member.active = member.uid in active
        self._checkpoints.sort(key=_age)
        self._ratings = {
            (env_id, uid): _Rated(mu, sigma, games) for env_id, uid, mu, sigma, games in state.ratings
        }
        self._seen = {split: IndexSet(ranges) for split, ranges in state.seen.items()}
        self.exploration.load_state(state.exploration)
        self.results.load_state(state.results)

    # -- what is known ------------------------------------------------------------------------

    def current_uid(self, model: str | None = None) -> str | None:
        """Return the uid of the newest checkpoint of a trained model, ``None`` before the first."""
        return next((member.uid for member in reversed(self._checkpoints) if member.model == model), None)

    def members(self) -> list[Opponent]:
        """Return all members: fixed opponents and checkpoints, in order of arrival."""
        return list(self._members.values())

    def rating(self, uid: str, env_id: str | None = None) -> Skill:
        """Return a member's rating in an environment, or overall if it has none there (or none is named).

        A checkpoint never rated takes its nearest rated ancestor's, widened; else the default.
        """
        visited: set[str] = set()
        ancestor: str | None = uid
        while ancestor is not None and ancestor not in visited:
            for scope in (env_id, OVERALL):
                known = self._ratings.get((scope, ancestor)) if scope is not None else None
                if known is not None:
                    skill = Skill(known.mu, known.sigma)
                    return skill if ancestor == uid else Skill(*self.system.inherited(known.mu, known.sigma))
            visited.add(ancestor)
            member = self._members.get(ancestor)
            ancestor = member.parent_uid if member is not None else None
        return Skill(*self.system.start)

    def snapshot(self) -> dict[str, float]:
        """Return the pool as metrics: who may be drawn, how often each was met and with what score.

        Of the checkpoints only active ones are named, so that the number of names stays bounded.
        """
        values = {
            f"model-pool/{env_id}/coverage": float(n) for env_id, n in self.exploration.coverage().items()
        }
        values["model-pool/checkpoints"] = float(len(self._checkpoints))
        for uid, member in self._members.items():
            if member.kind == _CHECKPOINT and not member.active:
                continue
            skill = self.rating(uid)
            values[f"model-pool/rating/{uid}"] = skill.mu
            values[f"model-pool/novelty/{uid}"] = self.exploration.novelty(uid)
            for env_id, matches in sorted(self.results.matches.get(uid, {}).items()):
                values[f"model-pool/{env_id}/matches/{uid}"] = float(matches)
                score, games = self.results.against(uid, env_id)
                if games:
                    values[f"model-pool/{env_id}/score/{uid}"] = score
        return values

    # -- choice -------------------------------------------------------------------------------

    def sample(
        self, uid_me: str, rng: random.Random, env_id: str | None = None, model: str | None = None
    ) -> str:
        """Return the uid of an opponent for ``uid_me``, a function of the fold and ``rng`` alone.

        It takes a seat of ``model``, the name of one of several trained models.

        Raises:
            ConfigError: mode ``fixed`` without fixed opponents.
        """
        self.validate()
        candidates = self._candidates(uid_me, model)
        if not candidates:
            return self.current_uid(model) or uid_me
        weight = self._weight(uid_me, env_id)
        if weight is None:
            weights = [self._fixed_weights.get(uid, 1.0) for uid in candidates]
            # Equal weights draw as they always did, so that a resumed run draws as it would have.
            return rng.choice(candidates) if set(weights) == {1.0} else rng.choices(candidates, weights)[0]
        logits = [weight(uid) / self.temperature for uid in candidates]
        highest = max(logits)
        if highest == -math.inf:
            return self.current_uid(model) or uid_me  # nobody is wanted: mirror, as with nobody there
        return rng.choices(candidates, weights=[math.exp(logit - highest) for logit in logits])[0]

    def partner_of(self, uid: str, model: str | None) -> str:
        """Return who of a trained model plays in a team with ``uid``.

        Of another model than that of the checkpoint ``uid`` it is the checkpoint of the same update, else the
        newest before it, else the newest. A fixed opponent plays every seat itself.
        """
        member = self._members[uid]
        if member.kind != _CHECKPOINT or member.model == model:
            return uid
        own = self._of(model)
        earlier = [each for each in own if each.iteration <= member.iteration]
        return (earlier or own)[-1].uid

    def _candidates(self, uid_me: str, model: str | None) -> list[str]:
        mode = self.sample_mode
        if mode == "mirror":
            return []
        if mode == "fixed":
            return self._fixed()
        if mode == "lagged":
            return [member.uid for member in self._lagged(model) if member.active and member.uid != uid_me]
        everyone = self._fixed() + [member.uid for member in self._of(model) if member.active]
        return everyone if mode == "random" else [uid for uid in everyone if uid != uid_me]

    def _fixed(self) -> list[str]:
        return [uid for uid, member in self._members.items() if member.kind != _CHECKPOINT]

    def _of(self, model: str | None) -> list[Opponent]:
        return [member for member in self._checkpoints if member.model == model]

    def _lagged(self, model: str | None) -> list[Opponent]:
        low, high = self.lag_range
        newest_first = self._of(model)[::-1]
        return newest_first[low : high + 1]

    def _weight(self, uid_me: str, env_id: str | None) -> Callable[[str], float] | None:
        """Return the logit of an opponent in the weighted modes, ``None`` in the uniform ones."""
        own = self._own_weight
        if own is not None:
            return lambda uid: self._logit(own(self, uid_me, uid, env_id), uid)
        me = self.rating(uid_me, env_id)
        if self.sample_mode in ("match-quality", "ts-dist"):
            system = self.system
            assert isinstance(system, TrueSkill), "the configuration refuses these modes with another system"
            if self.sample_mode == "ts-dist":
                return lambda uid: -abs(me.mu - self.rating(uid, env_id).mu) / system.beta
            # Far apart, quality underflows to 0; the floor keeps its logarithm finite.
            return lambda uid: math.log(max(system.match_quality(me, self.rating(uid, env_id)), 1e-300))
        if self.sample_mode == "exploration":
            return lambda uid: math.log(self.exploration.novelty(uid, env_id) + _NOVELTY_FLOOR)
        if self.sample_mode in ("pfsp-hard", "pfsp-variance"):
            by_variance, model = self.sample_mode == "pfsp-variance", trained_model(uid_me)

            def prioritised(uid: str) -> float:
                win = self.results.smoothed(uid, env_id, model)
                return math.log((win if by_variance else 1.0) * (1.0 - win))

            return prioritised
        return None

    def _logit(self, weight: object, uid: str) -> float:
        if not isinstance(weight, (int, float)) or not math.isfinite(weight) or weight < 0:
            raise ConfigError(
                f"model_pool.sample_mode {self.sample_mode!r} gave opponent {uid!r} the weight {weight!r}; "
                "expected a finite number of at least 0"
            )
        return math.log(weight) if weight else -math.inf

    def _choose_active(self, model: str | None) -> None:
        checkpoints = self._of(model)
        newest = checkpoints[-1]
        past = self._lagged(model) if self.sample_mode == "lagged" else checkpoints[-2::-1]
        weight = self._weight(newest.uid, None)
        if weight is not None:
            past = sorted(past, key=lambda member: weight(member.uid), reverse=True)  # ties: the newer
        keep = {newest.uid, *(member.uid for member in past[: self.max_active_lora - 1])}
        for member in checkpoints:
            member.active = member.uid in keep


def _age(checkpoint: Opponent) -> tuple[int, str]:
    return checkpoint.iteration, checkpoint.uid


def build_weight(mode: Spec, where: str = "model_pool.sample_mode") -> OpponentWeight | None:
    """Return a sampling mode of the user's own, ``None`` for a built-in one.

    Raises:
        ConfigError: it cannot be loaded, or is no function ``(pool, me, opponent, env_id)`` nor has one named
            ``weight``.
    """
    kind = KINDS["opponent_sampling"]
    reference = Reference.parse(mode, where)
    if reference.target in kind.built_in:
        if reference.arguments:
            raise refuse(kind, reference, where, f"takes no arguments {sorted(reference.arguments)}")
        return None
    found = build(kind, mode, where)
    weight: OpponentWeight = getattr(found, "weight", found)
    try:
        inspect.signature(weight).bind(None, "me", "opponent", None)
    except (TypeError, ValueError) as error:
        said = f"cannot be called with (pool, me, opponent, env_id): {error}"
        raise refuse(kind, reference, where, said) from error
    return weight
