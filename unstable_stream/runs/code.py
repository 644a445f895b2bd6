"""The code that a run's configuration names: its identity, its place, and the permission to load it."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from unstable_stream.errors import ConfigError
from unstable_stream.events import ExtensionUse
from unstable_stream.extensions import (
    KINDS,
    Reference,
    is_allowed,
    is_extension,
    needs_this_process,
    pattern_of,
    search,
    use_of,
)
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import write_whole


def named_code(config: RunConfig) -> list[tuple[str, str, Reference]]:
    """Return (kind, key, reference) of every extension that is not built in, each target of a kind once."""
    found: dict[tuple[str, str], tuple[str, str, Reference]] = {}
    for kind, key, reference in config.references():
        if needs_this_process(reference.target) or is_extension(KINDS[kind], reference):
            found.setdefault((kind, reference.target), (kind, key, reference))
    return list(found.values())


def code_in_use(config: RunConfig) -> tuple[ExtensionUse, ...]:
    """Return the identity of the named code, to be recorded; raises :class:`ConfigError`."""
    find_code(config)
    return tuple(use_of(KINDS[kind], reference, key) for kind, key, reference in named_code(config))


def changed_code(recorded: Sequence[ExtensionUse], config: RunConfig) -> list[str]:
    """Return a line for each extension that differs from the recorded one or cannot be compared."""
    find_code(config)
    named = {(kind, reference.target): (key, reference) for kind, key, reference in named_code(config)}
    lines = []
    for use in recorded:
        if (use.kind, use.target) not in named:
            continue
        key, reference = named[use.kind, use.target]
        try:
            here = use_of(KINDS[use.kind], reference, key)
        except ConfigError as error:
            lines.append(f"not compared with what the run used: {error}")
            continue
        if here != use:
            lines.append(
                f"{use.kind.replace('_', ' ')} {use.target} is another than the run used: "
                f"{_version(use)}, here {_version(here)}"
            )
    return lines


def find_code(config: RunConfig) -> None:
    """Search the directory in which a run was started for the modules of its extensions.

    A confined process searches it only for a module that it may load: whoever writes to the log names the
    directory, and Python would find other modules there too.
    """
    if any(reference.file is None and is_allowed(reference.target) for _, _, reference in named_code(config)):
        search(config.directory)


def patterns_of(config: RunConfig, besides: RunConfig | None = None) -> list[str]:
    """Return patterns that allow the code that a configuration names, without the code that ``besides``
    names.
    """
    known = {reference.target for _, _, reference in named_code(besides)} if besides else set()
    targets = dict.fromkeys(reference.target for _, _, reference in named_code(config))
    return [pattern_of(target) for target in targets if target not in known]


def remember_code(config: RunConfig, path: Path) -> None:
    """Add the code names of a run started here to a file: users of the data directory may load it again.

    Raises:
        ConfigError: the file cannot be written.
    """
    patterns = {*patterns_of(config), *own_patterns(path)}  # earlier games may be of code that was replaced
    if not patterns:
        return
    write_whole(path, json.dumps(sorted(patterns), indent=1).encode())


def own_patterns(path: Path) -> list[str]:
    """Return the names that :func:`remember_code` wrote; empty if the run was not started there.

    Raises:
        ConfigError: the file is damaged.
    """
    if not path.is_file():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[str])
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path} is damaged ({error}): it names the code that the run may load. Delete it, and name the "
            "code with --allow-code"
        ) from error


def _version(use: ExtensionUse) -> str:
    package = f"{use.distribution} {use.version}, " if use.distribution else ""
    return f"{package}sha256 {use.sha256[:12] or 'unknown'}"
