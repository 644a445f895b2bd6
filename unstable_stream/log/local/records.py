"""Append to and read from the partition tables of a local log."""

import itertools
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from unstable_stream.errors import EventLogError, OffsetOutOfRangeError, RecordTooLargeError
from unstable_stream.log.local.database import (
    LocalTopic,
    Partition,
    TopicCatalogue,
    begin_write,
    partition_of,
)
from unstable_stream.log.port import Record, StoredRecord, TopicPartition, partition_for_key

SHARED: Final = frozenset({"ce_specversion", "ce_type", "ce_source", "ce_dataschema", "content-type"})
"""Headers with few distinct values: event types times runs. All others are stored with each record."""

NO_HEADERS: Final = 0
"""The layout of a record without headers."""

ERASED: Final = -1
"""The layout of a record that was erased with its run."""

_Layout: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Names with shared values, in order; ``None`` marks a value that each record keeps itself."""

_Row: TypeAlias = tuple[int, str, int, bytes, bytes]
"""Timestamp, key, layout, own headers and value of a record, as they are stored."""

_COMPRESSED: Final = b""
"""In place of the own headers: the value is a deflated list of them, the key and the value. Without this they
are stored as they are, as in all records of schema version 3 or before."""

# Of a sample, what deflate can refer to. Level 3 takes half the time of level 6, for a tenth more bytes.
_SAMPLE_BYTES: Final = 32_768
_LEVEL: Final = 3
_RAW: Final = -15
"""Deflate without zlib's header and check sum, of any window."""
_MOST_LAYOUTS: Final = 256
"""That are remembered, at up to 256 KiB each while writing; there are as many as runs and types of events."""

_encode = msgspec.msgpack.Encoder().encode
_decode_own = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_layout = msgspec.json.Decoder(tuple[tuple[str, bytes | None], ...]).decode


class _WrittenLayout(NamedTuple):
    layout_id: int
    size: int
    """Bytes of the names and the shared values."""
    compressor: "zlib._Compress"
    """To be copied for each record: it has the sample in its window."""


class _ReadLayout(NamedTuple):
    template: dict[str, bytes | None]
    names: tuple[str, ...]
    """The headers that each record keeps itself."""
    sample: bytes | None


