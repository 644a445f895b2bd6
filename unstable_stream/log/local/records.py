"""Append to and read from the partition tables of a local log."""

import itertools
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from unstable_stream.errors import OffsetOutOfRangeError, RecordTooLargeError
from unstable_stream.log.local.headers import HeaderStore
from unstable_stream.log.local.topics import Partition, Topic, TopicCatalogue, partition_of
from unstable_stream.log.partitioner import partition_for_key
from unstable_stream.log.port import Record, StoredRecord, TopicPartition

__all__ = [
    "AppendBatch",
    "begin_offset",
    "check_offset",
    "delete_before",
    "end_offset",
    "offset_for_time",
    "read_fairly",
]

_MOST_BYTES_AT_ONCE: Final = 64 * 1024 * 1024  # a poll of 500 records of 16 MB would not fit in memory
_DELETED_AT_ONCE: Final = 5_000  # rows; keeps the write lock short


@dataclass(slots=True)
class _Columns:
    """The new rows of one partition, column by column: SQLite takes rows from a ``zip`` at no cost."""

    timestamps_ms: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    layout_ids: list[int] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)


class AppendBatch:
    """Records to be appended: call :meth:`prepare` outside the transaction and :meth:`write` inside."""

    def __init__(self, records: Sequence[Record], topics: TopicCatalogue, headers: HeaderStore) -> None:
        self._records = tuple(records)  # the caller may go on using its list
        self._topics = topics
        self._headers = headers
        self._columns: dict[Partition, _Columns] = {}
        self._partition_ids: list[int] = []  # of each record

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Find each record's partition and turn it into a row.

        Raises :class:`UnknownTopicError`, :class:`RecordTooLargeError`.
        """
        pack = self._headers.pack
        topic: Topic | None = None
        known: dict[int, _Columns] = {}
        for record in self._records:
            if topic is None or topic.name != record.topic:
                topic = self._topics.find(connection, record.topic)
            partitions = topic.partitions
            key, value = record.key, record.value
            if record.partition is None:
                partition = partitions[partition_for_key(key, len(partitions))]
            else:
                partition = partition_of(topic, record.partition)
            layout_id, own, shared_bytes = pack(connection, record.headers)
            # An upper bound (UTF-8 has at most 4 bytes a character) spares most records the exact sum.
            if len(value) + 4 * len(key) + shared_bytes + len(own) > topic.max_message_bytes:
                _check_size(record, topic)
            partition_id = partition.partition_id
            columns = known.get(partition_id)
            if columns is None:
                columns = known[partition_id] = self._columns[partition] = _Columns()
            columns.timestamps_ms.append(record.timestamp_ms)
            columns.keys.append(key)
            columns.layout_ids.append(layout_id)
            columns.headers.append(own)
            columns.values.append(value)
            self._partition_ids.append(partition_id)
        self._records = ()

    def write(self, connection: sqlite3.Connection) -> list[tuple[TopicPartition, int]]:
        """Insert the rows at the end of their partitions; return partition and offset of each record."""
        places = {
            partition.partition_id: zip(
                itertools.repeat(partition.at),
                itertools.count(_insert(connection, partition.partition_id, columns)),
                strict=False,  # neither ends
            )
            for partition, columns in self._columns.items()
        }
        return [next(places[partition_id]) for partition_id in self._partition_ids]


def _check_size(record: Record, topic: Topic) -> None:
    size = len(record.value) + len(record.key.encode())
    size += sum(len(name.encode()) + len(header) for name, header in record.headers.items())
    if size > topic.max_message_bytes:
        raise RecordTooLargeError(
            f"record with key {record.key!r} for topic {topic.name!r} has {size} bytes, the topic's limit is "
            f"{topic.max_message_bytes}: raise its max_message_bytes, or keep the value in a file and append "
            "a reference to it."
        )


def _insert(connection: sqlite3.Connection, partition_id: int, columns: _Columns) -> int:
    """Append rows to a partition and return the offset of the first."""
    last = connection.execute(
        f'SELECT "offset", timestamp_ms + lag_ms FROM records_{partition_id} ORDER BY "offset" DESC LIMIT 1'
    ).fetchone()
    times_ms = columns.timestamps_ms
    if last is None:
        first, latest_ms = begin_offset(connection, partition_id), times_ms[0]
    else:
        first, latest_ms = last[0] + 1, last[1]
    lags_ms: Iterable[int] = itertools.repeat(0)
    if times_ms[0] < latest_ms or times_ms != sorted(times_ms):
        latest = itertools.accumulate(times_ms, max, initial=latest_ms)
        lags_ms = [
            reached - own for reached, own in zip(itertools.islice(latest, 1, None), times_ms, strict=True)
        ]
    connection.executemany(
        f"INSERT INTO records_{partition_id} VALUES (?, ?, ?, ?, ?, ?, ?)",
        # Not strict: the offsets and the zeros have no end.
        zip(
            itertools.count(first),
            times_ms,
            lags_ms,
            columns.keys,
            columns.layout_ids,
            columns.headers,
            columns.values,
        ),
    )
    return first


def begin_offset(connection: sqlite3.Connection, partition_id: int) -> int:
    """Offset of the first retained record."""
    query = "SELECT begin_offset FROM partitions WHERE partition_id = ?"
    (offset,) = connection.execute(query, (partition_id,)).fetchone()
    return int(offset)


def end_offset(connection: sqlite3.Connection, partition_id: int) -> int:
    """Offset after the last record."""
    (last,) = connection.execute(f'SELECT max("offset") FROM records_{partition_id}').fetchone()
    return begin_offset(connection, partition_id) if last is None else int(last) + 1


def check_offset(connection: sqlite3.Connection, partition: Partition, offset: int) -> None:
    """Raise :class:`OffsetOutOfRangeError` unless reading can go on from ``offset``."""
    begin = begin_offset(connection, partition.partition_id)
    end = end_offset(connection, partition.partition_id)
    if not begin <= offset <= end:
        raise OffsetOutOfRangeError(
            f"{partition.at}@{offset} is out of range: this log has offsets {begin} up to (not including) "
            f"{end}. "
            + (
                "Records before were deleted by retention: seek to the beginning, and count them as lost."
                if offset < begin
                else "The log is shorter than this position: is it another log, or an older copy of it?"
            )
        )


def offset_for_time(connection: sqlite3.Connection, partition_id: int, timestamp_ms: int) -> int:
    """First offset with a timestamp at or after the given one; the end if none. O(log n)."""
    table = f"records_{partition_id}"
    low, end = begin_offset(connection, partition_id), end_offset(connection, partition_id)
    high = end
    while low < high:
        middle = (low + high) // 2
        query = f'SELECT timestamp_ms + lag_ms FROM {table} WHERE "offset" = ?'
        (latest_ms,) = connection.execute(query, (middle,)).fetchone()
        if latest_ms < timestamp_ms:
            low = middle + 1
        else:
            high = middle
    # Here the latest timestamp so far reaches the one asked for. It is this record's own, unless the
    # record that had it was deleted by retention.
    query = f'SELECT min("offset") FROM {table} WHERE "offset" >= ? AND timestamp_ms >= ?'
    (found,) = connection.execute(query, (low, timestamp_ms)).fetchone()
    return end if found is None else int(found)


def delete_before(connection: sqlite3.Connection, partition: Partition, offset: int) -> bool:
    """Delete some of the records before ``offset``, the oldest first; tell whether there are more.

    Raises :class:`OffsetOutOfRangeError` if ``offset`` lies beyond the end.
    """
    begin = begin_offset(connection, partition.partition_id)
    if offset <= begin:
        return False
    check_offset(connection, partition, offset)
    until = min(offset, begin + _DELETED_AT_ONCE)
    connection.execute(f'DELETE FROM records_{partition.partition_id} WHERE "offset" < ?', (until,))
    connection.execute(
        "UPDATE partitions SET begin_offset = ? WHERE partition_id = ?", (until, partition.partition_id)
    )
    return until < offset


def read_fairly(
    connection: sqlite3.Connection,
    headers: HeaderStore,
    wanted: Sequence[tuple[Partition, int]],
    max_records: int,
) -> list[list[StoredRecord]]:
    """Return up to ``max_records`` from these positions: equal shares of all partitions that have as many.

    One list for each partition that has something, in the order given. Call it inside one snapshot.
    Raises :class:`OffsetOutOfRangeError` if records at a position were deleted.
    """
    room, room_bytes = max_records, _MOST_BYTES_AT_ONCE
    found: dict[int, list[StoredRecord]] = {}
    pending = wanted
    while pending and room > 0 and room_bytes > 0:
        share = max(1, room // len(pending))
        again: list[tuple[Partition, int]] = []
        for partition, position in pending:
            limit = min(share, room)
            if limit <= 0 or room_bytes <= 0:
                break
            records, size = _read(connection, headers, partition, position, limit, room_bytes)
            if not records:
                continue
            if records[0].offset != position:
                check_offset(connection, partition, position)
            room -= len(records)
            room_bytes -= size
            found.setdefault(partition.partition_id, []).extend(records)
            if len(records) == limit:
                again.append((partition, position + limit))
        pending = again
    return list(found.values())


def _read(
    connection: sqlite3.Connection,
    headers: HeaderStore,
    partition: Partition,
    position: int,
    limit: int,
    most_bytes: int,
) -> tuple[list[StoredRecord], int]:
    topic, number = partition.at
    unpack = headers.unpack
    records: list[StoredRecord] = []
    size = 0
    rows = connection.execute(
        f"""SELECT "offset", timestamp_ms, key, layout_id, headers, value
            FROM records_{partition.partition_id} WHERE "offset" >= ? ORDER BY "offset" LIMIT ?""",
        (position, limit),
    )
    for offset, timestamp_ms, key, layout_id, own, value in rows:
        unpacked = unpack(connection, layout_id, own)
        records.append(StoredRecord(topic, number, offset, key, value, unpacked, timestamp_ms))
        size += len(value)
        if size >= most_bytes:
            rows.close()
            break
    return records, size
