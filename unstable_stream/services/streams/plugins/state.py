"""Store the state of plug-ins: one SQLite file beside the log for each plug-in.

State and position of a partition are stored together. So a restored state is always the fold of exactly the
events before its position.
"""

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from unstable_stream.errors import PluginError
from unstable_stream.log.port import TopicPartition

_BUSY_S: Final = 20.0
_BUSY_PAUSE_S: Final = 0.01
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS positions (
    log_id TEXT, consumer_group TEXT, topic TEXT, partition INTEGER, next_offset INTEGER NOT NULL,
    PRIMARY KEY (log_id, consumer_group, topic, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS states (
    log_id TEXT, consumer_group TEXT, topic TEXT, partition INTEGER, run_id TEXT, state BLOB NOT NULL,
    PRIMARY KEY (log_id, consumer_group, topic, partition, run_id)
) WITHOUT ROWID;
"""


class Saved(NamedTuple):
    """The stored position and states of one partition."""

    next_offset: int
    states: Mapping[str, bytes]
    """States by run id."""


class PluginStates:
    """The states of one plug-in's group on one log. Its calls block; only one thread may use it."""

    def __init__(self, path: Path, log_id: str, group: str) -> None:
        """Open the file, or create it with its directory; raises :class:`PluginError` if that fails."""
        self._path = path
        self._key = (log_id, group)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            self._keep_a_wal()
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise PluginError(
                f"cannot keep the plug-in's state in {path}: {error}; name another directory with --data"
            ) from error

    def _keep_a_wal(self) -> None:
        # SQLite does not wait by itself here: another member that creates the same file may hold its lock.
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                self._database.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
            time.sleep(_BUSY_PAUSE_S)

    def load(self, where: TopicPartition) -> Saved | None:
        """Return the stored position and states of a partition; ``None`` if there are none."""
        key = (*self._key, *where)
        same = "log_id = ? AND consumer_group = ? AND topic = ? AND partition = ?"
        with self._transaction("cannot read"):
            row = self._database.execute(f"SELECT next_offset FROM positions WHERE {same}", key).fetchone()
            states = self._database.execute(f"SELECT run_id, state FROM states WHERE {same}", key).fetchall()
        return None if row is None else Saved(row[0], dict(states))

    def save(self, partitions: Mapping[TopicPartition, Saved]) -> None:
        """Store the given positions and states in one transaction; other states stay unchanged."""
        with self._transaction("cannot write"):
            self._database.executemany(
                "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?)",
                [(*self._key, *where, saved.next_offset) for where, saved in partitions.items()],
            )
            self._database.executemany(
                "INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (*self._key, *where, run_id, state)
                    for where, saved in partitions.items()
                    for run_id, state in saved.states.items()
                ],
            )

    def forget(self) -> None:
        """Delete everything that this group has stored for this log."""
        with self._transaction("cannot write"):
            for table in ("positions", "states"):
                self._database.execute(
                    f"DELETE FROM {table} WHERE log_id = ? AND consumer_group = ?", self._key
                )

    def close(self) -> None:
        self._database.close()

    @contextlib.contextmanager
    def _transaction(self, failed: str) -> Iterator[None]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise PluginError(f"{failed} the plug-in's state in {self._path}: {error}") from error
