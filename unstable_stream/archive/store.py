"""The archive file: open it, wait for its lock, create and check its schema.

DuckDB lets one process write or many read. Whoever writes holds the file for one batch only, and whoever
finds it held tries again until a deadline, so SQL works while a run writes.
"""

import contextlib
import functools
import hashlib
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple

import duckdb

from unstable_stream import __version__
from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.tables import TABLES
from unstable_stream.errors import ArchiveBusyError, ArchiveError

__all__ = ["SCHEMA_VERSION", "View", "load_views", "open_archive", "open_for_writing"]

SCHEMA_VERSION: Final = 1
"""Raised when a table changes so that an older package could not read it; views are simply replaced."""

_RETRY_S: Final = 0.01
_BUSY_MESSAGES: Final = ("Could not set lock", "already attached", "different configuration")
# DuckDB rewrites the last row group of a table at each checkpoint. Its default of 122,880 rows means some
# hundred megabytes of text and tokens; 20,480 rows makes batch-wise inserting 1.6 times as fast (measured)
# and queries no slower.
_ROW_GROUP_ROWS: Final = 20_480
# Below this the write-ahead log is left for the next opening to replay (about 2 ms per megabyte), so that a
# batch per second does not pay for a checkpoint per second.
_CHECKPOINT_THRESHOLD: Final = "64MB"
# The archiver shares the machine with games and training.
_WRITER_THREADS: Final = 2
_WRITER_MEMORY: Final = "2GB"
_NAME: Final = "archive"
_VIEW_ORDER: Final = (
    "runs",
    "games",
    "win_rates",
    "learning_curve",
    "rating_ladder",
    "completion_lengths",
    "longest_games",
    "update_provenance",
    "invalid_move_rates",
    "throughput",
    "staleness",
    "ledger",
)


class View(NamedTuple):
    """A view, from ``views/<name>.sql``: comments ``-- text``, then ``-- column: meaning``, then a query."""

    name: str
    doc: str
    columns: dict[str, str]
    """Column name to meaning and unit."""
    query: str

    def create_sql(self) -> str:
        """Return the statement that creates or replaces the view."""
        return f'CREATE OR REPLACE VIEW "{self.name}" AS {self.query}'


@functools.cache
def load_views() -> tuple[View, ...]:
    """Return all views; each may use those before it."""
    return tuple(_parse_view(name, _sql_text(name)) for name in _VIEW_ORDER)


@functools.cache
def _sql_text(name: str) -> str:
    return resources.files("unstable_stream.archive").joinpath("views", f"{name}.sql").read_text("utf-8")


def _parse_view(name: str, text: str) -> View:
    lines = text.splitlines()
    head = [line.removeprefix("--").strip() for line in lines if line.startswith("--")]
    query = "\n".join(line for line in lines if not line.startswith("--")).strip().rstrip(";")
    doc: list[str] = []
    columns: dict[str, str] = {}
    for line in head:
        column, colon, meaning = line.partition(": ")
        if colon and column.isidentifier() and column.islower():
            columns[column] = meaning
        elif columns:
            last = next(reversed(columns))
            columns[last] += " " + line
        else:
            doc.append(line)
    return View(name, " ".join(doc), columns, query)


