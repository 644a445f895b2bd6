"""Open the archive file, wait for its lock, create and check its schema.

DuckDB lets one process write or many read. Whoever writes holds the file for one batch only, and whoever
finds it held tries again until a deadline, so SQL works while a run writes.

What a reader can reach and use is bounded, and these bounds are locked. DuckDB shares one engine between all
that have a file open in a process, if they ask for the same configuration. So it is the same for all readers
of a process, and for all that may reach other files.
"""

import contextlib
import functools
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import duckdb

from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.sql_errors import JSON_ERRORS, explain
from unstable_stream.archive.tables import DROPPED, MISSING, POSITIONS, TABLES
from unstable_stream.archive.view_files import load_views, macros
from unstable_stream.errors import ArchiveBusyError, ArchiveError
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.version import __version__

T = TypeVar("T")

Connection: TypeAlias = duckdb.DuckDBPyConnection
"""An open archive."""

SCHEMA_VERSION: Final = 4
"""Raised when a table changes otherwise than by new columns: those are simply added, and views replaced."""

PATIENCE_S: float = 60.0
"""Seconds that readers and writers of an archive wait for each other."""
_RETRY_S: Final = 0.01
_BUSY_MESSAGES: Final = ("Could not set lock", "already attached", "different configuration")
# DuckDB rewrites the last row group of a table at each checkpoint. Its default of 122,880 rows means some
# hundred megabytes of text and tokens; 20,480 rows makes batch-wise inserting 1.6 times as fast (measured)
# and queries no slower.
_ROW_GROUP_ROWS: Final = 20_480
# Below this the write-ahead log is left for the next opening to replay. Every batch and every reader pays for
# that: 8 ms per megabyte, while a checkpoint costs 40 ms per megabyte once. Measured with 30,000 records of a
# run, 60 at a time: 16 MB took twice the processor time of 4 MB, which took 1.2 times that of 1 MB.
_CHECKPOINT_THRESHOLD: Final = "2MB"
# Of a new archive. DuckDB's default is 256 KiB, of which each of thirty tables fills several by halves: of a
# quickstart's archive a third.
_BLOCK_BYTES: Final = 65_536
# The archiver shares the machine with games and training.
_WRITER_THREADS: Final = 2
_WRITER_MEMORY: Final = "2GB"
# A new archive can be read by every DuckDB that pyproject.toml allows: its own format would be that of the
# DuckDB that is installed.
_STORAGE_VERSION: Final = "v1.4.0"
_NAME: Final = "archive"
_RENEWED: Final = "renewed"


Settings: TypeAlias = dict[str, str | bool | int | float | list[str]]

_GIGABYTE: Final = 1_000_000_000
_MOST_BYTES: Final = 4 * _GIGABYTE
"""Of memory, and of temporary files."""
_MOST_THREADS: Final = 8
_PROCESS: Final = secrets.token_hex(8)


@functools.cache
def definitions_digest() -> str:
    """Return a digest of all tables, macros and views: an archive made by other definitions has another."""
    statements = [
        *(table.create_sql() for table in (MISSING, DROPPED, *TABLES)),
        macros(),
        *(view.query for view in load_views()),
    ]
    return hashlib.sha256("".join(statements).encode()).hexdigest()


def unreadable(path: ArchiveAddress, error: duckdb.Error) -> ArchiveError:
    """Return what to raise when DuckDB cannot read an archive."""
    return ArchiveError(
        f"cannot read the archive {path}: {explain(error, '').rstrip('.')}. If it is damaged, move it away "
        "and fill a new one from the log: unstable-stream archive"
    )


@contextlib.contextmanager
def naming_damage(path: ArchiveAddress, connection: Connection) -> Iterator[None]:
    """Close a connection in the end; raise DuckDB's errors as :func:`unreadable`."""
    try:
        with connection:
            yield
    except duckdb.Error as error:
        raise unreadable(path, error) from error


def reader_settings(name: str, *, files: bool) -> Settings:
    """Return the configuration with which a reader opens the archive ``name``.

    Queries that need more than memory write temporary files, not beside the archive: the log is there too.
    """
    kept = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:8]
    # DuckDB makes the directory when memory is not enough, and removes it.
    spill = Path(tempfile.gettempdir(), f"unstable-stream-sql-{os.getpid()}-{_PROCESS}-{kept}")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    settings: Settings = {
        "threads": min(_MOST_THREADS, os.cpu_count() or 1),
        "memory_limit": f"{min(_MOST_BYTES, memory // 2)}B",
        "temp_directory": str(spill),
        # Without it a name that is no table is looked for among the variables of the Python program.
        "python_enable_replacements": False,
    }
    if not files:
        # It also keeps this engine apart from one that may reach files.
        settings["allow_persistent_secrets"] = False
    return settings


