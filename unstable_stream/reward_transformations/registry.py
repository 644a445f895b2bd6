"""Transformations from configuration: ``{"type": name, **arguments}`` to objects.

``type`` is a class name of this package, or ``module:Class`` for a user's own.
"""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from unstable_stream.errors import ConfigError
from unstable_stream.reward_transformations.final import (
    ComposeFinalRewardTransforms,
    FinalRewardTransform,
    RoleAdvantageByEnvFormatter,
    RoleAdvantageFormatter,
    WinDrawLossFormatter,
)
from unstable_stream.reward_transformations.sampling import (
    ComposeSamplingRewardTransforms,
    NormalizeRewards,
    NormalizeRewardsByEnv,
    SamplingRewardTransform,
)
from unstable_stream.reward_transformations.step import (
    ComposeStepRewardTransforms,
    PenaltyForInvalidMove,
    RewardForFormat,
    StepRewardTransform,
)
from unstable_stream.reward_transformations.transform import RewardTransform

__all__ = ["FINAL_TRANSFORMS", "SAMPLING_TRANSFORMS", "STEP_TRANSFORMS"]
__all__ += ["build_final", "build_sampling", "build_step"]

_T = TypeVar("_T", bound=RewardTransform)

FINAL_TRANSFORMS: Final[Mapping[str, type[FinalRewardTransform]]] = {
    cls.__name__: cls for cls in (WinDrawLossFormatter, RoleAdvantageFormatter, RoleAdvantageByEnvFormatter)
}
STEP_TRANSFORMS: Final[Mapping[str, type[StepRewardTransform]]] = {
    cls.__name__: cls for cls in (RewardForFormat, PenaltyForInvalidMove)
}
SAMPLING_TRANSFORMS: Final[Mapping[str, type[SamplingRewardTransform]]] = {
    cls.__name__: cls for cls in (NormalizeRewards, NormalizeRewardsByEnv)
}


def build_final(specs: Sequence[Mapping[str, Any]]) -> ComposeFinalRewardTransforms:
    """Return a fresh stack of final-reward transformations; raises :class:`ConfigError`."""
    return ComposeFinalRewardTransforms(_build(FinalRewardTransform, FINAL_TRANSFORMS, specs))


def build_step(specs: Sequence[Mapping[str, Any]]) -> ComposeStepRewardTransforms:
    """Return a fresh stack of step-reward transformations; raises :class:`ConfigError`."""
    return ComposeStepRewardTransforms(_build(StepRewardTransform, STEP_TRANSFORMS, specs))


def build_sampling(specs: Sequence[Mapping[str, Any]]) -> ComposeSamplingRewardTransforms:
    """Return a fresh stack of sampling-reward transformations; raises :class:`ConfigError`."""
    return ComposeSamplingRewardTransforms(_build(SamplingRewardTransform, SAMPLING_TRANSFORMS, specs))


def _build(kind: type[_T], known: Mapping[str, type[_T]], specs: Sequence[Mapping[str, Any]]) -> list[_T]:
    built = []
    for place, spec in enumerate(specs):
        where = f"{kind.__name__} {place}"
        arguments = dict(spec)
        name = arguments.pop("type", None)
        if not isinstance(name, str):
            raise ConfigError(f"{where}: {dict(spec)} has no type; known: {', '.join(known)}")
        cls = _import(name, kind, where) if ":" in name else known.get(name)
        if cls is None:
            raise ConfigError(
                f"{where}: unknown type {name!r}; known: {', '.join(known)}, or module:Class for your own"
            )
        signature = inspect.signature(cls)
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise ConfigError(f"{where}: {name}{signature} cannot take {arguments}: {error}") from error
        try:
            built.append(cls(**arguments))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {name} refused {arguments}: {error}") from error
    return built


def _import(name: str, kind: type[_T], where: str) -> type[_T]:
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{where}: cannot import {name!r}: {error}. Is the module on the Python path?"
        ) from error
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ConfigError(f"{where}: {name!r} is {found!r}, expected a subclass of {kind.__name__}")
    return found
