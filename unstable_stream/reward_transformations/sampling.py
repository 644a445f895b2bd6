"""Change the rewards of a training batch after it is drawn.

A custom one subclasses :class:`SamplingRewardTransform` and implements ``__call__(steps, env_id=None)``;
it may change ``reward`` in place.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unstable_stream.events import Step
from unstable_stream.reward_transformations.transform import (
    JsonState,
    RewardTransform,
    check_stages,
    load_stage_states,
)

__all__ = [
    "ComposeSamplingRewardTransforms",
    "NormalizeRewards",
    "NormalizeRewardsByEnv",
    "Sample",
    "SamplingRewardTransform",
]

_EPSILON = 1e-8
"""Keeps z-scores of almost equal rewards bounded."""


@dataclass(slots=True)
class Sample:
    """One step of a batch with a reward that may still change; the event itself stays as recorded."""

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


class SamplingRewardTransform(RewardTransform):
    """Maps a batch to a batch: same samples, same order, new rewards."""

    def __call__(self, steps: list[Sample], env_id: str | None = None) -> list[Sample]:
        """Return the batch; changing ``reward`` in place is allowed."""
        raise NotImplementedError


class ComposeSamplingRewardTransforms(SamplingRewardTransform):
    """Applies transformations one after another; with none, the batch passes unchanged."""

    def __init__(self, transforms: Sequence[SamplingRewardTransform]) -> None:
        check_stages(SamplingRewardTransform, transforms)
        self.transforms = list(transforms)

    def __call__(self, steps: list[Sample], env_id: str | None = None) -> list[Sample]:
        for transform in self.transforms:
            steps = transform(steps, env_id)
        return steps

    def state(self) -> JsonState:
        return {"stages": [transform.state() for transform in self.transforms]}

    def load_state(self, state: JsonState) -> None:
        load_stage_states(self.transforms, state)


class NormalizeRewards(SamplingRewardTransform):
    """Subtracts the batch's mean reward; with ``z_score`` also divides by its standard deviation.

    The deviation is the population's, and the divisor ``std + 1e-8``. Equal rewards and a single sample
    become 0; an empty batch stays empty.
    """

    def __init__(self, z_score: bool = False) -> None:
        self.z_score = z_score

    def __call__(self, steps: list[Sample], env_id: str | None = None) -> list[Sample]:
        _normalize(steps, self.z_score)
        return steps


class NormalizeRewardsByEnv(NormalizeRewards):
    """Does the same for each environment of the batch on its own."""

    def __call__(self, steps: list[Sample], env_id: str | None = None) -> list[Sample]:
        by_env: dict[str, list[Sample]] = {}
        for sample in steps:
            by_env.setdefault(sample.env_id, []).append(sample)
        for group in by_env.values():
            _normalize(group, self.z_score)
        return steps


def _normalize(group: list[Sample], z_score: bool) -> None:
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
