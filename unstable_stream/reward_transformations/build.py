"""Build transformations from configuration: ``{"type": name, **arguments}``.

``type`` is a class of this package, or any reference to an extension: a subclass of the kind's base, another
class whose instances are called in the same way, or a function.
"""

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from unstable_stream.extensions import KINDS, Reference, Spec, build
from unstable_stream.extensions.build import refuse
from unstable_stream.reward_transformations.final import ComposeFinalRewardTransforms, FinalRewardTransform
from unstable_stream.reward_transformations.sampling import (
    ComposeSamplingRewardTransforms,
    Sample,
    SamplingRewardTransform,
)
from unstable_stream.reward_transformations.step import (
    ComposeStepRewardTransforms,
    StepRewardTransform,
    TrajectoryView,
)
from unstable_stream.reward_transformations.transform import RewardTransform, takes_env_id

_T = TypeVar("_T", bound=RewardTransform)


class _Called:
    """A function, or an object of no class of ours, in the place of a transformation."""

    def __init__(self, called: Any) -> None:
        self.called = called


class _CalledFinal(_Called, FinalRewardTransform):
    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        return cast(dict[int, float], self.called(x, env_id) if takes_env_id(self) else self.called(x))


class _CalledStep(_Called, StepRewardTransform):
    def __call__(self, trajectory: TrajectoryView, step_index: int, base_reward: float) -> float:
        return cast(float, self.called(trajectory, step_index, base_reward))


class _CalledSampling(_Called, SamplingRewardTransform):
    def __call__(self, steps: list[Sample], env_id: str | None = None) -> list[Sample]:
        return cast(list[Sample], self.called(steps, env_id) if takes_env_id(self) else self.called(steps))


def build_final(specs: Sequence[Spec]) -> ComposeFinalRewardTransforms:
    """Return a fresh stack of final-reward transformations; raises :class:`ConfigError`."""
    return ComposeFinalRewardTransforms(_build(FinalRewardTransform, _CalledFinal, "final", specs))


def build_step(specs: Sequence[Spec]) -> ComposeStepRewardTransforms:
    """Return a fresh stack of step-reward transformations; raises :class:`ConfigError`."""
    return ComposeStepRewardTransforms(_build(StepRewardTransform, _CalledStep, "step", specs))


def build_sampling(specs: Sequence[Spec]) -> ComposeSamplingRewardTransforms:
    """Return a fresh stack of sampling-reward transformations; raises :class:`ConfigError`."""
    return ComposeSamplingRewardTransforms(
        _build(SamplingRewardTransform, _CalledSampling, "sampling", specs)
    )


def _build(base: type[_T], called: type[Any], stage: str, specs: Sequence[Spec]) -> list[_T]:
    kind = KINDS[f"{stage}_transformation"]
    built: list[_T] = []
    for place, spec in enumerate(specs):
        where = f"{kind.key}.{place}"
        found = build(kind, spec, where)
        if isinstance(found, base):
            built.append(found)
        elif callable(found) and not isinstance(found, RewardTransform):
            built.append(called(found))
        else:
            raise refuse(kind, Reference.parse(spec, where), where, f"is a {type(found).__name__}")
    return built
