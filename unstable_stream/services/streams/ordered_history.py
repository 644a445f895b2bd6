"""Stream the records of a log or of an archive in their original order, in bounded memory.

Within a partition, records are in the order of their offsets. Between partitions, they are in the order of
their times, as far as the offsets allow. At equal times causes come before effects (a trajectory before its
steps). The order depends only on the records: the same slice always gives the same stream.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import msgspec

from unstable_stream.archive.records import ArchivedRow, RecordReader
from unstable_stream.errors import UnknownTopicError
from unstable_stream.log.port import Consumer, EventLog, StoredRecord, TopicPartition
from unstable_stream.log.reading import read_on
from unstable_stream.log.records import event_headers
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.log.topics import load_topics
from unstable_stream.services.streams.record_filter import RecordFilter

_PIECE_RECORDS: Final = 1000
_BATCH_RECORDS: Final = 500


class History(Protocol):
    """A source of records that can be read again."""

    async def topics(self) -> Collection[str]:
        """Return the names of all topics."""

    async def partitions(self, topics: Collection[str]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return the first offset, and the offset after the last, of every partition of these topics."""

    def read(
        self, where: TopicPartition, start: int, end: int
    ) -> AsyncGenerator[Sequence[StoredRecord], None]:
        """Yield the records with offsets from ``start`` to before ``end``, in order, in pieces."""

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Slice:
    """The part of a history to read."""

    topics: tuple[str, ...] = ()
    """Empty: all topics."""
    ranges: Mapping[TopicPartition, tuple[int | None, int | None]] = field(default_factory=dict)
    """First offset, and offset after the last; ``None``: no limit. If not empty, only these partitions are
    read.
    """
    filter: RecordFilter = field(default_factory=RecordFilter)

    async def of(self, history: History) -> dict[TopicPartition, tuple[int, int]]:
        """Return the partitions to read, each with its first offset and the offset after its last.

        Raises:
            UnknownTopicError: the history has no such topic or partition.
        """
        there = await history.topics()
        of_ranges = {where.topic for where in self.ranges}
        if missing := sorted({*self.topics, *of_ranges}.difference(there)):
            raise UnknownTopicError(
                f"no topic {missing[0]!r} here; the topics are {', '.join(sorted(there))}"
            )
        names = (of_ranges or set(there)).intersection(self.topics or there)
        available = await history.partitions(names)
        if absent := sorted(
            where for where in self.ranges if where.topic in names and where not in available
        ):
            raise UnknownTopicError(f"no partition {absent[0]} here")
        chosen = {}
        for where, (first, end) in sorted(available.items()):
            if self.ranges:
                if where not in self.ranges:
                    continue
                start, stop = self.ranges[where]
                first = max(first, start or 0)
                end = end if stop is None else min(end, stop)
            if first < end:
                chosen[where] = (first, end)
        return chosen


class LogHistory:
    """The records of a log, up to its ends at the first question."""

    def __init__(self, log: EventLog) -> None:
        self._event_log = log

    async def topics(self) -> Collection[str]:
        return (await self._event_log.topics()).keys()

    async def partitions(self, topics: Collection[str]) -> Mapping[TopicPartition, tuple[int, int]]:
        found: dict[TopicPartition, tuple[int, int]] = {}
        for topic in topics:
            begins = await self._event_log.beginning_offsets(topic)
            for where, end in (await self._event_log.end_offsets(topic)).items():
                found[where] = (begins[where], end)
        return found

    async def read(
        self, where: TopicPartition, start: int, end: int
    ) -> AsyncGenerator[Sequence[StoredRecord], None]:
        # Each partition has its own consumer, so that it is read only as fast as it is used. This bounds
        # memory.
        consumer = await self._event_log.consumer([where.topic])
        try:
            ends = await self._event_log.end_offsets(where.topic)
            await consumer.seek({other: stop for other, stop in ends.items() if other != where})
            await consumer.seek({where: start})
            async for piece in _pieces(consumer, where, end):
                yield piece
        finally:
            await consumer.close()

    async def close(self) -> None:
        await self._event_log.close()


async def _pieces(
    consumer: Consumer, where: TopicPartition, end: int
) -> AsyncGenerator[Sequence[StoredRecord], None]:
    async for records in read_on(consumer, {where: end}, max_records=_PIECE_RECORDS):
        # The consumer also returns new records of other partitions, which are not wanted here.
        yield [
            record
            for record in records
            if record.offset < end and record.partition == where.partition and record.topic == where.topic
        ]


