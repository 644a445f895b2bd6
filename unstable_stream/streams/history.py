"""History as a stream: the records of a log or of an archive in their original order, in bounded memory.

Within a partition the order is that of the offsets. Across partitions it is that of the records' times, as
far as the partitions' own order allows; at equal times causes come before effects (a trajectory before its
steps). The order is a function of the records alone: the same slice always streams the same.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from unstable_stream.archive.records import ArchivedRow, RecordReader
from unstable_stream.errors import UnknownTopicError
from unstable_stream.log.port import Consumer, EventLog, StoredRecord, TopicPartition
from unstable_stream.log.reading import read_on
from unstable_stream.log.records import event_headers
from unstable_stream.streams.record_filter import RecordFilter

__all__ = ["ArchiveHistory", "History", "LogHistory", "Slice", "merged", "record_of_row"]

_PIECE_RECORDS: Final = 1000
_BATCH_RECORDS: Final = 500
_CAUSES_FIRST: Final = (
    "runs",
    "games",
    "trajectories",
    "game-outcomes",
    "steps",
    "ratings",
    "learner-updates",
    "checkpoints",
    "metrics",
    "dead-letters",
)


class History(Protocol):
    """Where records can be read again."""

    async def topics(self) -> Collection[str]:
        """Names of all topics there are."""

    async def partitions(self, topics: Collection[str]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Of every partition of these topics the first offset, and the one after the last."""

    def read(
        self, where: TopicPartition, start: int, end: int
    ) -> AsyncGenerator[Sequence[StoredRecord], None]:
        """Yield the records with offsets from ``start`` to before ``end``, in order, in pieces."""

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Slice:
    """What part of a history is wanted."""

    topics: tuple[str, ...] = ()
    """Empty: all."""
    ranges: Mapping[TopicPartition, tuple[int | None, int | None]] = field(default_factory=dict)
    """Offsets from and to before; where there are any, partitions not named are left out."""
    filter: RecordFilter = field(default_factory=RecordFilter)

    async def of(self, history: History) -> dict[TopicPartition, tuple[int, int]]:
        """Return the partitions of a history to read, and from and to which offsets.

        Raises:
            UnknownTopicError: a topic or partition that is asked for is not there.
        """
        there = await history.topics()
        of_ranges = {where.topic for where in self.ranges}
        if missing := sorted({*self.topics, *of_ranges}.difference(there)):
            raise UnknownTopicError(
                f"nothing of topic {missing[0]!r} here; there is {', '.join(sorted(there))}"
            )
        names = (of_ranges or set(there)).intersection(self.topics or there)
        available = await history.partitions(names)
        if absent := sorted(
            where for where in self.ranges if where.topic in names and where not in available
        ):
            raise UnknownTopicError(f"there is no {absent[0]} here")
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
    """A log's records, up to the ends it has when it is first asked."""

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
        # A consumer of its own: in bounded memory no partition may be read faster than it is used.
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
        # New records of the other partitions come too; they are not asked for here.
        yield [
            record
            for record in records
            if record.offset < end and record.partition == where.partition and record.topic == where.topic
        ]


class ArchiveHistory:
    """The records of a log that an archive holds."""

    def __init__(self, path: Path, log_id: str | None = None) -> None:
        """See :class:`RecordReader` for the errors."""
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


class _Head(msgspec.Struct, tag_field=None):
    type: str
    event_id: str
    run_id: str
    occurred_at_ms: int
    schema_version: int = 1


_head_decoder: Final = msgspec.json.Decoder(_Head)


def record_of_row(row: ArchivedRow) -> StoredRecord:
    """Return the record that was archived, with the headers every event's record has."""
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
    """What decides whose turn it is; the last two make it total."""

    time_ms: int
    rank: int
    topic: str
    partition: int


class _Cursor:
    """Reads on in one partition, a piece at a time."""

    def __init__(
        self,
        where: TopicPartition,
        pieces: AsyncGenerator[Sequence[StoredRecord], None],
        wanted: RecordFilter,
    ) -> None:
        self._where = where
        self._rank = _CAUSES_FIRST.index(where.topic) if where.topic in _CAUSES_FIRST else len(_CAUSES_FIRST)
        self._pieces = pieces
        self._filter = wanted
        self._records: deque[StoredRecord] = deque()
        self._latest_ms = -(1 << 63)
        self.read = 0
        """Records read so far, wanted or not."""

    async def fill(self) -> bool:
        """Make sure there is a record; ``False`` at the end."""
        while not self._records:
            piece = await anext(self._pieces, None)
            if piece is None:
                return False
            self.read += len(piece)
            self._records.extend(filter(self._filter.accepts, piece))
        return True

    def place(self) -> _Place:
        """Where its next record belongs; a time that goes back counts as the latest so far."""
        self._latest_ms = max(self._latest_ms, self._records[0].timestamp_ms)
        return _Place(self._latest_ms, self._rank, *self._where)

    def take(self, until: _Place | None, most: int, into: list[StoredRecord]) -> None:
        """Move records into ``into`` while they belong before ``until``."""
        records = self._records
        while records and len(into) < most and (until is None or self.place() < until):
            into.append(records.popleft())

    def __len__(self) -> int:
        return len(self._records)


class Merged(NamedTuple):
    """Some records in order, and how far the reading has come."""

    records: Sequence[StoredRecord]
    read: int
    """Records read of all partitions so far, those the filter left out among them."""


async def merged(history: History, wanted: Slice) -> AsyncGenerator[Merged, None]:
    """Stream a slice of history in original order.

    Memory: two pieces of 1,000 records for each partition at most.

    Raises:
        UnknownTopicError: something that is asked for by name is not there.
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
