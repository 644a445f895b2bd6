"""Find the arguments that an object was made with, so that a configuration can name them."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

_NAME: Final = "_constructor_arguments"


class RemembersArguments:
    """Base of classes whose instances remember their arguments.

    It wraps the ``__init__`` of each subclass and remembers the arguments of the outermost call, which comes
    first.
    """

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        own = cls.__dict__.get("__init__")
        if own is not None:
            cls.__init__ = _remembering(own)  # type: ignore[method-assign]


def _remembering(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def remembering(self: Any, *arguments: Any, **named: Any) -> None:
        if _NAME not in self.__dict__:
            self.__dict__[_NAME] = (type(self), arguments, named)
        init(self, *arguments, **named)

    return remembering


def remembered_arguments(instance: object) -> dict[str, Any] | None:
    """Return the keyword arguments that make an equal object; ``None`` if they are unknown."""
    cls = type(instance)
    if dataclasses.is_dataclass(instance):
        return {
            field.name: getattr(instance, field.name)
            for field in dataclasses.fields(instance)
            if field.init and getattr(instance, field.name) != field.default
        }
    remembered = getattr(instance, _NAME, None)
    if remembered is None:
        return {} if _init_of(cls) is object.__init__ or _takes_nothing(cls) else None
    _, arguments, named = remembered
    parameters = list(inspect.signature(_init_of(cls)).parameters.values())[1:]
    if any(parameter.kind == parameter.VAR_POSITIONAL for parameter in parameters[: len(arguments)]):
        return None
    names = [parameter.name for parameter in parameters]
    return {**dict(zip(names, arguments, strict=False)), **named}


def _init_of(cls: type) -> Callable[..., None]:
    init: Callable[..., None] = getattr(cls, "__init__")  # noqa: B009  # a checker fears for subclasses
    return init


def _takes_nothing(cls: type) -> bool:
    return len(inspect.signature(_init_of(cls)).parameters) == 1


def is_plain(value: object) -> bool:
    """Return whether a configuration can store a value and return it unchanged."""
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, (str, bool, int, float))
