"""Load the class, function or object that a reference names, from any of its five places."""

import sys
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, packages_distributions, version
from types import ModuleType
from typing import Any

from unstable_stream.errors import ConfigError, did_you_mean
from unstable_stream.events import ExtensionUse
from unstable_stream.extensions.imports import NotImportableError, digest_of, import_file, import_module
from unstable_stream.extensions.kinds import Kind
from unstable_stream.extensions.objects import registered, source_digest
from unstable_stream.extensions.permission import check_allowed
from unstable_stream.extensions.reference import OBJECT_PREFIX, Reference


def entry_points_of(kind: Kind) -> dict[str, EntryPoint]:
    """Return the entry points that installed packages announce for a kind, by name; nothing is imported."""
    return _announced(f"unstable_stream.{kind.plural}", tuple(sys.path))


@lru_cache(maxsize=64)
def _announced(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    # The result is kept until the search path changes, because a search reads every installed package.
    return {point.name: point for point in sorted(entry_points(group=group))}


def is_extension(kind: Kind, reference: Reference) -> bool:
    """Return whether a reference names code outside this package: in a module, a file or an entry point."""
    if reference.target in kind.built_in or kind.family_of(reference.target) is not None:
        return False
    return reference.names_code or reference.target in entry_points_of(kind)


def load(kind: Kind, reference: Reference, where: str = "") -> Any:  # the code may hold any type
    """Import and return the class, function or object that a reference names.

    Args:
        kind: the expected kind of extension.
        reference: only its target is used; :func:`~unstable_stream.extensions.build.build` uses the
            arguments.
        where: the configuration key, for messages; by default that of the kind.

    Raises:
        ConfigError: the name is unknown, or the code cannot be imported or may not be loaded here; one line.
    """
    where = where or kind.key
    target = reference.target
    family = kind.family_of(target)
    built_in = kind.built_in.get(target) if family is None else family[0]
    if built_in is not None:
        module, _, name = built_in.partition(":")
        return getattr(import_module(module), name)
    if target.startswith(OBJECT_PREFIX):
        return registered(target, where)
    try:
        module_found, name = module_of(kind, reference, where)
    except NotImportableError as error:
        raise ConfigError(f"{where}: {error}. Expected {kind.expects}") from error
    found: Any = module_found
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigError(f"{where}: {target.rpartition(':')[0] or target} has no {name!r}")
    return found


def module_of(kind: Kind, reference: Reference, where: str) -> tuple[ModuleType, str]:
    """Import the module that a reference names and return it with the name to look up in it.

    Raises:
        ConfigError: the name is unknown, or may not be loaded here.
        NotImportableError: the module cannot be imported.
    """
    target = reference.target
    file = reference.file
    if file is not None:
        check_allowed(target, f"{where}:")
        path, name = file
        if not name:
            raise ConfigError(f"{where}: {target!r}: say which name in the file, {target}:Name")
        return import_file(path), name
    if ":" not in target:
        point = entry_points_of(kind).get(target)
        if point is None:
            known = ", ".join([*kind.built_in, *kind.presets, *entry_points_of(kind)]) or "none by name"
            meant = did_you_mean(target, known.split(", "), after=" ")
            raise ConfigError(
                f"{where}: unknown {kind.name.replace('_', ' ')} {target!r}; {meant}known: "
                f"{known}; or give package.module:Name or path/to/file.py:Name"
            )
        check_allowed(target, f"{where}:")
        return import_module(point.module), point.attr
    module, _, name = target.partition(":")
    if not name or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ConfigError(f"{where}: {target!r}: expected package.module:Name or path/to/file.py:Name")
    check_allowed(target, f"{where}:")
    return import_module(module), name


def use_of(kind: Kind, reference: Reference, where: str = "") -> ExtensionUse:
    """Return kind and target, and the identity of the code: distribution and version, source digest.

    Raises:
        ConfigError: this process cannot load the code.
    """
    where = where or kind.key
    if reference.target.startswith(OBJECT_PREFIX):
        digest = source_digest(registered(reference.target, where))
        return ExtensionUse(kind=kind.name, target=reference.target, sha256=digest)
    try:
        module, _ = module_of(kind, reference, where)
    except NotImportableError as error:
        raise ConfigError(f"{where}: {error}") from error
    distribution, its_version = ("", "") if reference.file else _distribution(module.__name__)
    return ExtensionUse(
        kind=kind.name,
        target=reference.target,
        distribution=distribution,
        version=its_version,
        sha256=digest_of(module),
    )


def _distribution(module: str) -> tuple[str, str]:
    for name in _distributions().get(module.partition(".")[0], ()):
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue  # the package is half removed: its metadata is missing
    return "", ""


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(packages_distributions())
