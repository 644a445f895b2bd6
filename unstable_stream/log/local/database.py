"""Open the file of a local log: SQLite in WAL mode, its schema, its topics, and the meaning of its errors.

Each partition has a table of its own, keyed by offset: appending to it only ever touches its last page,
which is as fast as one table for everything and keeps the records of a partition side by side on disk.
"""

import itertools
import os
import random
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

from unstable_stream.errors import EventLogError, LogUnavailableError, UnknownTopicError
from unstable_stream.log.port import TopicPartition, TopicSpec
from unstable_stream.log.topic_drift import check_partition, check_partitions

Synchronous: TypeAlias = Literal["FULL", "NORMAL"]
"""``FULL``: an acknowledged record survives power loss. ``NORMAL``: it survives ``kill -9``, but a power
loss may take the last moments (never a part of a batch)."""

SCHEMA_VERSION: Final = 4
_APPLICATION_ID: Final = 0x75736C67  # "uslg"; `file` and SQLite tools show it

# Offsets mean something only in the log they come from: who keeps them elsewhere keeps this beside them.
_IDENTITY: Final = (
    "CREATE TABLE identity (log_id TEXT NOT NULL)",
    "INSERT INTO identity (log_id) VALUES (lower(hex(randomblob(16))))",
)

# What is saved with positions: the newest state of each name.
_STATES: Final = (
    """CREATE TABLE states (
        scope TEXT NOT NULL,
        name TEXT NOT NULL,
        state BLOB NOT NULL,
        UNIQUE (scope, name)
    )""",
)

_SCHEMA: Final = (
    *_IDENTITY,
    *_STATES,
    """CREATE TABLE topics (
        topic_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        cleanup_policy TEXT NOT NULL,
        retention_ms INTEGER,
        max_message_bytes INTEGER NOT NULL
    )""",
    """CREATE TABLE partitions (
        partition_id INTEGER PRIMARY KEY,
        topic_id INTEGER NOT NULL REFERENCES topics,
        partition INTEGER NOT NULL,
        begin_offset INTEGER NOT NULL DEFAULT 0,
        UNIQUE (topic_id, partition)
    )""",
    # Header names and those values that repeat from record to record, stored once; and the first such record,
    # which most of the next ones repeats: see records.py.
    "CREATE TABLE header_layouts (layout_id INTEGER PRIMARY KEY, layout BLOB NOT NULL UNIQUE, sample BLOB)",
    "CREATE TABLE producers (producer_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TABLE consumer_groups (
        group_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        generation INTEGER NOT NULL DEFAULT 0
    )""",
    # seen_ms is the monotonic clock, which all processes of one host share and nobody can set back.
    """CREATE TABLE members (
        join_order INTEGER PRIMARY KEY AUTOINCREMENT,
        group_id INTEGER NOT NULL REFERENCES consumer_groups,
        member_id TEXT NOT NULL UNIQUE,
        topics TEXT NOT NULL,
        host TEXT NOT NULL,
        pid INTEGER NOT NULL,
        started TEXT NOT NULL,
        seen_ms INTEGER NOT NULL,
        session_timeout_ms INTEGER NOT NULL,
        max_poll_interval_ms INTEGER NOT NULL
    )""",
    """CREATE TABLE owners (
        group_id INTEGER NOT NULL REFERENCES consumer_groups,
        partition_id INTEGER NOT NULL REFERENCES partitions,
        member_id TEXT NOT NULL,
        generation INTEGER NOT NULL,
        PRIMARY KEY (group_id, partition_id)
    ) WITHOUT ROWID""",
    """CREATE TABLE positions (
        group_id INTEGER NOT NULL REFERENCES consumer_groups,
        partition_id INTEGER NOT NULL REFERENCES partitions,
        next_offset INTEGER NOT NULL,
        PRIMARY KEY (group_id, partition_id)
    ) WITHOUT ROWID""",
)

_WAL_BYTES: Final = 64 * 1024 * 1024
_WAL_PATIENCE_MS: Final = 200

_FIRST_RETRY_S: Final = 0.0002
_LONGEST_RETRY_S: Final = 0.005
_jitter = random.Random()  # not the global generator: games depend on its state

_REMEDIES: Final = {
    sqlite3.SQLITE_NOTADB: "{path} is not an event log (not a SQLite database): give the path of a log or of "
    "a file that does not exist.",
    sqlite3.SQLITE_CORRUPT: "event log {path} is corrupt ({error}): restore a copy, or save what is readable "
    "with `sqlite3 {name} .recover`.",
    sqlite3.SQLITE_FULL: "event log {path}: no space left, nothing was appended: free disk space and go on.",
    **dict.fromkeys(
        (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY),
        "event log {path} cannot be opened for writing ({error}): check that it is a file in a directory "
        "this user may write to.",
    ),
}
"""Message and remedy by the primary code of SQLite's error."""

