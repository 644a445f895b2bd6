"""Bound what a reader of the archive can reach and use, and lock these bounds.

DuckDB shares one engine between all that have a file open in a process, if they ask for the same
configuration. So it is the same for all readers of a process, and for all that may reach other files.
"""

import contextlib
import hashlib
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Final, TypeAlias

import duckdb

from unstable_stream.archive.sql_errors import JSON_ERRORS

Settings: TypeAlias = dict[str, str | bool | int | float | list[str]]

_GIGABYTE: Final = 1_000_000_000
_MOST_BYTES: Final = 4 * _GIGABYTE
"""Of memory, and of temporary files."""
_MOST_THREADS: Final = 8
_PROCESS: Final = secrets.token_hex(8)


def reader_settings(name: str, *, files: bool) -> Settings:
    """Return the configuration with which a reader opens the archive ``name``.

    Queries that need more than memory write temporary files, not beside the archive: the log is there too.
    """
    kept = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:8]
    # DuckDB makes the directory when memory is not enough, and removes it.
    spill = Path(tempfile.gettempdir(), f"unstable-stream-sql-{os.getpid()}-{_PROCESS}-{kept}")
    settings: Settings = {
        "threads": min(_MOST_THREADS, os.cpu_count() or 1),
        "memory_limit": f"{_memory_bytes()}B",
        "temp_directory": str(spill),
        # Without it a name that is no table is looked for among the variables of the Python program.
        "python_enable_replacements": False,
    }
    if not files:
        # It also keeps this engine apart from one that may reach files.
        settings["allow_persistent_secrets"] = False
    return settings


def _memory_bytes() -> int:
    return min(_MOST_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


def _disk_bytes() -> int:
    return min(_MOST_BYTES, shutil.disk_usage(tempfile.gettempdir()).free // 4)


def lock(connection: duckdb.DuckDBPyConnection, *, files: bool) -> None:
    """Let nothing change the settings of the engine any more, and without ``files`` reach nothing else.

    No other file, database, extension or network: DuckDB does not take that back. Nor does it print the
    progress of slow queries on stdout, before the rows.
    """
    for statement in (
        "SET enable_progress_bar = false",
        JSON_ERRORS,
        # Given to connect(), DuckDB 2.0 does not heed it.
        f"SET max_temp_directory_size = '{_disk_bytes()}B'",
        *(() if files else ("SET enable_external_access = false",)),
        "SET lock_configuration = true",
    ):
        # Another reader of this process has locked the engine, after all of these. Or it is a Jupyter kernel
        # without ipywidgets: DuckDB can show no progress there, and refuses to be told so.
        with contextlib.suppress(duckdb.InvalidInputException):
            connection.execute(statement)