class ArchiveHistory:
    """The records of a log that an archive holds."""

    def __init__(self, path: ArchiveAddress, log_id: str | None = None) -> None:
        """Open the archive; see :class:`RecordReader` for the errors."""
        self._reader = RecordReader(path, log_id)

    async def topics(self) -> Collection[str]:
        return {topic for topic, _ in await asyncio.to_thread(self._reader.ends)}

    async def partitions(self, topics: Collection[str]) -> Mapping[TopicPartition, tuple[int, int]]:
        found = await asyncio.to_thread(self._reader.partitions)
        return {TopicPartition(*where): offsets for where, offsets in found.items() if where[0] in topics}

    async def read(
        self, where: TopicPartition, start: int, end: int
    ) -> AsyncGenerator[Sequence[StoredRecord], None]:
        while True:
            rows = await asyncio.to_thread(self._reader.read, *where, start, end, _PIECE_RECORDS)
            if not rows:
                return
            yield [record_of_row(row) for row in rows]
            start = rows[-1].offset + 1

    async def close(self) -> None:
        await asyncio.to_thread(self._reader.release)


class _NextRecord(msgspec.Struct, tag_field=None):
    type: str
    event_id: str
    run_id: str
    occurred_at_ms: int
    schema_version: int = 1


_head_decoder: Final = msgspec.json.Decoder(_NextRecord)


def record_of_row(row: ArchivedRow) -> StoredRecord:
    """Return the archived record, with the headers that the record of every event has."""
    headers = row.headers
    if row.is_event:
        head = _head_decoder.decode(row.value)
        standard = event_headers(
            head.type, head.schema_version, head.event_id, head.run_id, head.occurred_at_ms
        )
        headers = standard | dict(headers) if headers else standard
    return StoredRecord(row.topic, row.partition, row.offset, row.key, row.value, headers, row.timestamp_ms)


# -- merging --------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """The sort key of a record. Topic and partition make the order total."""

    time_ms: int
    rank: int
    topic: str
    partition: int


class _Cursor:
    """Reads one partition, piece by piece."""

    def __init__(
        self,
        where: TopicPartition,
        pieces: AsyncGenerator[Sequence[StoredRecord], None],
        wanted: RecordFilter,
    ) -> None:
        self._where = where
        declared = load_topics()  # a copy of a topic has another name, and comes last
        self._rank = declared[where.topic].order if where.topic in declared else len(declared) + 1
        self._pieces = pieces
        self._filter = wanted
        self._records: deque[StoredRecord] = deque()
        self._latest_ms = -(1 << 63)
        self.read = 0
        """Records read so far, including those that the filter left out."""

    async def fill(self) -> bool:
        """Read until a record is ready; return ``False`` at the end."""
        while not self._records:
            piece = await anext(self._pieces, None)
            if piece is None:
                return False
            self.read += len(piece)
            self._records.extend(filter(self._filter.accepts, piece))
        return True

    def place(self) -> _Place:
        """Return the sort key of the next record; a time before the latest so far counts as the latest."""
        self._latest_ms = max(self._latest_ms, self._records[0].timestamp_ms)
        return _Place(self._latest_ms, self._rank, *self._where)

    def take(self, until: _Place | None, most: int, into: list[StoredRecord]) -> None:
        """Move records into ``into`` while they sort before ``until``, up to ``most`` records there."""
        records = self._records
        while records and len(into) < most and (until is None or self.place() < until):
            into.append(records.popleft())

    def __len__(self) -> int:
        return len(self._records)


class Merged(NamedTuple):
    """Some records in order, and the number of records read."""

    records: Sequence[StoredRecord]
    read: int
    """Records of all partitions read so far, including those that the filter left out."""


async def merged(history: History, wanted: Slice) -> AsyncGenerator[Merged, None]:
    """Stream a slice of history in the original order.

    Memory: at most two pieces of 1,000 records for each partition.

    Raises:
        UnknownTopicError: the history has no topic or partition that the slice names.
    """
    chosen = await wanted.of(history)
    iterators = {where: history.read(where, *offsets) for where, offsets in chosen.items()}
    cursors = [_Cursor(where, iterator, wanted.filter) for where, iterator in iterators.items()]
    try:
        heap = [(cursor.place(), cursor) for cursor in cursors if await cursor.fill()]
        heapq.heapify(heap)
        batch: list[StoredRecord] = []
        while heap:
            _, cursor = heapq.heappop(heap)
            cursor.take(heap[0][0] if heap else None, _BATCH_RECORDS, batch)
            if len(batch) >= _BATCH_RECORDS:
                yield Merged(batch, sum(each.read for each in cursors))
                batch = []
            if len(cursor) or await cursor.fill():
                heapq.heappush(heap, (cursor.place(), cursor))
        yield Merged(batch, sum(each.read for each in cursors))
    finally:
        for iterator in iterators.values():
            await iterator.aclose()
