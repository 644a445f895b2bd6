"""Tell the kinds of archive apart: a DuckDB file, a table that many archivers write, or an export.

An archive is a path, or ``delta:ADDRESS``: a Delta table in a directory that all hosts share
(``delta:/mnt/archive``) or in an object store (``delta:s3://bucket/archive``). The path of a directory with
the manifest of an export is an archive that is only read.
"""

import os
import time
from pathlib import Path
from typing import Final, TypeAlias

from unstable_stream.errors import ConfigError

ArchiveAddress: TypeAlias = Path | str
"""The path of a DuckDB file or of an export, or the address of a shared archive."""

ARCHIVE_VARIABLE: Final = "UNSTABLE_STREAM_ARCHIVE"
"""The environment variable with the address of the shared archive, for every command of a host."""
MANIFEST: Final = "manifest.json"
"""The file of an export that lists the others."""
_SHARED: Final = "delta:"
_COMMITS: Final = "_delta_log"
"""The directory of a Delta table that gets a file with each commit."""
_STORE_STATE_S: Final = 10.0
"""Seconds that what was read of an archive in an object store is taken for what it holds."""


def is_shared(archive: ArchiveAddress) -> bool:
    """Tell whether many archivers may write it."""
    return isinstance(archive, str) and archive.startswith(_SHARED)


def is_export(archive: ArchiveAddress) -> bool:
    """Tell whether it is a directory that a run was exported to."""
    return not is_shared(archive) and Path(archive, MANIFEST).is_file()


def table_of(archive: ArchiveAddress) -> str:
    """Return where the table of a shared archive is: a URI, or an absolute path."""
    where = str(archive).removeprefix(_SHARED)
    return where.rstrip("/") if "://" in where else str(Path(where).absolute())


def chosen_archive(usual: Path) -> ArchiveAddress:
    """Return the archive that this host uses: the shared one if the environment names one.

    Raises:
        ConfigError: it names anything else.
    """
    named = os.environ.get(ARCHIVE_VARIABLE, "")
    if not named:
        return usual
    if not is_shared(named) or named == _SHARED:
        raise ConfigError(
            f"{ARCHIVE_VARIABLE}={named!r}: expected delta:ADDRESS, e.g. delta:s3://bucket/archive or "
            "delta:/mnt/archive. The DuckDB file is in the data directory, choose that with --data"
        )
    return named


def archive_state(archive: ArchiveAddress) -> str:
    """Return what changes whenever an archive is written, or may have been; it opens nothing."""
    if not is_shared(archive):
        path = Path(archive)
        if path.is_dir():
            return _state(path / MANIFEST)
        return _state(path, path.with_name(path.name + ".wal"))
    where = table_of(archive)
    # A store would have to be asked.
    return str(int(time.monotonic() / _STORE_STATE_S)) if "://" in where else _state(Path(where, _COMMITS))


def _state(*paths: Path) -> str:
    found = []
    for path in paths:
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        found.append(f"{stat.st_size:x}.{stat.st_mtime_ns:x}")
    return "-".join(found)


def archive_exists(archive: ArchiveAddress) -> bool:
    """Tell whether there is an archive; one in an object store is taken to be there."""
    if not is_shared(archive):
        return Path(archive).is_file() or is_export(archive)
    where = table_of(archive)
    return "://" in where or Path(where, _COMMITS).is_dir()