class RowCodec:
    """Turns records into rows and back: stores once what repeats from record to record.

    Names and the values of :data:`SHARED` headers form a *layout*, which is stored once and numbered, with
    the first record that had it as a sample. Each record is deflated (RFC 1951) with the sample as the text
    before it, most of which it repeats. What is read back is equal to what was appended, order included. It
    caches without a lock: one per thread.
    """

    def __init__(self, busy_timeout_s: float) -> None:
        self._busy_timeout_s = busy_timeout_s
        self._written: dict[tuple[str | bytes, ...], _WrittenLayout] = {}
        """By the names, followed by the shared values."""
        self._read: dict[int, _ReadLayout] = {}

    def pack(self, connection: sqlite3.Connection, record: Record) -> tuple[_Row, int]:
        """Return the record's row, and an upper bound of the record's bytes. Stores a new layout at once."""
        headers, value = record.headers, record.value
        if not headers:
            row = (record.timestamp_ms, record.key, NO_HEADERS, b"", value)
            return row, len(value) + 4 * len(record.key)  # UTF-8 has at most 4 bytes a character
        own: list[str | bytes] = []
        shared: list[str | bytes] = [*headers]
        for name, header in headers.items():
            (shared if name in SHARED else own).append(header)
        own += (record.key.encode(), value)
        encoded = _encode(own)
        layout = self._written.get(tuple(shared))
        if layout is None:
            layout = self._register(connection, headers, encoded)
            if len(self._written) >= _MOST_LAYOUTS:
                self._written.clear()
            self._written[tuple(shared)] = layout
        compressor = layout.compressor.copy()
        packed = compressor.compress(encoded) + compressor.flush()
        return (record.timestamp_ms, "", layout.layout_id, _COMPRESSED, packed), layout.size + len(encoded)

    def unpack(
        self, connection: sqlite3.Connection, key: str, layout_id: int, own: bytes, value: bytes
    ) -> tuple[str, bytes, dict[str, bytes]]:
        """Return key, value and headers as they were appended."""
        if layout_id == NO_HEADERS:
            return key, value, {}
        layout = self._read.get(layout_id)
        if layout is None or (own == _COMPRESSED and layout.sample is None):
            if len(self._read) >= _MOST_LAYOUTS:
                self._read.clear()
            layout = self._read[layout_id] = self._load(connection, layout_id)
        if own == _COMPRESSED:
            assert layout.sample is not None
            *values, encoded_key, value = _decode_own(
                zlib.decompressobj(_RAW, layout.sample).decompress(value)
            )
            key = encoded_key.decode()
        else:
            values = _decode_own(own)
        # The placeholders are all overwritten, which keeps the original order.
        headers = layout.template.copy()
        headers.update(zip(layout.names, values, strict=True))
        return key, value, headers  # type: ignore[return-value]

    def _register(
        self, connection: sqlite3.Connection, headers: Mapping[str, bytes], encoded: bytes
    ) -> _WrittenLayout:
        layout = tuple((name, value if name in SHARED else None) for name, value in headers.items())
        # In a transaction of its own: what is once used stays true whatever becomes of the append.
        begin_write(connection, self._busy_timeout_s)
        try:
            # A layout of before schema version 4 has no sample yet.
            connection.execute(
                "INSERT INTO header_layouts (layout, sample) VALUES (?, ?) "
                "ON CONFLICT DO UPDATE SET sample = coalesce(sample, excluded.sample)",
                (msgspec.json.encode(layout), encoded[-_SAMPLE_BYTES:]),
            )
            query = "SELECT layout_id, sample FROM header_layouts WHERE layout = ?"
            (layout_id, sample) = connection.execute(query, (msgspec.json.encode(layout),)).fetchone()
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        # The compressor is copied for each record: no larger than records like the sample have use for.
        window_bits = max(10, min(15, (4 * len(sample)).bit_length()))
        compressor = zlib.compressobj(
            _LEVEL, zlib.DEFLATED, -window_bits, max(4, window_bits - 7), zlib.Z_DEFAULT_STRATEGY, sample
        )
        size = sum(len(name.encode()) + len(value or b"") for name, value in layout)
        return _WrittenLayout(int(layout_id), size, compressor)

    def _load(self, connection: sqlite3.Connection, layout_id: int) -> _ReadLayout:
        query = "SELECT layout, sample FROM header_layouts WHERE layout_id = ?"
        encoded, sample = connection.execute(query, (layout_id,)).fetchone()
        layout = _decode_layout(encoded)
        return _ReadLayout(dict(layout), tuple(name for name, value in layout if value is None), sample)


_MOST_BYTES_AT_ONCE: Final = 64 * 1024 * 1024  # a poll of 500 records of 64 MiB would not fit in memory
_DELETED_AT_ONCE: Final = 5_000  # rows; keeps the write lock short


Ends: TypeAlias = dict[int, tuple[int, int | None]]
"""By number of a partition, next offset and latest timestamp, as the transaction under way has left them."""