def lock(connection: duckdb.DuckDBPyConnection, *, files: bool) -> None:
    """Let nothing change the settings of the engine any more, and without ``files`` reach nothing else.

    No other file, database, extension or network: DuckDB does not take that back. Nor does it print the
    progress of slow queries on stdout, before the rows.
    """
    free = shutil.disk_usage(tempfile.gettempdir()).free
    for statement in (
        "SET enable_progress_bar = false",
        JSON_ERRORS,
        # Given to connect(), DuckDB 2.0 does not heed it.
        f"SET max_temp_directory_size = '{min(_MOST_BYTES, free // 4)}B'",
        *(() if files else ("SET enable_external_access = false",)),
        "SET lock_configuration = true",
    ):
        # Another reader of this process has locked the engine, after all of these. Or it is a Jupyter kernel
        # without ipywidgets: DuckDB can show no progress there, and refuses to be told so.
        with contextlib.suppress(duckdb.InvalidInputException):
            connection.execute(statement)


def connect_file(path: Path, *, read_only: bool, files: bool) -> Connection:
    """Return a connection to an archive's file; see :func:`~.opening.open_archive`."""
    if not path.is_file():
        raise ArchiveError(
            f"no archive at {path}: start a run first, or make one of an existing log with "
            "unstable-stream archive, or name the data directory with --data"
        )
    path = path.absolute()
    settings = reader_settings(str(path), files=files)
    connection = _retry_while_held(
        path, lambda: duckdb.connect(str(path), read_only=read_only, config=settings)
    )
    try:
        lock(connection, files=files)
        if _digest(connection, path) == definitions_digest():
            return connection
    except duckdb.Error as error:
        connection.close()
        raise unreadable(path, error) from error
    except BaseException:
        connection.close()
        raise
    # Another version of the package wrote it last.
    connection.close()
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise ArchiveError(
            f"another version of the package has written the archive {path}, and here it can only be read: "
            "copy it, or read it once as a user who may write it"
        )
    with contextlib.closing(WritableArchive(path)) as archive, archive.held():
        pass  # upgraded
    return connect_file(path, read_only=read_only, files=files)


@contextlib.contextmanager
def in_memory(archive: ArchiveAddress, *, files: bool) -> Iterator[Connection]:
    """Give an engine of its own, with the tables of an archive, to put views in their place.

    After the block it is locked, and the caller's to close; if the block fails it is closed.
    """
    connection = duckdb.connect(config=reader_settings(secrets.token_hex(8), files=True))
    try:
        ensure_schema(connection, archive)
        yield connection
        lock(connection, files=files)
    except duckdb.Error as error:
        connection.close()
        raise ArchiveError(f"cannot read the archive {archive}: {error}") from error
    except BaseException:
        connection.close()
        raise


def copy_archive(path: Path, target: Path) -> None:
    """Copy an archive while others use it; writers wait until it is done.

    Raises:
        ArchiveBusyError: another process held it for :data:`PATIENCE_S`.
    """
    with contextlib.closing(WritableArchive(path)) as archive, archive.held() as connection:
        connection.execute("CHECKPOINT")  # all is in the one file now
        shutil.copyfile(path, target)


def quoted(path: Path) -> str:
    """Return a path as a text of SQL."""
    # Absolute: DuckDB takes what is before a colon for the name of an extension to load.
    return "'" + str(path.absolute()).replace("'", "''") + "'"


