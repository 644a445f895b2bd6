"""Define the base of the three kinds of reward transformation, and of their compositions: explicit state."""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from unstable_stream.errors import ConfigError
from unstable_stream.extensions import KINDS, Reference, RemembersArguments, Spec, build
from unstable_stream.extensions.build import refuse

StageT = TypeVar("StageT", bound="RewardTransform")

JsonState: TypeAlias = dict[str, Any]
"""Plain JSON values only, so that state can be stored, compared and printed."""


class RewardTransform(RemembersArguments):
    """Base of all reward transformations. Stateless unless a subclass says otherwise.

    A transformation that learns from what it sees overrides both methods: its state is part of the
    reward processor's, which is rebuilt from the log.
    """

    def state(self) -> JsonState:
        """Return everything learned so far, as JSON values."""
        return {}

    def load_state(self, state: JsonState) -> None:
        """Go on from what :meth:`state` returned."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but was given {sorted(state)}")


class UnsavableState:
    """Notices transformations that keep something which their :meth:`RewardTransform.state` does not hold.

    Custom code may keep what it learned in its attributes and define no ``state``. Such attributes differ
    from those that it was made with.
    """

    def __init__(self, *stages: RewardTransform) -> None:
        """Look at transformations that have just been made."""
        self._before = [(kept, _attributes(kept)) for stage in stages for kept in _keeping(stage)]

    def check(self) -> None:
        """Raise :class:`ValueError` if the state of one of them is not known."""
        for kept, before in self._before:
            now = _attributes(kept)
            if before is None or now is None or not _equal(before, now):
                raise ValueError(
                    f"transformation {type(kept).__name__} changes its attributes and has no state(): define "
                    "state() and load_state(), so that a restart need not fold the whole history"
                )


def _keeping(stage: object) -> Iterator[object]:
    """Yield what may keep something that no ``state`` holds."""
    if isinstance(stage, ComposedTransforms):
        for each in stage.transforms:
            yield from _keeping(each)
    elif not isinstance(stage, RewardTransform) or type(stage).state is RewardTransform.state:
        yield stage


def _attributes(kept: object) -> dict[str, Any] | None:
    try:
        return copy.deepcopy(vars(kept))
    except Exception:  # noqa: BLE001 - some objects cannot be copied, and then nothing is known of them
        return None


def _equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - e.g. arrays refuse to be compared as a whole
        return False


class ComposedTransforms(RewardTransform, Generic[StageT]):
    """Base of the three compositions: it applies transformations of one kind one after another.

    A function, or an object of another class that is called in the same way, may take the place of one.
    """

    kind: ClassVar[type[RewardTransform]]

    def __init__(self, transforms: Sequence[StageT | Callable[..., Any]]) -> None:
        for place, stage in enumerate(transforms):
            if not _fits(stage, self.kind):
                raise ConfigError(
                    f"transformation {place} is {stage!r}, expected a {self.kind.__name__}, or a function "
                    "that is called like one"
                )
        self.transforms: list[Any] = list(transforms)

    def state(self) -> JsonState:
        stages = self.transforms
        return {"stages": [stage.state() if isinstance(stage, RewardTransform) else {} for stage in stages]}

    def load_state(self, state: JsonState) -> None:
        states, stages = state["stages"], self.transforms
        if len(states) != len(stages):
            raise ValueError(
                f"state of {len(states)} transformations given to a composition of {len(stages)}"
            )
        for stage, part in zip(stages, states, strict=True):
            if isinstance(stage, RewardTransform):
                stage.load_state(part)


def build_stages(base: type[RewardTransform], name: str, specs: Sequence[Spec]) -> list[Any]:
    """Return fresh transformations from ``{"type": name, **arguments}``.

    ``type`` is a class of this package, or any reference to an extension: a subclass of the kind's base,
    another class whose instances are called in the same way, or a function.
    """
    kind = KINDS[f"{name}_transformation"]
    built = []
    for place, spec in enumerate(specs):
        where = f"{kind.key}.{place}"
        found = build(kind, spec, where)
        if not _fits(found, base):
            raise refuse(kind, Reference.parse(spec, where), where, f"is a {type(found).__name__}")
        built.append(found)
    return built


def _fits(stage: object, kind: type[RewardTransform]) -> bool:
    return isinstance(stage, kind) or (callable(stage) and not isinstance(stage, RewardTransform))


def takes_env_id(stage: Callable[..., object]) -> bool:
    """Return whether a final or sampling transformation is called with the environment's id too."""
    if isinstance(stage, RewardTransform):
        return _has_second_argument(type(stage).__call__, True)
    return _has_second_argument(stage, False)


@lru_cache(maxsize=256)
def _has_second_argument(called: Callable[..., object], is_method: bool) -> bool:
    try:
        inspect.signature(called).bind(*(None,) * (3 if is_method else 2))
    except TypeError:
        return False
    except ValueError:
        return True  # some functions written in C have no signature
    return True
