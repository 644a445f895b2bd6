"""Advantages relative to a group of the batch: GRPO, Dr. GRPO and leave-one-out.

Both compare a turn's reward with the rewards of turns like it, so that no critic is needed. In the papers a
group holds several answers to one prompt. In a game the positions of two games are seldom the same, so a
group is what you name: turns of one environment and seat by default, which is the baseline by role that
self-play needs. ``"prompt"`` gives the groups of the papers; it suits short games and first moves.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from unstable_stream.errors import ConfigError
from unstable_stream.events import Step
from unstable_stream.reward_transformations.sampling import Sample, SamplingRewardTransform, centre_rewards

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
        centre_rewards(group, self.normalize)


class LeaveOneOutAdvantage(_GroupAdvantage):
    """Reward minus the mean of the group's *other* rewards: a baseline that is independent of the turn.

    Ahmadian et al., "Back to Basics: Revisiting REINFORCE Style Optimization" (RLOO), arXiv:2402.14740,
    equation 9; first Kool et al., "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019. A group of
    equal rewards, or of one sample, gets 0.

    Args:
        by: what the turns of a group have in common; as for :class:`GroupRelativeAdvantage`.
    """

    def _compare(self, group: list[Sample]) -> None:
        centre_rewards(group, False)
        for sample in group if len(group) > 1 else ():
            # Minus the mean of the others is this much more than minus the mean of all.
            sample.reward *= len(group) / (len(group) - 1)
