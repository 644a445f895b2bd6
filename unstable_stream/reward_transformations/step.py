"""Shape the reward of each turn of one trajectory.

A custom one subclasses :class:`StepRewardTransform` and implements
``__call__(trajectory, step_index, base_reward) -> float``.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from unstable_stream.errors import ConfigError
from unstable_stream.events import Trajectory, unpack_tokens
from unstable_stream.extensions import Spec
from unstable_stream.reward_transformations.transform import ComposedTransforms, RewardTransform, build_stages


class TrajectoryView:
    """One seat's view of one game, as parallel lists with one entry per turn.

    A thin reading of the event; anything not listed here is on :attr:`event`.
    """

    def __init__(self, event: Trajectory) -> None:
        self.event = event

    @property
    def pid(self) -> int:
        """The seat."""
        return self.event.seat

    @property
    def env_id(self) -> str:
        return self.event.env_id

    @property
    def num_turns(self) -> int:
        return len(self.event.turns)

    @property
    def final_rewards(self) -> dict[int, float]:
        """The environment's final reward of every seat."""
        return self.event.rewards

    @cached_property
    def obs(self) -> list[str]:
        """The text that the environment showed this seat, before the template."""
        return [turn.observation for turn in self.event.turns]

    @cached_property
    def actions(self) -> list[str]:
        """The model's completions, whole."""
        return [turn.completion for turn in self.event.turns]

    @cached_property
    def extracted_actions(self) -> list[str]:
        """The actions passed to the environment."""
        return [turn.action for turn in self.event.turns]

    @cached_property
    def infos(self) -> list[dict[str, Any]]:
        """The environment's info for each step."""
        return [turn.step_info for turn in self.event.turns]

    @cached_property
    def format_feedbacks(self) -> list[dict[str, bool]]:
        """The findings of the extraction, and ``invalid_move``: the environment refused the action."""
        return [{**turn.format_feedback, "invalid_move": not turn.valid} for turn in self.event.turns]


class StepRewardTransform(RewardTransform):
    """Maps one turn's reward to a new one."""

    def __call__(self, trajectory: TrajectoryView, step_index: int, base_reward: float) -> float:
        """Return the reward of turn ``step_index`` (0-based), given the reward so far."""
        raise NotImplementedError


class ComposeStepRewardTransforms(ComposedTransforms[StepRewardTransform], StepRewardTransform):
    """Each transformation receives the output of the previous one; with none, rewards pass unchanged."""

    kind = StepRewardTransform

    def __call__(self, trajectory: TrajectoryView, step_index: int, base_reward: float) -> float:
        """Return the last transformation's reward.

        Raises:
            ConfigError: a transformation returned something that is not a finite number.
        """
        for transform in self.transforms:
            shaped = transform(trajectory, step_index, base_reward)
            # `None` is what a custom transformation without a `return` gives.
            if not isinstance(shaped, (int, float)) or not math.isfinite(shaped):
                raise ConfigError(
                    f"{type(transform).__name__} turned reward {base_reward} of turn {step_index} into "
                    f"{shaped!r}; expected a finite number"
                )
            base_reward = float(shaped)
        return base_reward


def build_step(specs: Sequence[Spec]) -> ComposeStepRewardTransforms:
    """Return a fresh stack of step-reward transformations; raises :class:`ConfigError`."""
    return ComposeStepRewardTransforms(build_stages(StepRewardTransform, "step", specs))


class _Bonus(StepRewardTransform):
    """Adds ``reward`` to good turns and ``penalty`` to the others."""

    def __init__(self, reward: float = 0.0, penalty: float = 0.0) -> None:
        """Both are added as they are: a punishing penalty is negative.

        Raises:
            ConfigError: either is not finite.
        """
        for name, value in (("reward", reward), ("penalty", penalty)):
            if not math.isfinite(value):
                raise ConfigError(f"{type(self).__name__}: {name} is {value}, expected a finite number")
        self.reward = reward
        self.penalty = penalty


class RewardForFormat(_Bonus):
    """Adds ``reward`` if the answer is well-formatted, otherwise ``penalty``.

    Well-formatted is what the template's extraction says (``correct_answer_format``); a turn for which it
    said nothing counts as badly formatted.
    """

    def __call__(self, trajectory: TrajectoryView, step_index: int, base_reward: float) -> float:
        good = trajectory.format_feedbacks[step_index].get("correct_answer_format", False)
        return base_reward + (self.reward if good else self.penalty)


class PenaltyForInvalidMove(_Bonus):
    """Adds ``penalty`` if the environment refused the move, otherwise ``reward``."""

    def __call__(self, trajectory: TrajectoryView, step_index: int, base_reward: float) -> float:
        bad = trajectory.format_feedbacks[step_index].get("invalid_move", False)
        return base_reward + (self.penalty if bad else self.reward)


class PenaltyForLength(StepRewardTransform):
    """Adds a penalty that grows with the last tokens before the limit: DAPO's overlong shaping.

    Nothing up to ``max_tokens - margin`` tokens, then on a line to ``penalty`` at ``max_tokens``: Yu et al.,
    arXiv:2503.14476, equation 13. For answers that think, so that they end before they are cut.
    """

    def __init__(self, max_tokens: int, margin: int, penalty: float = -1.0) -> None:
        """Set up.

        Args:
            max_tokens: the length at which the whole penalty is due, mostly ``sampling.max_tokens``.
            margin: the number of tokens before it over which the penalty grows.
            penalty: added as it is, so a punishing one is negative.

        Raises:
            ConfigError: ``margin`` is not 1 to ``max_tokens``, or the penalty is not finite.
        """
        if not 1 <= margin <= max_tokens or not math.isfinite(penalty):
            raise ConfigError(
                f"PenaltyForLength: margin is {margin} and penalty {penalty}; expected 1 to max_tokens, "
                f"{max_tokens}, and a finite number"
            )
        self.max_tokens, self.margin, self.penalty = max_tokens, margin, penalty

    def __call__(self, trajectory: TrajectoryView, step_index: int, base_reward: float) -> float:
        tokens = len(unpack_tokens(trajectory.event.turns[step_index].completion_token_ids))
        over = (tokens - self.max_tokens + self.margin) / self.margin
        return base_reward + self.penalty * min(1.0, max(0.0, over))


class Discount(StepRewardTransform):
    """Multiplies the reward by ``gamma`` once for each later turn of the seat: the last turn keeps all of it.

    With the game's result as the only reward this is the discounted return of Sutton and Barto (Reinforcement
    Learning, 2nd edition, 2018, equation 3.8). A small ``gamma`` says that the last turns decide a game.
    """

    def __init__(self, gamma: float) -> None:
        """Set up.

        Args:
            gamma: the discount, 0 to 1; 1 changes nothing.

        Raises:
            ConfigError: ``gamma`` is outside its bounds.
        """
        if not 0.0 <= gamma <= 1.0:
            raise ConfigError(f"Discount: gamma is {gamma}, expected 0 to 1")
        self.gamma = gamma

    def __call__(self, trajectory: TrajectoryView, step_index: int, base_reward: float) -> float:
        return base_reward * float(self.gamma ** (trajectory.num_turns - 1 - step_index))
