"""Find a plug-in: ``module:name``, ``path/to/file.py:name``, or the name of an entry point."""

import importlib
import importlib.util
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from unstable_stream.errors import PluginError
from unstable_stream.streams.plugins.declare import Plugin

__all__ = ["ENTRY_POINTS", "Discovered", "discovered_plugins", "load_plugin"]

ENTRY_POINTS: Final = "unstable_stream.consumers"
"""The entry point group in which installed packages announce their plug-ins."""


class Discovered(NamedTuple):
    """An installed plug-in."""

    name: str
    """Of the entry point."""
    target: str
    """``module:name``."""
    package: str
    """The distribution that announces it."""


def discovered_plugins() -> list[Discovered]:
    """Return what installed packages announce, by name; nothing is imported."""
    return sorted(
        Discovered(point.name, point.value, point.dist.name if point.dist else "")
        for point in entry_points(group=ENTRY_POINTS)
    )


def load_plugin(target: str) -> Plugin:
    """Import and return a plug-in.

    Args:
        target: ``module:name`` (the working directory is searched too), ``path/to/file.py:name``, or the name
            of an entry point. ``:name`` may be left out if the module holds just one plug-in.

    Raises:
        PluginError: it cannot be imported or is no plug-in; one line that says what to do.
    """
    place, _, attribute = target.partition(":")
    if place.endswith(".py"):
        module = _import_file(Path(place))
    else:
        announced: list[EntryPoint] = list(entry_points(group=ENTRY_POINTS, name=target))
        if announced:
            place, _, attribute = announced[0].value.partition(":")
        module = _import_module(place, target)
    return _plugin_in(module, place, attribute)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise PluginError(f"cannot load {path}: no such file")
    name = f"unstable_stream_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _search(path.resolve().parent)  # as Python does for a script: it may import its neighbours
    sys.modules[name] = module  # annotations and dataclasses are looked up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _import_failed(str(path), error) from error
    return module


def _import_module(name: str, target: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise PluginError(
            f"{target!r} is no plug-in: expected module:name, path/to/file.py:name, or one of those that "
            "'unstable-stream consume --list' shows"
        )
    _search(Path.cwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise _import_failed(name, error) from error


def _search(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.append(str(directory))


def _import_failed(place: str, error: Exception) -> PluginError:
    if isinstance(error, PluginError):
        return PluginError(f"{place}: {error}")
    return PluginError(f"cannot import {place}: {type(error).__name__}: {error}")


def _plugin_in(module: ModuleType, place: str, attribute: str) -> Plugin:
    found = {name: value for name, value in vars(module).items() if isinstance(value, Plugin)}
    if not attribute and len(found) == 1:
        return next(iter(found.values()))
    has = f"it has {', '.join(f'{place}:{name}' for name in sorted(found)) or 'none'}"
    if not attribute:
        raise PluginError(f"{place}: say which plug-in, module:name; {has}")
    value = getattr(module, attribute, None)
    if isinstance(value, Plugin):
        return value
    if value is None:
        raise PluginError(f"{place} has no {attribute!r}; {has}")
    raise PluginError(
        f"{place}:{attribute} is a {type(value).__name__}, not a plug-in: decorate it with "
        "@consumer(topics=[…]) from unstable_stream"
    )
