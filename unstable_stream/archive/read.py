"""Run SQL on the archive and return rows; errors say what a person can do."""

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet

from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.opening import open_archive
from unstable_stream.archive.sql_errors import explain
from unstable_stream.archive.statements import admit
from unstable_stream.archive.store import Connection, unreadable
from unstable_stream.archive.tables import DROPPED, TABLES
from unstable_stream.errors import ArchiveError
from unstable_stream.log.stores.archive_address import ArchiveAddress

LONGEST_S: Final = 120.0
"""Of a query that a page or an agent asks: it reads the archive, and a run wants to write it."""
MOST_ROWS: Final = 1000
"""Shown of such a query."""

_FETCH_ROWS: Final = 2048
_CTRL_C: Final = "Query interrupted"
"""DuckDB's Python package raises a bare RuntimeError with this message."""
_DAMAGED: Final = "Corrupt database file"
_CANCELLED: Final = "the query was cancelled"
_PARQUET_ROWS: Final = 20_480
_held: Final[ContextVar[tuple[str, Connection] | None]] = ContextVar("held_archive", default=None)
"""The archive that :func:`held` keeps open, with its connection."""


class QueryResult(NamedTuple):
    """Columns and rows of a query."""

    columns: Sequence[str]
    types: Sequence[str]
    """DuckDB's names, e.g. ``DOUBLE``."""
    rows: Sequence[tuple[Any, ...]]
    """``Any``: whatever Python value DuckDB makes of the column's type."""

    def dicts(self) -> list[dict[str, Any]]:
        """Return each row as column name to value."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class StreamedResult(NamedTuple):
    """The columns of a query, and an iterator over its rows."""

    columns: Sequence[str]
    types: Sequence[str]
    rows: Iterator[tuple[Any, ...]]
    """Raises :class:`ArchiveError` if the query fails on the way."""
    missing: Sequence[str] = ()
    """The topics of which the log deleted records before they were archived, each with the number of offsets.
    """


class Cancel:
    """Ends a query from another thread: pass it along with the query, and call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._wanted = False

    def __call__(self) -> None:
        """End the query now, or when it begins; then it raises :class:`ArchiveError`."""
        with self._lock:
            self._wanted = True
            if self._connection is not None:
                self._connection.interrupt()

    @contextlib.contextmanager
    def after(self, limit_s: float) -> Iterator[None]:
        """End the query if the block takes longer."""
        timer = threading.Timer(limit_s, self)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def watching(self, connection: Connection) -> Iterator[None]:
        """End what this connection does inside the block when called, or by Ctrl-C."""
        with self._lock:
            if self._wanted:
                raise ArchiveError(_CANCELLED)
            self._connection = connection
        try:
            with _interrupted_by_ctrl_c(connection):
                yield
        finally:
            with self._lock:
                self._connection = None