class WritableArchive:
    """An archive that can be locked for writing and released many times.

    The engine is kept between two times: to start it costs ten times as much as to open the file.
    """

    def __init__(self, path: Path) -> None:
        """``path``: the file; :meth:`held` waits for others to let go of it."""
        self.path = path
        self._engine = self._start()

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()

    @contextlib.contextmanager
    def held(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Hold the write lock, creating file and schema if need be. The caller begins and commits.

        Raises:
            ArchiveBusyError: others held it past the deadline.
            ArchiveError: it is not an archive, or a newer version of the package wrote it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # The row group size can only be given when attaching.
        attach = f"ATTACH {quoted(self.path)} AS {_NAME} (ROW_GROUP_SIZE {_ROW_GROUP_ROWS})"
        _retry_while_held(self.path, lambda: self._engine.execute(attach))
        try:
            self._engine.execute(f"USE {_NAME}")
            ensure_schema(self._engine, self.path)
            yield self._engine
            self._engine.execute("USE memory")
            self._engine.execute(f"DETACH {_NAME}")
        except BaseException:
            # Whatever is half done goes with the engine, and so does the lock.
            self._engine.close()
            self._engine = self._start()
            raise

    def rewrite(self, fill: Callable[[Connection], T]) -> T:
        """Put a new file in the place of this one, which gives back the disk of what is not in the new one.

        1. hold the write lock and fold the write-ahead log into the file;
        2. make an empty archive beside it, and let ``fill`` copy to it;
        3. write it to disk and rename it; let go of both.

        A kill before the renaming leaves the archive as it was, and a file that the next call removes.

        Args:
            fill: is given a connection whose unqualified names are those of the new archive; the present one
                is the database ``archive``, and must not be changed.

        Raises:
            ArchiveBusyError: others held it past the deadline.
            ArchiveError: it could not be written, e.g. the disk is full. Nothing was changed.
        """
        renewed = self.path.with_name(f"{self.path.name}.new")
        log_of_renewed = renewed.with_name(f"{renewed.name}.wal")
        try:
            with self.held() as connection:
                connection.execute("CHECKPOINT")
                for left in (renewed, log_of_renewed):
                    left.unlink(missing_ok=True)
                attach = f"ATTACH {quoted(renewed)} AS {_RENEWED} (ROW_GROUP_SIZE {_ROW_GROUP_ROWS})"
                connection.execute(attach)
                connection.execute(f"USE {_RENEWED}")
                ensure_schema(connection, renewed)
                done = fill(connection)
                connection.execute(f"CHECKPOINT {_RENEWED}")
                # Both are locked meanwhile: whoever has opened the old file finds it held, and opens it anew
                # by its name.
                renewed.replace(self.path)
                directory = os.open(self.path.parent, os.O_RDONLY)
                try:
                    os.fsync(directory)
                finally:
                    os.close(directory)
            self._engine.execute(f"DETACH {_RENEWED}")
        except (duckdb.Error, OSError) as error:
            raise ArchiveError(
                f"could not write the archive {self.path} anew: {error}. It needs as much free disk as what "
                "stays in it, and nothing was changed"
            ) from error
        finally:
            for left in (renewed, log_of_renewed):
                left.unlink(missing_ok=True)
        return done

    def _start(self) -> duckdb.DuckDBPyConnection:
        settings: Settings = {
            "threads": _WRITER_THREADS,
            "memory_limit": _WRITER_MEMORY,
            "storage_compatibility_version": _STORAGE_VERSION,
            "default_block_size": _BLOCK_BYTES,
        }
        engine = duckdb.connect(config=settings)
        engine.execute(f"SET checkpoint_threshold = '{_CHECKPOINT_THRESHOLD}'")
        engine.execute("PRAGMA disable_checkpoint_on_shutdown")
        return engine


def _retry_while_held(path: Path, attempt: Callable[[], Connection]) -> Connection:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return attempt()
        except duckdb.Error as error:
            # DuckDB has no error class of its own for a held lock.
            if not any(message in str(error) for message in _BUSY_MESSAGES):
                raise unreadable(path, error) from error
            if time.monotonic() >= deadline:
                raise ArchiveBusyError(
                    f"the archive {path} was held by another process for {PATIENCE_S:g} s: "
                    f"{str(error).splitlines()[0]}. Close the other reader or writer, or try again."
                ) from error
        time.sleep(_RETRY_S)


def _digest(connection: duckdb.DuckDBPyConnection, path: ArchiveAddress) -> str:
    """Return the digest of a file's definitions; raise if its schema version is another than ours."""
    try:
        # All rows, not one: an unfinished result would block the connection.
        rows = connection.execute(
            "SELECT version, package_version, views_digest FROM schema_version"
        ).fetchall()
    except duckdb.CatalogException as error:
        raise ArchiveError(f"{path} is a DuckDB file but not an archive of unstable_stream") from error
    ((version, package_version, digest),) = rows
    if version > SCHEMA_VERSION:
        raise ArchiveError(
            f"the archive {path} has schema version {version}, written by unstable_stream {package_version}; "
            f"this is {__version__} and knows up to {SCHEMA_VERSION}. Upgrade unstable_stream."
        )
    if version < SCHEMA_VERSION:
        raise ArchiveError(
            f"the archive {path} has schema version {version}, of before version 0.2 of this package, which "
            "reads newer ones. Move it away and fill a new one from the log: unstable-stream archive"
        )
    return str(digest)


def ensure_schema(connection: duckdb.DuckDBPyConnection, path: ArchiveAddress) -> None:
    """Make or upgrade all tables, macros and views of an open database."""
    try:
        digest = _digest(connection, path)
    except ArchiveError:
        if connection.execute("SHOW TABLES").fetchall():
            raise
        digest = ""
        _create_tables(connection)
    if digest != definitions_digest():
        connection.execute("BEGIN")
        for table in (MISSING, DROPPED, *TABLES) if digest else ():  # else they were just made
            for statement in table.widen_sql():
                connection.execute(statement)
        connection.execute(macros())
        for view in load_views():
            connection.execute(view.create_sql())
        connection.execute(
            "UPDATE schema_version SET views_digest = ?, package_version = ?",
            [definitions_digest(), __version__],
        )
        connection.execute("COMMIT")


def _create_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """Create everything but the views."""
    connection.execute("BEGIN")
    for table in (EVENTS, MISSING, DROPPED, *TABLES):
        connection.execute(table.create_sql())
    keyed = POSITIONS.create_sql().removesuffix(")")
    connection.execute(f'{keyed}, PRIMARY KEY (log_id, topic, "partition"))')
    connection.execute(
        "CREATE TABLE schema_version (version INTEGER, package_version VARCHAR, views_digest VARCHAR, "
        "archive_id VARCHAR, next_record BIGINT)"
    )
    connection.execute(
        "INSERT INTO schema_version VALUES (?, ?, '', ?, 0)",
        [SCHEMA_VERSION, __version__, secrets.token_hex(4)],
    )
    connection.execute("COMMIT")
