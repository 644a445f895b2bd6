"""Appending to and reading from the partition tables of a local log."""

import sqlite3
from collections.abc import Sequence
from typing import Final, TypeAlias

from unstable_stream.errors import OffsetOutOfRangeError, RecordTooLargeError
from unstable_stream.eventlog.local_headers import HeaderStore
from unstable_stream.eventlog.local_topics import Partition, Topic, TopicCatalogue, partition_of
from unstable_stream.eventlog.partitioner import partition_for_key
from unstable_stream.eventlog.port import Record, StoredRecord, TopicPartition

__all__ = [
    "AppendBatch",
    "begin_offset",
    "check_offset",
    "delete_before",
    "end_offset",
    "offset_for_time",
    "read_fairly",
]

_Row: TypeAlias = tuple[int, str, int, bytes, bytes]
"""timestamp, key, layout id, own header values, value"""

_MOST_BYTES_AT_ONCE: Final = 64 * 1024 * 1024  # a poll of 500 records of 16 MB would not fit in memory
_DELETED_AT_ONCE: Final = 5_000  # rows; keeps the write lock short


class AppendBatch:
    """Records on their way into the log: :meth:`prepare` outside the transaction, :meth:`write` inside."""

    def __init__(self, records: Sequence[Record], topics: TopicCatalogue, headers: HeaderStore) -> None:
        self._records = tuple(records)  # the caller may go on using its list
        self._topics = topics
        self._headers = headers
        self._rows: dict[int, list[_Row]] = {}  # by partition id
        self._places: list[tuple[Partition, int]] = []

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Find each record's partition and turn it into a row.

        Raises :class:`UnknownTopicError`, :class:`RecordTooLargeError`.
        """
        pack = self._headers.pack
        topic: Topic | None = None
        for record in self._records:
            if topic is None or topic.name != record.topic:
                topic = self._topics.find(connection, record.topic)
            partitions = topic.partitions
            if record.partition is not None:
                partition = partition_of(topic, record.partition)
            else:
                partition = partitions[partition_for_key(record.key, len(partitions))]
            headers = record.headers
            size = len(record.value) + len(record.key.encode())
            for name, header in headers.items():
                size += len(name) + len(header)
            if size > topic.max_message_bytes:
                raise RecordTooLargeError(
                    f"record with key {record.key!r} for topic {topic.name!r} has {size} bytes, the topic's "
                    f"limit is {topic.max_message_bytes}: raise its max_message_bytes, or keep the value in "
                    "a file and append a reference to it."
                )
            layout_id, own = pack(connection, headers)
            rows = self._rows.get(partition.partition_id)
            if rows is None:
                rows = self._rows[partition.partition_id] = []
            self._places.append((partition, len(rows)))
            rows.append((record.timestamp_ms, record.key, layout_id, own, record.value))
        self._records = ()

    def write(self, connection: sqlite3.Connection) -> list[tuple[TopicPartition, int]]:
        """Insert the rows at the end of their partitions; return partition and offset of each record."""
        first = {
            partition_id: _insert(connection, partition_id, rows) for partition_id, rows in self._rows.items()
        }
        return [(partition.at, first[partition.partition_id] + index) for partition, index in self._places]


def _insert(connection: sqlite3.Connection, partition_id: int, rows: list[_Row]) -> int:
    last = connection.execute(
        f'SELECT "offset", timestamp_ms + lag_ms FROM records_{partition_id} ORDER BY "offset" DESC LIMIT 1'
    ).fetchone()
    if last is None:
        first, latest_ms = begin_offset(connection, partition_id), rows[0][0]
    else:
        first, latest_ms = last[0] + 1, last[1]
    numbered = []
    offset = first
    for timestamp_ms, key, layout_id, own, value in rows:
        if timestamp_ms > latest_ms:
            latest_ms = timestamp_ms
        numbered.append((offset, timestamp_ms, latest_ms - timestamp_ms, key, layout_id, own, value))
        offset += 1
    connection.executemany(f"INSERT INTO records_{partition_id} VALUES (?, ?, ?, ?, ?, ?, ?)", numbered)
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
