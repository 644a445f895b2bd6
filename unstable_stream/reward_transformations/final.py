"""Change the final rewards of one game: the rewards of all seats go in, a new vector comes out.

A custom one subclasses :class:`FinalRewardTransform` and implements ``__call__(x, env_id=None)``, or
``__call__(x)``.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from unstable_stream.errors import ConfigError
from unstable_stream.extensions import Spec
from unstable_stream.reward_transformations.transform import (
    ComposedTransforms,
    JsonState,
    RewardTransform,
    build_stages,
    takes_env_id,
)

Grouping: TypeAlias = Literal["seat", "role", "opponent"]
_Baselines: TypeAlias = dict[int | str, float]
"""Baselines by seat, and by role."""
_ROLE: Final = "role "


class RewardVector(dict[int, float]):
    """Every seat's reward, which of the seats are trained on, and the roles that they were dealt.

    A baseline must not learn from a fixed opponent's seat: its rewards are not the policy's.
    """

    trained_seats: frozenset[int]
    roles: Mapping[int, str]
    """The environment's names for the seats that have one."""
    opponents: str
    """The fixed opponents of the trained seats, and ``checkpoints`` if there are some."""

    def __init__(
        self,
        rewards: Mapping[int, float],
        trained_seats: frozenset[int],
        roles: Mapping[int, str] | None = None,
        opponents: str = "",
    ) -> None:
        super().__init__(rewards)
        self.trained_seats = trained_seats
        self.roles = roles or {}
        self.opponents = opponents


class FinalRewardTransform(RewardTransform):
    """Maps the vector of final rewards, keyed by seat, to a new one with the same seats."""

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return the new rewards; ``x`` is not changed. The processor calls this once per game."""
        raise NotImplementedError


class ComposeFinalRewardTransforms(ComposedTransforms[FinalRewardTransform], FinalRewardTransform):
    """Applies transformations one after another; with none, rewards pass unchanged."""

    kind = FinalRewardTransform

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return the result of the last transformation.

        Raises:
            ConfigError: a transformation lost or invented a seat, or gave a reward that is not finite.
        """
        seats = x.keys()
        for transform in self.transforms:
            # A custom transformation returns a plain dict: later ones still need to know who is trained.
            y = transform(x, env_id) if takes_env_id(transform) else transform(x)
            if y.keys() != seats or not all(map(math.isfinite, y.values())):
                raise ConfigError(
                    f"{type(transform).__name__} turned rewards {dict(x)} of {env_id or 'a game'} into "
                    f"{dict(y)}; expected a finite number for each of the seats {sorted(seats)}"
                )
            x = RewardVector(y, x.trained_seats, x.roles) if isinstance(x, RewardVector) else y
        return x


def build_final(specs: Sequence[Spec]) -> ComposeFinalRewardTransforms:
    """Return a fresh stack of final-reward transformations; raises :class:`ConfigError`."""
    return ComposeFinalRewardTransforms(build_stages(FinalRewardTransform, "final", specs))


class WinDrawLossFormatter(FinalRewardTransform):
    """Maps raw scores to 1 (win), 0 (draw) and -1 (loss).

    - One seat: the sign of its score.
    - Several seats: the best score wins if it is strictly above all others. Seats that share the best
      score draw; everyone below loses. All equal: all draw.
    """

    def __init__(self, shared_win: bool = False) -> None:
        """``shared_win``: seats that share the best score all win if anyone is below (team games)."""
        self.shared_win = shared_win

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        if len(x) == 1:
            return {seat: float((score > 0) - (score < 0)) for seat, score in x.items()}
        best = max(x.values(), default=0.0)
        at_top = sum(score == best for score in x.values())
        wins = at_top == 1 or (self.shared_win and at_top < len(x))
        return {seat: (1.0 if wins else 0.0) if score == best else -1.0 for seat, score in x.items()}


