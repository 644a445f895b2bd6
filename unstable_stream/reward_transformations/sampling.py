"""Change the rewards of a training batch after it is drawn: normalise them, or compare them within a group.

A custom one subclasses :class:`SamplingRewardTransform` and implements ``__call__(steps)``; it may change
``reward`` in place, or return objects of a class of its own with ``pid``, ``obs``, ``act`` and ``reward``, in
the same order: an algorithm finds them as ``TrainingSample.shaped``.

GRPO, Dr. GRPO and leave-one-out compare a turn's reward with the rewards of turns like it, so that no critic
is needed. In the papers a group holds several answers to one prompt. In a game the positions of two games are
seldom the same, so a group is what you name: turns of one environment and seat by default, which is the
baseline by role that self-play needs. ``"prompt"`` gives the groups of the papers; it suits short games and
first moves.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from unstable_stream.errors import ConfigError
from unstable_stream.events import Step, StepTexts
from unstable_stream.extensions import Spec
from unstable_stream.reward_transformations.transform import (
    ComposedTransforms,
    RewardTransform,
    build_stages,
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


def build_sampling(specs: Sequence[Spec]) -> ComposeSamplingRewardTransforms:
    """Return a fresh stack of sampling-reward transformations; raises :class:`ConfigError`."""
    return ComposeSamplingRewardTransforms(build_stages(SamplingRewardTransform, "sampling", specs))


class NormalizeRewards(SamplingRewardTransform):
    """Subtracts the batch's mean reward; with ``z_score`` also divides by its standard deviation.

    The deviation is the population's, and the divisor ``std + 1e-8``. Equal rewards and a single sample
    become 0; an empty batch stays empty.
    """

    def __init__(self, z_score: bool = False) -> None:
        self.z_score = z_score

    def __call__(self, steps: list[Sample], env_id: str | None = None) -> list[Sample]:
        _centre(steps, self.z_score)
        return steps


class NormalizeRewardsByEnv(NormalizeRewards):
    """Does the same for each environment of the batch on its own."""

    def __call__(self, steps: list[Sample], env_id: str | None = None) -> list[Sample]:
        by_env: dict[str, list[Sample]] = {}
        for sample in steps:
            by_env.setdefault(sample.env_id, []).append(sample)
        for group in by_env.values():
            _centre(group, self.z_score)
        return steps


def _centre(group: list[Sample], z_score: bool) -> None:
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


# -- groups -------------------------------------------------------------------------------------------

_KEYS: Final[Mapping[str, Callable[[Step], object]]] = {
    "env": lambda step: step.env_id,
    "seat": lambda step: step.seat,
    "turn": lambda step: step.turn_index,
    "game": lambda step: step.game_id,
    "prompt": lambda step: bytes(step.prompt_token_ids),
}


class _GroupAdvantage(SamplingRewardTransform):
    def __init__(self, by: Sequence[str] = ("env", "seat")) -> None:
        self.by = (by,) if isinstance(by, str) else tuple(by)
        unknown = [name for name in self.by if name not in _KEYS]
        if unknown or not self.by:
            raise ConfigError(
                f"{type(self).__name__}(by={list(self.by)}): expected one or more of {', '.join(_KEYS)}"
            )

    def __call__(self, steps: list[Sample], env_id: str | None = None) -> list[Sample]:
        groups: dict[tuple[object, ...], list[Sample]] = {}
        for sample in steps:
            groups.setdefault(tuple(_KEYS[name](sample.step) for name in self.by), []).append(sample)
        for group in groups.values():
            self._compare(group)
        return steps

    def _compare(self, group: list[Sample]) -> None:
        """Put the advantages of one group in the place of its rewards."""
        raise NotImplementedError


class GroupRelativeAdvantage(_GroupAdvantage):
    """Reward minus the group's mean, divided by the group's standard deviation.

    Shao et al., "DeepSeekMath" (GRPO), arXiv:2402.03300, section 4.1.2. ``normalize=False`` leaves the
    division out, as Liu et al., "Understanding R1-Zero-Like Training" (Dr. GRPO), arXiv:2503.20783, advise:
    it gives groups with nearly equal rewards more weight. A group of equal rewards, or of one sample, gets 0.

    Args:
        by: what the turns of a group have in common: any of ``env``, ``seat``, ``turn``, ``game`` and
            ``prompt``.
        normalize: divide by the standard deviation of the population, plus 1e-8.
    """

    def __init__(self, by: Sequence[str] = ("env", "seat"), normalize: bool = True) -> None:
        super().__init__(by)
        self.normalize = normalize

    def _compare(self, group: list[Sample]) -> None:
        _centre(group, self.normalize)


class BranchAdvantage(SamplingRewardTransform):
    """Compares the answers to a position from which several games begin (``collector.branches``).

    Each gets its game's result minus the mean result of the other answers to that position in the batch: a
    group in the sense of GRPO, whose baseline is the position's own. Kazemnejad et al., "VinePPO",
    arXiv:2410.01679, estimate values by playing on in this way. An answer without others gets 0; other steps
    keep their rewards.
    """

    def __call__(self, steps: list[Sample], env_id: str | None = None) -> list[Sample]:
        groups: dict[str, list[Sample]] = {}
        for sample in steps:
            if sample.step.branch is not None:
                sample.reward = sample.step.raw_reward
                groups.setdefault(sample.step.branch, []).append(sample)
        for group in groups.values():
            _leave_one_out(group)
        return steps


def _leave_one_out(group: list[Sample]) -> None:
    _centre(group, False)
    for sample in group if len(group) > 1 else ():
        # Minus the mean of the others is this much more than minus the mean of all.
        sample.reward *= len(group) / (len(group) - 1)


class LeaveOneOutAdvantage(_GroupAdvantage):
    """Reward minus the mean of the group's *other* rewards: a baseline that is independent of the turn.

    Ahmadian et al., "Back to Basics: Revisiting REINFORCE Style Optimization" (RLOO), arXiv:2402.14740,
    equation 9; first Kool et al., "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019. A group of
    equal rewards, or of one sample, gets 0.

    Args:
        by: what the turns of a group have in common; as for :class:`GroupRelativeAdvantage`.
    """

    def _compare(self, group: list[Sample]) -> None:
        _leave_one_out(group)
