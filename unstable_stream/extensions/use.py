"""Identify the code that a reference stands for now, to record it and compare it later."""

from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from unstable_stream.errors import ConfigError
from unstable_stream.events import ExtensionUse
from unstable_stream.extensions.imports import NotImportableError, digest_of
from unstable_stream.extensions.kinds import Kind
from unstable_stream.extensions.load import module_of
from unstable_stream.extensions.objects import registered, source_digest
from unstable_stream.extensions.reference import OBJECT_PREFIX, Reference

__all__ = ["use_of"]


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