class AppendBatch:
    """Records to be appended: call :meth:`prepare` outside the transaction and :meth:`write` inside."""

    def __init__(
        self, records: Sequence[Record], topics: TopicCatalogue, codec: RowCodec, ends: Ends
    ) -> None:
        self._records = tuple(records)  # the caller may go on using its list
        self._topics = topics
        self._codec = codec
        self._ends = ends
        self._rows: dict[int, tuple[Partition, list[_Row]]] = {}
        """By the partition's number."""
        self._partition_ids: list[int] = []  # of each record

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Find each record's partition and turn it into a row.

        Raises :class:`UnknownTopicError`, :class:`RecordTooLargeError`.
        """
        # Records are many and small: what a loop's turn looks up here is most of an append's own cost.
        pack, placed = self._codec.pack, self._partition_ids.append
        topic: LocalTopic | None = None
        topic_name, limit = "", 0
        places: dict[str, tuple[int, list[_Row]]] = {}
        for record in self._records:
            if topic is None or topic_name != record.topic:
                topic = self._topics.find(connection, record.topic)
                topic_name, limit = topic.name, topic.max_message_bytes
                places = {}
            key = record.key
            place = places.get(key) if record.partition is None else None
            if place is None:
                partitions = topic.partitions
                if record.partition is None:
                    partition = partitions[partition_for_key(key, len(partitions))]
                else:
                    partition = partition_of(topic, record.partition)
                number = partition.partition_id
                place = (number, self._rows.setdefault(number, (partition, []))[1])
                if record.partition is None:
                    places[key] = place
            row, most_bytes = pack(connection, record)
            if most_bytes > limit:  # which spares most records the exact sum
                _check_size(record, topic)
            place[1].append(row)
            placed(place[0])
        self._records = ()

    def write(self, connection: sqlite3.Connection) -> list[tuple[TopicPartition, int]]:
        """Insert the rows at the end of their partitions; return partition and offset of each record."""
        offsets = {
            number: (partition.at, itertools.count(_insert(connection, self._ends, number, rows)))
            for number, (partition, rows) in self._rows.items()
        }
        return [(at, next(count)) for at, count in map(offsets.__getitem__, self._partition_ids)]


def _check_size(record: Record, topic: LocalTopic) -> None:
    size = len(record.value) + len(record.key.encode())
    size += sum(len(name.encode()) + len(header) for name, header in record.headers.items())
    if size > topic.max_message_bytes:
        raise RecordTooLargeError(
            f"record with key {record.key!r} for topic {topic.name!r} has {size} bytes, the topic's limit is "
            f"{topic.max_message_bytes}; nothing of its batch was stored."
        )


def _insert(connection: sqlite3.Connection, ends: Ends, partition_id: int, rows: Sequence[_Row]) -> int:
    """Append rows to a partition and return the offset of the first."""
    table = f"records_{partition_id}"
    if partition_id not in ends:
        last = connection.execute(
            f'SELECT "offset" + 1, timestamp_ms + lag_ms FROM {table} ORDER BY "offset" DESC LIMIT 1'
        ).fetchone()
        ends[partition_id] = last or (begin_offset(connection, partition_id), None)
    first, latest_ms = ends[partition_id]
    times_ms = [row[0] for row in rows]
    if latest_ms is not None and times_ms[0] >= latest_ms and times_ms == sorted(times_ms):
        # The usual case: in order of time. SQLite gives each row the offset after the last.
        connection.executemany(
            f"INSERT INTO {table} (timestamp_ms, lag_ms, key, layout_id, headers, value) "
            "VALUES (?, 0, ?, ?, ?, ?)",
            rows,
        )
        ends[partition_id] = first + len(rows), times_ms[-1]
        return first
    reached_ms = list(itertools.accumulate(times_ms, max, initial=latest_ms or times_ms[0]))[1:]
    connection.executemany(
        f"INSERT INTO {table} VALUES (?1, ?3, ?2 - ?3, ?4, ?5, ?6, ?7)",
        (
            (first + place, reached, *row)
            for place, (reached, row) in enumerate(zip(reached_ms, rows, strict=True))
        ),
    )
    ends[partition_id] = first + len(rows), reached_ms[-1]
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
        raise OffsetOutOfRangeError.of(partition.at, offset, begin, end)


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


def erase(connection: sqlite3.Connection, number: int, layouts: Sequence[int], begin: int) -> int | None:
    """Erase the records with one of these layouts among some from ``begin`` on; return where to go on.

    ``None``: there are no more. Each keeps its offset and time, so that offsets stay without gaps, and the
    layout :data:`ERASED`, by which readers pass over it.
    """
    until = begin + _DELETED_AT_ONCE
    connection.execute(
        f"""UPDATE records_{number} SET key = '', layout_id = {ERASED}, headers = x'', value = x''
            WHERE "offset" >= ? AND "offset" < ? AND layout_id IN ({", ".join(map(str, layouts))})""",
        (begin, until),
    )
    return until if until < end_offset(connection, number) else None


def layouts_by_source(connection: sqlite3.Connection) -> dict[int, bytes]:
    """Return the source, so the run, of the records with each layout; empty: they name none."""
    rows = connection.execute("SELECT layout_id, layout FROM header_layouts")
    return {number: dict(_decode_layout(layout)).get("ce_source") or b"" for number, layout in rows}


def sizes(connection: sqlite3.Connection, number: int) -> list[tuple[int, int, int]]:
    """Return layout, number and bytes of the records of a partition, by layout."""
    return connection.execute(
        f"""SELECT layout_id, count(*), sum(length(value) + length(headers) + length(key))
            FROM records_{number} WHERE layout_id <> {ERASED} GROUP BY layout_id"""
    ).fetchall()


Found: TypeAlias = list[tuple[TopicPartition, list[StoredRecord], int]]
"""By partition the records that were read, and the offset to go on from, behind erased ones too."""


def read_fairly(
    connection: sqlite3.Connection,
    codec: RowCodec,
    wanted: Sequence[tuple[Partition, int]],
    max_records: int,
) -> Found:
    """Return up to ``max_records`` from these positions: equal shares of all partitions that have as many.

    One entry for each partition that has something, in the order given. Call it inside one snapshot.
    Raises :class:`OffsetOutOfRangeError` if records at a position were deleted, :class:`EventLogError` if one
    is damaged.
    """
    room, room_bytes = max_records, _MOST_BYTES_AT_ONCE
    found: dict[TopicPartition, list[StoredRecord]] = {}
    ends: dict[TopicPartition, int] = {}
    pending = wanted
    while pending and room > 0 and room_bytes > 0:
        share = max(1, room // len(pending))
        again: list[tuple[Partition, int]] = []
        for partition, position in pending:
            limit = min(share, room)
            if limit <= 0 or room_bytes <= 0:
                break
            records, after, size = _read(connection, codec, partition, position, limit, room_bytes)
            if after == position:
                continue
            room -= after - position
            room_bytes -= size
            found.setdefault(partition.at, []).extend(records)
            ends[partition.at] = after
            if after - position == limit:
                again.append((partition, after))
        pending = again
    return [(at, records, ends[at]) for at, records in found.items()]


def _read(
    connection: sqlite3.Connection,
    codec: RowCodec,
    partition: Partition,
    position: int,
    limit: int,
    most_bytes: int,
) -> tuple[list[StoredRecord], int, int]:
    """Return records, the offset after the last that was looked at, and bytes."""
    topic, number = partition.at
    unpack = codec.unpack
    records: list[StoredRecord] = []
    after, size = position, 0
    rows = connection.execute(
        f"""SELECT "offset", timestamp_ms, key, layout_id, headers, value
            FROM records_{partition.partition_id} WHERE "offset" >= ? ORDER BY "offset" LIMIT ?""",
        (position, limit),
    )
    for offset, timestamp_ms, stored_key, layout_id, own, stored in rows:
        if after == position != offset:
            check_offset(connection, partition, position)
        after = offset + 1
        if layout_id == ERASED:
            continue
        try:
            key, value, headers = unpack(connection, stored_key, layout_id, own, stored)
        except (ValueError, zlib.error) as error:  # msgspec's DecodeError is a ValueError
            at = f"{partition.at}@{offset}"
            raise EventLogError(f"record {at} of the log is damaged: {error}; restore a backup") from error
        records.append(StoredRecord(topic, number, offset, key, value, headers, timestamp_ms))
        size += len(value)
        if size >= most_bytes:
            rows.close()
            break
    return records, after, size