class RoleAdvantageFormatter(FinalRewardTransform):
    """Subtracts each role's (seat's) running mean of past rewards, so that a favoured seat earns less.

    ``advantage = r - b``, then ``b <- (1 - tau) * b + tau * r``: the baseline subtracted is the one from
    *before* this reward. Only trained seats move their baseline (all, if given a plain dict). This is the
    role-conditioned advantage estimation of SPIRAL (Liu et al. 2025, arXiv:2506.24119, section 3.3).

    Results come in the order in which games end. Where short games are played in step, those that end
    together are alike in length, and so in what was played: a mean of fewer games than are played at once
    follows them, and takes from a game a part of what its own moves have earned. Use a smaller ``tau`` then.

    There the seat is the role. Where an environment deals roles to the seats, ``by="role"`` has a baseline
    for each role instead, and ``r`` is the mean of the trained seats that were dealt it: one game moves a
    baseline once. A seat without a role has its own baseline.

    One object has one mean for each seat, whatever the environment. In a run each environment has an object
    of its own (:class:`~unstable_stream.reward_transformations.RewardProcessor`), so environments share no
    baseline there: games of two environments have no order.
    """

    def __init__(
        self,
        default_role_adv: float = 0.0,
        tau: float = 0.05,
        by: Grouping = "seat",
    ) -> None:
        """Set up.

        Args:
            default_role_adv: baseline of a seat or role that has not played yet.
            tau: weight of the newest reward, in (0, 1]; the mean remembers about ``1 / tau`` games.
            by: what has a baseline: the ``seat``, the ``role`` that the environment dealt to it, or the seat
                against an ``opponent``.

        Raises:
            ConfigError: ``tau`` outside (0, 1], a baseline that is not finite, or another ``by``.
        """
        if not 0.0 < tau <= 1.0:
            raise ConfigError(f"{type(self).__name__}: tau is {tau}, expected a number in (0, 1]")
        if not math.isfinite(default_role_adv):
            raise ConfigError(f"{type(self).__name__}: default_role_adv is {default_role_adv}, not finite")
        if by not in ("seat", "role", "opponent"):
            raise ConfigError(f"{type(self).__name__}: by is {by!r}, expected 'seat', 'role' or 'opponent'")
        self.default_role_adv = default_role_adv
        self.tau = tau
        self.by = by
        self.role_advantage: _Baselines = {}

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        return self._subtract_then_learn(x, self.role_advantage)

    def _subtract_then_learn(self, x: dict[int, float], baselines: _Baselines) -> dict[int, float]:
        learning = x.trained_seats if isinstance(x, RewardVector) else x.keys()
        dealt: Mapping[int, str] = {}
        if isinstance(x, RewardVector) and self.by != "seat":
            by_role = self.by == "role"
            dealt = x.roles if by_role else {seat: f"{seat} against {x.opponents}" for seat in x}
        advantages = {}
        rewards: dict[int | str, list[float]] = {}
        for seat, reward in x.items():
            role = dealt.get(seat, seat)
            advantages[seat] = reward - baselines.get(role, self.default_role_adv)
            if seat in learning:
                rewards.setdefault(role, []).append(reward)
        for role, earned in rewards.items():
            baseline = baselines.get(role, self.default_role_adv)
            baselines[role] = (1.0 - self.tau) * baseline + self.tau * (sum(earned) / len(earned))
        return advantages

    def state(self) -> JsonState:
        return {"baselines": _to_json(self.role_advantage)}

    def load_state(self, state: JsonState) -> None:
        self.role_advantage = _from_json(state["baselines"])


class RoleAdvantageByEnvFormatter(RoleAdvantageFormatter):
    """Does the same with a baseline for each environment, also where one object sees several of them.

    ``None`` counts as one more environment. In a run it gives the same as :class:`RoleAdvantageFormatter`.
    """

    def __init__(
        self,
        default_role_adv: float = 0.0,
        tau: float = 0.05,
        by: Grouping = "seat",
    ) -> None:
        """As :class:`RoleAdvantageFormatter`."""
        super().__init__(default_role_adv, tau, by)
        self.role_advantage_by_env: dict[str, _Baselines] = {}

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        return self._subtract_then_learn(x, self.role_advantage_by_env.setdefault(env_id or "", {}))

    def state(self) -> JsonState:
        return {"baselines": {env: _to_json(b) for env, b in sorted(self.role_advantage_by_env.items())}}

    def load_state(self, state: JsonState) -> None:
        self.role_advantage_by_env = {env: _from_json(b) for env, b in state["baselines"].items()}


def _to_json(baselines: _Baselines) -> dict[str, float]:
    # The prefix tells a role from a seat, also one that is named "1".
    named = {f"{_ROLE}{key}" if isinstance(key, str) else str(key): b for key, b in baselines.items()}
    return dict(sorted(named.items()))


def _from_json(saved: Mapping[str, float]) -> _Baselines:
    return {
        key.removeprefix(_ROLE) if key.startswith(_ROLE) else int(key): float(b) for key, b in saved.items()
    }
