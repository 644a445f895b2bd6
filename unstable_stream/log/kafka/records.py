"""Convert records to Kafka's form and back: check them, sort them by partition, pack them into record
batches.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from unstable_stream.errors import RecordTooLargeError
from unstable_stream.log.kafka.topics import KafkaTopic, KafkaTopics
from unstable_stream.log.port import Record, StoredRecord, TopicPartition, partition_for_key
from unstable_stream.log.topic_drift import check_partition

MOST_BYTES_AT_ONCE: Final = 32 * 1024 * 1024
"""The most bytes of records in one send: brokers close a connection that sends 100 MB in one request."""

_PACKED_BYTES: Final = 1024 * 1024
_NO_LIMIT: Final = 2**30  # we close packs ourselves, at their topic's limit
_BATCH_OVERHEAD: Final = 61
# A broker recognises a repeated batch by the last batches of its producer. It forgets a producer if the
# timestamp of its last record is a day old, as in replayed history, unless it has an open transaction.
_REMEMBERED_MS: Final = 12 * 3600 * 1000
_RECORD_OVERHEAD: Final = 32  # upper bound for lengths and differences; each header has two more lengths

_Row: TypeAlias = tuple[bytes, bytes | None, list[tuple[str, bytes]], int, int]
"""Key, value, headers, time in Unix milliseconds, and an upper bound of the record's bytes."""


@dataclass(slots=True)
class RecordBatch:
    """The records of one append, sorted by partition, and their offsets after storing."""

    rows: dict[TopicPartition, list[_Row]]
    order: list[TopicPartition]
    """The partition of each record, in the order of the append."""
    size: int
    """Upper bound of the bytes, uncompressed."""
    is_unit: bool
    """True if the batch is stored whole and once even without a transaction."""
    offsets: dict[TopicPartition, list[int]] = field(default_factory=dict)

    def places(self) -> list[tuple[TopicPartition, int]]:
        """Return partition and offset of each record."""
        nexts = {at: iter(offsets) for at, offsets in self.offsets.items()}
        return [(at, next(nexts[at])) for at in self.order]


async def prepare(records: Sequence[Record], topics: KafkaTopics, *, tombstones: bool = False) -> RecordBatch:
    """Check records and find their partitions.

    ``tombstones``: an empty value becomes none, so that brokers forget the key.

    Raises :class:`UnknownTopicError`, :class:`RecordTooLargeError`.
    """
    known: dict[str, KafkaTopic] = {}
    rows: dict[TopicPartition, list[_Row]] = {}
    order: list[TopicPartition] = []
    total = _BATCH_OVERHEAD
    limit = _PACKED_BYTES
    newest_ms = 0
    for record in tuple(records):  # the caller may go on using its list
        topic = known.get(record.topic) or topics.known(record.topic)
        if topic is None:
            topic = (await topics.find([record.topic]))[record.topic]
        known[record.topic] = topic
        if record.partition is None:
            number = partition_for_key(record.key, topic.partitions)
        else:
            number = record.partition
            check_partition(topic.name, number, topic.partitions)
        key, headers = record.key.encode(), list(record.headers.items())
        size = _RECORD_OVERHEAD + len(key) + len(record.value)
        for name, header in headers:
            size += 10 + 4 * len(name) + len(header)
        if size + _BATCH_OVERHEAD > topic.max_message_bytes:
            exact = DefaultRecordBatchBuilder.estimate_size_in_bytes(key, record.value, headers)
            if exact > topic.max_message_bytes:
                topic = known[topic.name] = (await topics.find([topic.name], reload=True))[topic.name]
            if exact > topic.max_message_bytes:
                raise RecordTooLargeError(
                    f"record with key {record.key!r} for topic {topic.name!r} has {exact} bytes, the "
                    f"topic's limit is {topic.max_message_bytes}; nothing of its batch was stored."
                )
        at = TopicPartition(topic.name, number)
        value = record.value or None if tombstones else record.value
        row = (key, value, headers, record.timestamp_ms, size)
        of_partition = rows.get(at)
        if of_partition is None:
            rows[at] = [row]
        else:
            of_partition.append(row)
        order.append(at)
        total += size
        newest_ms = max(newest_ms, record.timestamp_ms)
        limit = min(limit, topic.max_message_bytes)
    fits_one_pack = len(order) == 1 or (len(rows) == 1 and total <= limit)
    remembered = newest_ms > time.time_ns() // 1_000_000 - _REMEMBERED_MS
    return RecordBatch(rows, order, total, is_unit=fits_one_pack and remembered)


