"""Find a plug-in: ``module:name``, ``path/to/file.py:name``, or the name of an entry point."""

from importlib.metadata import entry_points
from types import ModuleType
from typing import Final, NamedTuple

from unstable_stream.errors import PluginError
from unstable_stream.extensions import KINDS, Reference, entry_points_of
from unstable_stream.extensions.imports import NotImportableError, import_file, import_module
from unstable_stream.extensions.objects import registered
from unstable_stream.extensions.permission import check_allowed
from unstable_stream.extensions.reference import OBJECT_PREFIX
from unstable_stream.services.streams.plugins.declare import Plugin

ENTRY_POINTS: Final = KINDS["consumer"].group
"""The entry point group in which installed packages announce their plug-ins."""


class Discovered(NamedTuple):
    """An installed plug-in."""

    name: str
    """The entry point's name."""
    target: str
    """``module:name``."""
    package: str
    """The distribution that announces the plug-in."""


def discovered_plugins() -> list[Discovered]:
    """Return the plug-ins that installed packages announce, sorted by name; nothing is imported."""
    return sorted(
        Discovered(point.name, point.value, point.dist.name if point.dist else "")
        for point in entry_points(group=ENTRY_POINTS)
    )


def load_plugin(target: str) -> Plugin:
    """Import and return a plug-in.

    Args:
        target: ``module:name`` (the working directory is searched too), ``path/to/file.py:name``, or the name
            of an entry point. ``:name`` may be left out if the module holds only one plug-in.

    Raises:
        PluginError: the target cannot be imported or is no plug-in; one line that says what to do.
        ConfigError: this process may not load the target.
    """
    if target.startswith(OBJECT_PREFIX):
        return _checked(registered(target, "consumers"), target)
    point = entry_points_of(KINDS["consumer"]).get(target)
    reference = Reference(point.value if point is not None else target)
    check_allowed(target, "consumer")
    try:
        if reference.file is not None:
            path, attribute = reference.file
            place = str(path)
            module = import_file(path)
        else:
            place, _, attribute = reference.target.partition(":")
            if not all(part.isidentifier() for part in place.split(".")):
                raise PluginError(
                    f"{target!r} is no plug-in: expected module:name, path/to/file.py:name, or a name "
                    "that 'unstable-stream consume --list' shows"
                )
            module = import_module(place)
    except NotImportableError as error:
        raise PluginError(str(error)) from error
    return _plugin_in(module, place, attribute)


def _plugin_in(module: ModuleType, place: str, attribute: str) -> Plugin:
    found = {name: value for name, value in vars(module).items() if isinstance(value, Plugin)}
    if not attribute and len(found) == 1:
        return next(iter(found.values()))
    has = f"it has {', '.join(f'{place}:{name}' for name in sorted(found)) or 'none'}"
    if not attribute:
        raise PluginError(f"{place}: say which plug-in, module:name; {has}")
    value = getattr(module, attribute, None)
    if value is None:
        raise PluginError(f"{place} has no {attribute!r}; {has}")
    return _checked(value, f"{place}:{attribute}")


def _checked(value: object, name: str) -> Plugin:
    if isinstance(value, Plugin):
        return value
    raise PluginError(
        f"{name} is a {type(value).__name__}, not a plug-in: decorate it with "
        "@consumer(topics=[…]) from unstable_stream"
    )