def open_archive(
    path: Path | str, *, read_only: bool = True, timeout_s: float = 10.0
) -> duckdb.DuckDBPyConnection:
    """Open an existing archive; close it soon (``with open_archive(path) as con``), a writer may be waiting.

    Raises:
        ArchiveBusyError: another process held it for ``timeout_s`` seconds.
        ArchiveError: there is none, it is not an archive, or a newer version of the package wrote it.
    """
    path = Path(path)
    if not path.is_file():
        raise ArchiveError(
            f"no archive at {path}: start a run first, or make one of an existing log with "
            "unstable-stream archive, or name the data directory with --data"
        )
    connection = _retry_while_held(path, timeout_s, lambda: duckdb.connect(str(path), read_only=read_only))
    try:
        _check_version(connection, path)
    except ArchiveError:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def open_for_writing(path: Path, *, timeout_s: float) -> Iterator[duckdb.DuckDBPyConnection]:
    """Hold the archive's write lock, creating file and schema if need be; does not commit for the caller.

    Raises:
        ArchiveBusyError: other processes held it for ``timeout_s`` seconds.
        ArchiveError: it is not an archive, or a newer version of the package wrote it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = str(path).replace("'", "''")
    # The row group size can only be given when attaching.
    attach = f"ATTACH '{name}' AS {_NAME} (ROW_GROUP_SIZE {_ROW_GROUP_ROWS})"
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": _WRITER_THREADS,
        "memory_limit": _WRITER_MEMORY,
    }
    with duckdb.connect(config=settings) as connection:
        connection.execute(f"SET checkpoint_threshold = '{_CHECKPOINT_THRESHOLD}'")
        connection.execute("PRAGMA disable_checkpoint_on_shutdown")
        _retry_while_held(path, timeout_s, lambda: connection.execute(attach))
        connection.execute(f"USE {_NAME}")
        _ensure_schema(connection, path)
        yield connection


def _retry_while_held(
    path: Path, timeout_s: float, attempt: Callable[[], duckdb.DuckDBPyConnection]
) -> duckdb.DuckDBPyConnection:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return attempt()
        except duckdb.Error as error:
            # DuckDB has no error class of its own for a held lock.
            if not any(message in str(error) for message in _BUSY_MESSAGES):
                raise ArchiveError(f"cannot open the archive {path}: {error}") from error
            if time.monotonic() >= deadline:
                raise ArchiveBusyError(
                    f"the archive {path} was held by another process for {timeout_s:g} s: "
                    f"{str(error).splitlines()[0]}. Close the other reader or writer, or try again."
                ) from error
        time.sleep(_RETRY_S)


def _check_version(connection: duckdb.DuckDBPyConnection, path: Path) -> str:
    """Return the digest of the views in the file."""
    try:
        # All rows, not one: an unfinished result would block the connection.
        rows = connection.execute(
            "SELECT version, package_version, views_digest FROM schema_version"
        ).fetchall()
    except duckdb.CatalogException as error:
        raise ArchiveError(f"{path} is a DuckDB file but not an archive of unstable_stream") from error
    ((version, package_version, views_digest),) = rows
    if version > SCHEMA_VERSION:
        raise ArchiveError(
            f"the archive {path} has schema version {version}, written by unstable_stream {package_version}; "
            f"this is {__version__} and knows up to {SCHEMA_VERSION}. Upgrade unstable_stream."
        )
    return str(views_digest)


def _ensure_schema(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    tables = connection.execute("SELECT count(*) FROM duckdb_tables() WHERE database_name = ?", [_NAME])
    count = tables.fetchall()
    views = load_views()
    macros = _sql_text("macros")
    digest = hashlib.sha256("".join((macros, *(view.query for view in views))).encode()).hexdigest()
    if count == [(0,)]:
        connection.execute("BEGIN")
        for table in (EVENTS, *TABLES):
            connection.execute(table.create_sql())
        connection.execute(
            'CREATE TABLE positions (topic VARCHAR, "partition" INTEGER, next_offset BIGINT, '
            'PRIMARY KEY (topic, "partition"))'
        )
        connection.execute(
            "CREATE TABLE schema_version (version INTEGER, package_version VARCHAR, views_digest VARCHAR)"
        )
        connection.execute("INSERT INTO schema_version VALUES (?, ?, '')", [SCHEMA_VERSION, __version__])
        connection.execute("COMMIT")
    if _check_version(connection, path) != digest:
        connection.execute("BEGIN")
        connection.execute(macros)
        for view in views:
            connection.execute(view.create_sql())
        connection.execute(
            "UPDATE schema_version SET views_digest = ?, package_version = ?", [digest, __version__]
        )
        connection.execute("COMMIT")