@dataclass(slots=True)
class Packed:
    """One of Kafka's record batches: stored in one partition as a unit."""

    at: TopicPartition
    builder: Any
    """An ``aiokafka`` batch builder."""
    size: int
    """Upper bound of the bytes, uncompressed."""
    count: int = 0
    """The number of records in the pack."""
    parts: list[tuple[RecordBatch, int]] = field(default_factory=list)
    """The batches of its records, each with a number of records, in order."""

    _data: bytearray | None = None

    def append(self, row: _Row) -> None:
        """Add a record."""
        key, value, headers, timestamp_ms, size = row
        self.builder.append(self.count, timestamp_ms, key, value, headers)
        self.count += 1
        self.size += size

    def data(self, producer_id: int, epoch: int, number: int) -> bytearray:
        """Return the bytes to send. They are compressed once, so a batch that is sent again has the same
        bytes.
        """
        if self._data is None:
            self.builder.set_producer_state(producer_id, epoch, number)
            self._data = self.builder.build()
        return self._data

    def note_offsets(self, base: int) -> None:
        """Set the offsets of the batches' records; ``base`` is the first offset of this pack."""
        for batch, count in self.parts:
            batch.offsets.setdefault(self.at, []).extend(range(base, base + count))
            base += count


def pack(batches: Iterable[RecordBatch], topics: KafkaTopics, *, in_transaction: bool) -> list[Packed]:
    """Pack the records of several appends together, by partition, within the topics' limits.

    Args:
        batches: the prepared batches.
        topics: the topics with their limits.
        in_transaction: if false, the records of a batch for one partition stay in one pack, so that they are
            stored as a unit.
    """
    packed: list[Packed] = []
    last: dict[TopicPartition, Packed] = {}
    for batch in batches:
        for at, rows in batch.rows.items():
            topic = topics.known(at.topic)
            limit = _PACKED_BYTES if topic is None else min(_PACKED_BYTES, topic.max_message_bytes)
            current = last.get(at)
            if not in_transaction and current is not None and current.size + batch.size > limit:
                current = None
            count = 0
            for row in rows:
                if current is None or (in_transaction and current.size + row[-1] > limit):
                    if current is not None and count:
                        current.parts.append((batch, count))
                    current = last[at] = Packed(at, _builder(in_transaction), _BATCH_OVERHEAD)
                    packed.append(current)
                    count = 0
                current.append(row)
                count += 1
            if current is not None:
                current.parts.append((batch, count))
    return packed


def _builder(in_transaction: bool) -> Any:
    return DefaultRecordBatchBuilder(
        magic=2,
        compression_type=DefaultRecordBatch.CODEC_ZSTD,
        is_transactional=in_transaction,
        producer_id=-1,  # known only when it is sent
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=_NO_LIMIT,
    )


def waves(packed: Sequence[Packed]) -> Iterable[list[Packed]]:
    """Divide the packs into parts of at most :data:`MOST_BYTES_AT_ONCE` bytes, in order."""
    wave: list[Packed] = []
    size = 0
    for one in packed:
        if wave and size + one.size > MOST_BYTES_AT_ONCE:
            yield wave
            wave, size = [], 0
        wave.append(one)
        size += one.size
    if wave:
        yield wave


def stored_record(record: Any) -> StoredRecord:
    """Return the stored record for a record of ``aiokafka``; bytes of a key that are no text are replaced."""
    key = record.key
    # Kafka's headers may have no value, and several of one name.
    headers: Mapping[str, bytes] = {name: value or b"" for name, value in record.headers}
    return StoredRecord(
        record.topic,
        record.partition,
        record.offset,
        "" if key is None else key.decode(errors="replace"),
        record.value or b"",
        headers,
        record.timestamp,
    )
