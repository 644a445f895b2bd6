"""Stream the records of a log or of an archive in their original order, in bounded memory.

Within a partition, records are in the order of their offsets. Between partitions, they are in the order of
their times, as far as the offsets allow. At equal times causes come before effects (a trajectory before its
steps). The order depends only on the records: the same slice always gives the same stream.
"""

import asyncio
import fnmatch
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from unstable_stream.archive.records import RecordReader
from unstable_stream.errors import ConfigError, UnknownTopicError
from unstable_stream.log.port import EventLog, StoredRecord, TopicPartition
from unstable_stream.log.records import json_object, source_header
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.log.topics import load_topics
from unstable_stream.services.streams.consumer import read_partition

_PIECE_RECORDS: Final = 1000
_BATCH_RECORDS: Final = 500


# -- what is wanted ---------------------------------------------------------------------------------

_ALIASES: Final = {
    "run": ("run_id",),
    "env": ("env_id",),
    "game": ("game_id",),
    "model": ("model_uid", "seats.model_uid"),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One field compared with a pattern."""

    paths: tuple[str, ...]
    """Dotted paths; a path through a list means any item of the list."""
    pattern: str
    """A shell pattern with ``*`` and ``?``."""
    negated: bool = False

    def holds(self, body: Mapping[str, Any]) -> bool:
        """Return whether a value at any of the paths matches; with ``negated``, whether none does."""
        values = (value for path in self.paths for value in _values(body, path.split(".")))
        return any(fnmatch.fnmatchcase(_text(value), self.pattern) for value in values) != self.negated


def parse_condition(text: str) -> Condition:
    """Return the condition ``KEY=PATTERN`` or ``KEY!=PATTERN``; raises :class:`ConfigError`."""
    key, separator, pattern = text.partition("=")
    negated = key.endswith("!")
    key = key.removesuffix("!").strip()
    if not separator or not key:
        raise ConfigError(
            f"--where {text!r}: expected KEY=VALUE or KEY!=VALUE, e.g. env=TicTacToe-v0-train or type=step"
        )
    return Condition(_ALIASES.get(key, (key,)), pattern.strip(), negated)


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Accepts a record that fulfils all of its fields."""

    run_id: str | None = None
    from_ms: int | None = None
    """The earliest time accepted, Unix milliseconds."""
    to_ms: int | None = None
    """The earliest time after the accepted ones, Unix milliseconds."""
    conditions: Sequence[Condition] = ()

    def accepts(self, record: StoredRecord) -> bool:
        """Return whether the record is wanted. A record that is no JSON object has no run and fulfils no
        condition.
        """
        if self.from_ms is not None and record.timestamp_ms < self.from_ms:
            return False
        if self.to_ms is not None and record.timestamp_ms >= self.to_ms:
            return False
        body: Any = None
        if self.run_id is not None:
            source = record.headers.get("ce_source")
            if source is not None:
                if source != source_header(self.run_id):
                    return False
            else:
                body = json_object(record.value) or {}
                if body.get("run_id") != self.run_id:
                    return False
        if not self.conditions:
            return True
        body = (json_object(record.value) or {}) if body is None else body
        return bool(body) and all(condition.holds(body) for condition in self.conditions)


def _values(value: Any, path: Sequence[str]) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _values(item, path)
    elif not path:
        yield value
    elif isinstance(value, dict) and path[0] in value:
        yield from _values(value[path[0]], path[1:])


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# -- sources ----------------------------------------------------------------------------------------


class LogHistory:
    """The records of a log, up to its ends at the first question."""

    def __init__(self, log: EventLog) -> None:
        self._event_log = log

    async def topics(self) -> Collection[str]:
        """Return the names of all topics."""
        return (await self._event_log.topics()).keys()

    async def partitions(self, topics: Collection[str]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return the first offset, and the offset after the last, of every partition of these topics."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        for topic in topics:
            begins = await self._event_log.beginning_offsets(topic)
            for where, end in (await self._event_log.end_offsets(topic)).items():
                found[where] = (begins[where], end)
        return found

    def read(
        self, where: TopicPartition, start: int, end: int
    ) -> AsyncGenerator[Sequence[StoredRecord], None]:
        """Yield the records with offsets from ``start`` to before ``end``, in order, in pieces.

        Each partition has its own consumer, so that it is read only as fast as it is used. This bounds
        memory.
        """
        return read_partition(self._event_log, where, start, end, _PIECE_RECORDS)

    async def close(self) -> None:
        await self._event_log.close()


class ArchiveHistory:
    """The records of a log that an archive holds, with the methods of :class:`LogHistory`."""

    def __init__(self, path: ArchiveAddress, log_id: str | None = None) -> None:
        """Open the archive; see :class:`RecordReader` for the errors."""
        self._reader = RecordReader(path, log_id)

    async def topics(self) -> Collection[str]:
        return {topic for topic, _ in await asyncio.to_thread(self._reader.ends)}

    async def partitions(self, topics: Collection[str]) -> Mapping[TopicPartition, tuple[int, int]]:
        found = await asyncio.to_thread(self._reader.ends)
        return {TopicPartition(*where): (0, end) for where, end in found.items() if where[0] in topics}

    async def read(
        self, where: TopicPartition, start: int, end: int
    ) -> AsyncGenerator[Sequence[StoredRecord], None]:
        while True:
            records = await asyncio.to_thread(self._reader.read, *where, start, end, _PIECE_RECORDS)
            if not records:
                return
            yield records
            start = records[-1].offset + 1

    async def close(self) -> None:
        await asyncio.to_thread(self._reader.release)


History: TypeAlias = LogHistory | ArchiveHistory
"""A source of records that can be read again."""


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