@contextlib.contextmanager
def _interrupted_by_ctrl_c(connection: Connection) -> Iterator[None]:
    """Interrupt the query too: else its other threads go on to their end, and DuckDB waits for them."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        connection.interrupt()
        handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def query(
    path: ArchiveAddress,
    sql: str,
    parameters: Sequence[object] | Mapping[str, object] | None = None,
    *,
    write: bool = False,
    files: bool = False,
) -> QueryResult:
    """Run ``sql`` and return all rows; opens the archive for this query only.

    Args:
        path: the archive.
        sql: one or more statements; the last one's rows are returned.
        parameters: values for ``?``, ``$1`` or ``$name``.
        write: allow changes; by default the file is opened read-only.
        files: let the SQL read and write other files, e.g. by ``COPY ... TO`` or ``read_csv``. By default it
            reaches the archive alone, so that a query from somebody else can be run.

    Raises:
        ArchiveBusyError: another process held the archive past the deadline.
        ArchiveError: there is no archive, or the SQL is wrong; names what would be right.
    """
    with stream(path, sql, parameters, write=write, files=files) as result:
        return QueryResult(result.columns, result.types, list(result.rows))


def query_arrow(
    path: ArchiveAddress,
    sql: str,
    parameters: Sequence[object] | Mapping[str, object] | None = None,
    *,
    run_id: str | None = None,
    files: bool = False,
) -> pa.Table:
    """Run ``sql`` as :func:`query` does and return its rows as an Arrow table.

    ``run_id`` leaves only this run in every table and view.
    """
    with _asked(path, sql, run_id=run_id, files=files) as connection:
        found = connection.sql(sql, params=parameters)
        return pa.table({}) if found is None else found.to_arrow_table()


def write_parquet(
    path: ArchiveAddress,
    sql: str,
    target: Path,
    parameters: Sequence[object] | None = None,
    *,
    most_bytes: int,
    cancel: Cancel | None = None,
) -> None:
    """Run ``sql`` as :func:`query` does and write its rows to a Parquet file.

    Raises:
        ArchiveError: the SQL is wrong, or has no columns, or its rows take more than ``most_bytes``.
    """
    with _asked(path, sql, cancel=cancel) as connection:
        found = connection.sql(sql, params=parameters)
        if found is None:
            raise ArchiveError("the statement returns no rows to write")
        # DuckDB 1 has only the older name, of which DuckDB 2 warns.
        read = getattr(found, "to_arrow_reader", None) or found.fetch_arrow_reader
        reader = read(_PARQUET_ROWS)
        with pyarrow.parquet.ParquetWriter(target, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
                if target.stat().st_size > most_bytes:
                    raise too_many_bytes(most_bytes)


def too_many_bytes(most: int) -> ArchiveError:
    """Return what to raise when the rows of a query make a file of more than ``most`` bytes."""
    return ArchiveError(
        f"the rows take more than {most:,} bytes: ask for fewer, or use unstable-stream sql or export"
    )


@contextlib.contextmanager
def _asked(
    path: ArchiveAddress,
    sql: str,
    *,
    run_id: str | None = None,
    write: bool = False,
    files: bool = False,
    cancel: Cancel | None = None,
) -> Iterator[Connection]:
    """Open the archive for a query that was admitted: the door for all SQL that comes from outside."""
    kept = _held.get()
    if kept is not None and kept[0] == str(path) and not write and not files and run_id is None:
        opened: contextlib.AbstractContextManager[Connection] = contextlib.nullcontext(kept[1])
    else:
        opened = open_archive(path, read_only=not write, files=files)
    with (
        _ctrl_c_named(),
        opened as connection,
        (cancel or Cancel()).watching(connection),
        _explained(path, sql),
    ):
        if run_id is not None:
            _keep_run(connection, run_id)
        admit(connection, sql, write=write, files=files)
        yield connection


def _keep_run(connection: Connection, run_id: str) -> None:
    """Put a view of one run before each table; the archive's own views then read these too."""
    run = run_id.replace("'", "''")
    ((database,),) = connection.execute("SELECT current_database()").fetchall()
    for table in (EVENTS, *TABLES, DROPPED):
        connection.execute(
            f'CREATE TEMP VIEW "{table.name}" AS SELECT * FROM "{database}".main."{table.name}" '
            f"WHERE run_id = '{run}'"
        )


@contextlib.contextmanager
def held(path: ArchiveAddress) -> Iterator[None]:
    """Keep the archive open, so that the queries of this thread see one state of it and open it once.

    Writers wait for that long: leave soon. Queries that may write, or reach other files, open it themselves.

    Raises:
        ArchiveBusyError: another process held the archive past the deadline.
        ArchiveError: there is no archive.
    """
    with open_archive(path) as connection:
        token = _held.set((str(path), connection))
        try:
            yield
        finally:
            _held.reset(token)


@contextlib.contextmanager
def stream(
    path: ArchiveAddress,
    sql: str,
    parameters: Sequence[object] | Mapping[str, object] | None = None,
    *,
    write: bool = False,
    files: bool = False,
    cancel: Cancel | None = None,
) -> Iterator[StreamedResult]:
    """Run ``sql`` as :func:`query` does, and read its rows one by one: they may be more than memory holds.

    The archive is held until the context is left, and a writer waits for that long: read on without a pause.
    ``cancel`` ends it from another thread.
    """
    with _asked(path, sql, write=write, files=files, cancel=cancel) as connection:
        lacking = _missing(connection)
        # Without a statement there is nothing to return.
        cursor = connection.execute(sql, parameters) or connection
        description = cursor.description or []
        columns = [column[0] for column in description]
        types = [str(column[1]) for column in description]
        yield StreamedResult(columns, types, _rows(cursor) if description else iter(()), lacking)


def _missing(connection: duckdb.DuckDBPyConnection) -> list[str]:
    found = connection.execute(
        "SELECT topic, sum(next_offset - first_offset)::BIGINT FROM missing_records GROUP BY 1 ORDER BY 1"
    )
    return [f"{topic} ({offsets:,})" for topic, offsets in found.fetchall()]


def _rows(cursor: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while rows := cursor.fetchmany(_FETCH_ROWS):
        yield from rows


@contextlib.contextmanager
def _ctrl_c_named() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if str(error) == _CTRL_C:
            raise KeyboardInterrupt from error
        raise


@contextlib.contextmanager
def _explained(path: ArchiveAddress, sql: str) -> Iterator[None]:
    try:
        yield
    except duckdb.InterruptException as error:
        raise ArchiveError(_CANCELLED) from error
    except pa.ArrowNotImplementedError as error:  # a type that Parquet lacks, such as INTERVAL
        raise ArchiveError(str(error)) from error
    except duckdb.Error as error:
        if _DAMAGED in str(error) or isinstance(error, duckdb.FatalException | duckdb.SerializationException):
            raise unreadable(path, error) from error
        raise ArchiveError(explain(error, sql)) from error