T = TypeVar("T")


def create_partition_table(connection: sqlite3.Connection, partition_id: int) -> None:
    """Create the table of one partition.

    ``lag_ms`` is how far the timestamp lies behind the latest one up to here, so ``timestamp_ms + lag_ms``
    never falls from offset to offset and a time is found by bisection, without an index.
    """
    connection.execute(
        f"""CREATE TABLE records_{partition_id} (
            "offset" INTEGER PRIMARY KEY,
            timestamp_ms INTEGER NOT NULL,
            lag_ms INTEGER NOT NULL,
            key TEXT NOT NULL,
            layout_id INTEGER NOT NULL,
            headers BLOB NOT NULL,
            value BLOB NOT NULL
        )"""
    )


def open_database(
    path: str, synchronous: Synchronous, busy_timeout_s: float, *, writes: bool
) -> sqlite3.Connection:
    """Open the log file for the calling thread, creating it if there is none.

    ``writes`` leaves waiting for the write lock to :func:`begin_write`.

    Raises:
        EventLogError: not a database, a database of something else, a newer schema, or not accessible.
        LogUnavailableError: stayed locked for ``busy_timeout_s``.
    """
    try:
        connection = sqlite3.connect(
            path,
            timeout=busy_timeout_s,
            isolation_level=None,
            cached_statements=1024,  # a few statements for each partition
        )
        try:
            _retry_while_busy(lambda: _prepare(connection, path, synchronous), busy_timeout_s)
            if writes:  # SQLite's own back-off sleeps up to 100 ms at a time
                connection.execute("PRAGMA busy_timeout = 0")
        except (sqlite3.Error, EventLogError):
            connection.close()
            raise
        return connection
    except sqlite3.Error as error:
        raise explain(error, path) from error


def _prepare(connection: sqlite3.Connection, path: str, synchronous: Synchronous) -> None:
    missing = _missing(connection, path)
    _set_modes(connection, synchronous)
    if not missing:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Asked again: another process may have done it meanwhile.
        for statement in _missing(connection, path):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _set_modes(connection: sqlite3.Connection, synchronous: Synchronous) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    # macOS: fsync alone leaves data in the drive's cache. Has no effect elsewhere.
    connection.execute(f"PRAGMA fullfsync = {int(synchronous == 'FULL')}")
    # A WAL that grew while readers held it open is cut back to this size when it is started over.
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")


def _missing(connection: sqlite3.Connection, path: str) -> tuple[str, ...]:
    """Return the statements that make this file a log of the present schema."""
    # In one statement, which sees one moment: another process may be making the log.
    application_id, version, objects = connection.execute(
        "SELECT * FROM pragma_application_id, pragma_user_version, (SELECT count(*) FROM sqlite_schema)"
    ).fetchone()
    if application_id == 0 and version == 0 and objects == 0:
        return _SCHEMA
    if application_id != _APPLICATION_ID:
        raise EventLogError(
            f"{path} is a SQLite database, but not an event log (application id {application_id:#x}, "
            f"expected {_APPLICATION_ID:#x}): give the path of a log or of a file that does not exist."
        )
    if version > SCHEMA_VERSION:
        raise EventLogError(
            f"event log {path} has schema version {version}, this version of unstable_stream knows up to "
            f"{SCHEMA_VERSION}: upgrade unstable_stream."
        )
    steps = ((), _IDENTITY, _STATES, ("ALTER TABLE header_layouts ADD COLUMN sample BLOB",))
    return tuple(itertools.chain.from_iterable(steps[version:]))


