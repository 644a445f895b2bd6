"""Change the rewards of a training batch after it is drawn.

A custom one subclasses :class:`SamplingRewardTransform` and implements ``__call__(steps)``; it may change
``reward`` in place, or return objects of a class of its own with ``pid``, ``obs``, ``act`` and ``reward``, in
the same order: an algorithm finds them as ``TrainingSample.shaped``.
"""

import math
from dataclasses import dataclass
from typing import Any

from unstable_stream.errors import ConfigError
from unstable_stream.events import Step, StepTexts
from unstable_stream.reward_transformations.transform import (
    ComposedTransforms,
    RewardTransform,
    takes_env_id,
)

_EPSILON = 1e-8
"""Keeps z-scores of almost equal rewards bounded."""


@dataclass(slots=True)
class Sample:
    """One step of a batch with a reward that may still change; the event itself stays as recorded.

    What reads a text raises :class:`ConfigError` where the steps carry none (``rewards.step_texts``).
    """

    step: Step
    reward: float
    env_id: str

    @classmethod
    def from_step(cls, step: Step) -> "Sample":
        """Start from the step's shaped reward."""
        return cls(step, step.reward, step.env_id)

    @property
    def pid(self) -> int:
        """The seat."""
        return self.step.seat

    @property
    def step_id(self) -> str:
        return self.step.event_id

    @property
    def obs(self) -> str:
        """The text that the environment showed this seat, before the template."""
        return self._texts.observation

    @property
    def act(self) -> str:
        """The model's completion, whole."""
        return self._texts.completion

    @property
    def extracted_action(self) -> str:
        """The action passed to the environment."""
        return self._texts.action

    @property
    def step_info(self) -> dict[str, Any]:
        """The environment's info for this step."""
        return self._texts.step_info

    @property
    def format_feedback(self) -> dict[str, bool]:
        """The findings of the extraction, and ``invalid_move``: the environment refused the action."""
        return {**self._texts.format_feedback, "invalid_move": not self._texts.valid}

    @property
    def _texts(self) -> StepTexts:
        if self.step.texts is None:
            raise ConfigError(
                f"step {self.step_id} carries no texts; set rewards.step_texts = true, for a run whose steps "
                "are still to be made"
            )
        return self.step.texts


class SamplingRewardTransform(RewardTransform):
    """Maps a batch to a batch: same samples, same order, new rewards."""

    def __call__(self, steps: list[Sample], env_id: str | None = None) -> list[Sample]:
        """Return the batch; changing ``reward`` in place is allowed."""
        raise NotImplementedError


class ComposeSamplingRewardTransforms(ComposedTransforms[SamplingRewardTransform], SamplingRewardTransform):
    """Applies transformations one after another; with none, the batch passes unchanged."""

    kind = SamplingRewardTransform

    def __call__(self, steps: list[Sample], env_id: str | None = None) -> list[Sample]:
        for transform in self.transforms:
            steps = transform(steps, env_id) if takes_env_id(transform) else transform(steps)
        return steps


class NormalizeRewards(SamplingRewardTransform):
    """Subtracts the batch's mean reward; with ``z_score`` also divides by its standard deviation.

    The deviation is the population's, and the divisor ``std + 1e-8``. Equal rewards and a single sample
    become 0; an empty batch stays empty.
    """

    def __init__(self, z_score: bool = False) -> None:
        self.z_score = z_score

    def __call__(self, steps: list[Sample], env_id: str | None = None) -> list[Sample]:
        centre_rewards(steps, self.z_score)
        return steps


class NormalizeRewardsByEnv(NormalizeRewards):
    """Does the same for each environment of the batch on its own."""

    def __call__(self, steps: list[Sample], env_id: str | None = None) -> list[Sample]:
        by_env: dict[str, list[Sample]] = {}
        for sample in steps:
            by_env.setdefault(sample.env_id, []).append(sample)
        for group in by_env.values():
            centre_rewards(group, self.z_score)
        return steps


def centre_rewards(group: list[Sample], z_score: bool) -> None:
    """Subtract the mean of the rewards; with ``z_score`` also divide by their standard deviation."""
    rewards = [sample.reward for sample in group]
    if not rewards or min(rewards) == max(rewards):
        # Said apart because rounding can put the mean of equal numbers beside them.
        for sample in group:
            sample.reward = 0.0
        return
    # fsum rounds once, so the result does not depend on the order of the batch.
    mean = math.fsum(rewards) / len(rewards)
    divisor = 1.0
    if z_score:
        divisor = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards)) + _EPSILON
    for sample, reward in zip(group, rewards, strict=True):
        sample.reward = (reward - mean) / divisor
