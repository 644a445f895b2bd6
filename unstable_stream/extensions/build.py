"""Make an object from a reference: call a class, bind a function's arguments, or copy an object."""

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from unstable_stream.console import without_logins
from unstable_stream.errors import ConfigError
from unstable_stream.extensions.kinds import Kind
from unstable_stream.extensions.load import load
from unstable_stream.extensions.reference import Reference, Spec

_SECRETS: Final = ("api_key", "headers", "password", "token")
"""Arguments that no message repeats."""


def build(
    kind: Kind, spec: Spec, where: str = "", *, given: tuple[Any, ...] = (), calls_functions: bool = False
) -> Any:  # the type of the kind, which the kind's owner checks
    """Return a fresh object of a kind.

    A class is called with its arguments. A function is returned with its arguments bound; if the kind wants
    the function's result, it is called too. An object is copied, so that two users share nothing. The maker
    of a family is given the name of the member too.

    Args:
        kind: the kind of extension.
        spec: a string, a table ``{type = ..., **arguments}``, or a :class:`Reference`'s ``spec``.
        where: the configuration key, for messages; by default that of the kind.
        given: positional arguments of the caller, before those of the configuration.
        calls_functions: true if a function must be called to make the object.

    Raises:
        ConfigError: the reference cannot be loaded, or does not take these arguments; one line.
    """
    where = where or kind.key
    reference = Reference.parse(spec, where)
    found = load(kind, reference, where)
    family = kind.family_of(reference.target)
    if family is not None:
        given = (*given, family[1])
    if inspect.isclass(found) or (calls_functions and inspect.isroutine(found)):
        return construct(found, reference, where, given)
    if inspect.isroutine(found):
        return partial(found, **reference.arguments) if reference.arguments else found
    if inspect.ismodule(found):
        raise refuse(kind, reference, where, f"is the module {found.__name__}")
    if reference.arguments:
        raise ConfigError(
            f"{where}: {reference.target!r} is an object already, so it takes no arguments "
            f"{sorted(reference.arguments)}: name its class"
        )
    try:
        return copy.deepcopy(found)
    except Exception as error:
        raise ConfigError(
            f"{where}: {reference.target!r} cannot be copied for its user ({type(error).__name__}: {error}); "
            "name its class, so that one is made each time"
        ) from error


def construct(
    maker: Callable[..., Any], reference: Reference, where: str, given: tuple[Any, ...] = ()
) -> Any:  # the type that the maker makes
    """Check the signature of a class or function and call it; raises :class:`ConfigError`."""
    arguments: Mapping[str, Any] = reference.arguments
    shown = {name: "…" if name in _SECRETS else value for name, value in arguments.items()}
    signature = inspect.signature(maker)
    try:
        signature.bind(*given, **arguments)
    except TypeError as error:
        message = f"{where}: {reference.target}{signature} cannot take {shown}: {error}"
        raise ConfigError(without_logins(message)) from error
    try:
        return maker(*given, **arguments)
    except ConfigError:
        raise
    except Exception as error:
        message = f"{where}: {reference.target} refused {shown}: {type(error).__name__}: {error}"
        raise ConfigError(without_logins(message)) from error


def refuse(kind: Kind, reference: Reference, where: str, found: str) -> ConfigError:
    """Return the one-line error about an extension that does not fit its kind."""
    return ConfigError(f"{where}: {reference.target} {found}; expected {kind.expects}")