def begin_write(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Begin a transaction that holds the write lock, waiting for other writers up to the deadline.

    Raises :class:`sqlite3.OperationalError` (busy) after the deadline.
    """
    _retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"), busy_timeout_s)


def bound_wal(connection: sqlite3.Connection, path: str) -> bool:
    """Make the next writer start the WAL over if it has grown far; return whether it had.

    SQLite does so by itself only in a moment without readers, which may never come while consumers are
    busy: 3 writers and 6 readers going flat out left a WAL larger than the log within seconds.
    """
    try:
        grown = os.stat(f"{path}-wal").st_size > 2 * _WAL_BYTES
    except FileNotFoundError:
        return False
    if grown:
        # Waits for those who read from the WAL; who comes later reads from the file. Failing is no harm.
        connection.execute(f"PRAGMA busy_timeout = {_WAL_PATIENCE_MS}")
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        connection.execute("PRAGMA busy_timeout = 0")
    return grown


def _retry_while_busy(attempt: Callable[[], T], timeout_s: float) -> T:
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_RETRY_S
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(pause_s * (0.5 + _jitter.random()))
        pause_s = min(pause_s * 1.5, _LONGEST_RETRY_S)


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # the higher bits only refine it


def _is_busy(error: sqlite3.Error) -> bool:
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def explain(error: sqlite3.Error, path: str) -> EventLogError:
    """Return our error for one of SQLite's, with the remedy."""
    if _is_busy(error):
        return LogUnavailableError(
            f"event log {path} stayed locked by another process past the deadline: look for a process that "
            "is stuck while writing, or open the log with a longer busy_timeout_s."
        )
    said = _REMEDIES.get(_primary_code(error), "event log {path}: {error}")
    return EventLogError(said.format(path=path, error=error, name=os.path.basename(path)))


# -- topics and their settings ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition and the number of its table."""

    partition_id: int
    at: TopicPartition


@dataclass(frozen=True, slots=True)
class LocalTopic:
    """A topic as this log has it."""

    name: str
    max_message_bytes: int
    partitions: tuple[Partition, ...]


class TopicCatalogue:
    """All topics, read again when one is asked for that is not known yet.

    Shared by the threads of a log: a reload replaces the mapping as a whole.
    """

    def __init__(self) -> None:
        self._topics: Mapping[str, LocalTopic] = {}

    def reload(self, connection: sqlite3.Connection) -> Mapping[str, LocalTopic]:
        """Read all topics from the log."""
        partitions: dict[int, list[Partition]] = {}
        query = """SELECT topic_id, name, partition, partition_id FROM partitions JOIN topics USING (topic_id)
                   ORDER BY topic_id, partition"""
        for topic_id, name, number, partition_id in connection.execute(query):
            partitions.setdefault(topic_id, []).append(Partition(partition_id, TopicPartition(name, number)))
        query = "SELECT topic_id, name, max_message_bytes FROM topics ORDER BY name"
        self._topics = {
            name: LocalTopic(name, limit, tuple(partitions[topic_id]))
            for topic_id, name, limit in connection.execute(query)
        }
        return self._topics

    def find(self, connection: sqlite3.Connection, name: str) -> LocalTopic:
        """Return a topic; raises :class:`UnknownTopicError` with the names there are."""
        topic = self._topics.get(name) or self.reload(connection).get(name)
        if topic is None:
            known = ", ".join(self._topics) or "none yet"
            raise UnknownTopicError(
                f"unknown topic {name!r}; topics of this log: {known}. Create it with create_topics first."
            )
        return topic

    def find_partition(self, connection: sqlite3.Connection, at: TopicPartition) -> Partition:
        """Return a partition; raises :class:`UnknownTopicError` if there is none."""
        return partition_of(self.find(connection, at.topic), at.partition)


def partition_of(topic: LocalTopic, number: int) -> Partition:
    """Return one partition of a topic; raises :class:`UnknownTopicError` if there is none."""
    check_partition(topic.name, number, len(topic.partitions))
    return topic.partitions[number]


def create_topics(connection: sqlite3.Connection, specs: Sequence[TopicSpec]) -> None:
    """Create the topics that do not exist.

    Raises :class:`EventLogError` if an existing one has another number of partitions.
    """
    for spec in specs:
        query = "SELECT count(*) FROM partitions JOIN topics USING (topic_id) WHERE name = ?"
        (existing,) = connection.execute(query, (spec.name,)).fetchone()
        check_partitions(spec, existing)
        if existing:
            continue
        topic_id = connection.execute(
            "INSERT INTO topics (cleanup_policy, retention_ms, max_message_bytes, name) VALUES (?, ?, ?, ?)",
            _settings(spec),
        ).lastrowid
        for number in range(spec.partitions):
            partition_id = connection.execute(
                "INSERT INTO partitions (topic_id, partition) VALUES (?, ?)", (topic_id, number)
            ).lastrowid
            assert partition_id is not None
            create_partition_table(connection, partition_id)


def alter_topics(connection: sqlite3.Connection, specs: Sequence[TopicSpec]) -> None:
    """Give existing topics the settings of their spec; raises :class:`UnknownTopicError`."""
    for spec in specs:
        changed = connection.execute(
            "UPDATE topics SET cleanup_policy = ?, retention_ms = ?, max_message_bytes = ? WHERE name = ?",
            _settings(spec),
        ).rowcount
        if not changed:
            raise UnknownTopicError(f"unknown topic {spec.name!r}: create it with create_topics first.")


def _settings(spec: TopicSpec) -> tuple[str, int | None, int, str]:
    return spec.cleanup_policy, spec.retention_ms, spec.max_message_bytes, spec.name


def topic_settings(connection: sqlite3.Connection) -> dict[str, TopicSpec]:
    """Return the topics as they are declared here."""
    query = """SELECT name, count(*), cleanup_policy, retention_ms, max_message_bytes
               FROM topics JOIN partitions USING (topic_id) GROUP BY topic_id ORDER BY name"""
    return {row[0]: TopicSpec(*row) for row in connection.execute(query)}
