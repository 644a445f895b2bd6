"""Read a log whose oldest records have expired as if it had them all: they come from the archive.

A record has two homes: the log for as long as its topic keeps it, the archive for ever. Whoever reads history
(``verify``, ``replay``, ``why``, ``fork``) gets this log: each partition is read from the archive up to the
first offset that the log retains, then from the log. The archive must have all in between; where it has not,
the partition begins where the log does. Where the archive lacks records in between (``missing_records``), the
partition begins behind them: half a history is never taken for a whole one. :mod:`.missing` tells.

Only consumers without a group read from the archive. All else is the log's own.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final

from unstable_stream.archive.records import RecordReader
from unstable_stream.archive_address import ArchiveAddress, archive_exists
from unstable_stream.errors import OffsetOutOfRangeError
from unstable_stream.log.forwarding import ForwardingLog
from unstable_stream.log.port import (
    Consumer,
    EventLog,
    Positions,
    Start,
    StoredRecord,
    TopicPartition,
)
from unstable_stream.streams.ordered_history import record_of_row

__all__ = ["TieredLog", "with_archive"]

_PIECE_RECORDS: Final = 2000


@contextlib.asynccontextmanager
async def with_archive(log: EventLog, archive: ArchiveAddress) -> AsyncIterator[EventLog]:
    """Yield a log that has also what expired, as far as the archive holds it; the log itself, if nothing has.

    Raises:
        ArchiveError: records have expired, and the archive cannot be read.
    """
    if not archive_exists(archive) or not await _anything_expired(log):
        yield log
        return
    reader = await asyncio.to_thread(RecordReader, archive, await log.log_id())
    try:
        held, missing = await asyncio.to_thread(reader.partitions), await asyncio.to_thread(reader.missing)
        whole_from = {at: max(end for _, end in ranges) for at, ranges in missing.items()}
        whole = {at: (max(first, whole_from.get(at, 0)), end) for at, (first, end) in held.items()}
        yield TieredLog(log, reader, whole, missing)
    finally:
        await asyncio.to_thread(reader.release)


async def _anything_expired(log: EventLog) -> bool:
    for topic in await log.topics():
        if any((await log.beginning_offsets(topic)).values()):
            return True
    return False


class TieredLog(ForwardingLog):
    """A log with the archive before its beginning."""

    def __init__(
        self,
        log: EventLog,
        reader: RecordReader,
        archived: Mapping[tuple[str, int], tuple[int, int]],
        missing: Mapping[tuple[str, int], Sequence[tuple[int, int]]],
    ) -> None:
        """Use :func:`with_archive`.

        Args:
            log: the log.
            reader: reads its archive.
            archived: by partition, the offset from which on nothing is missing in the archive, and the next.
            missing: by partition, the ranges that are.
        """
        super().__init__(log)
        self._reader = reader
        self._archived = archived
        self._missing = missing

    def missing_before(self, at: TopicPartition, begin: int) -> list[tuple[int, int]]:
        """Return the ranges below ``begin``, the partition's first offset, that nothing has."""
        noted = [(first, end) for first, end in self._missing.get(at, ()) if first < begin]
        first_archived, archived_up_to = self._archived.get(at, (0, 0))
        if archived_up_to < begin:
            # The archiver has not come so far, so it has not noted what it will not find.
            return [*noted, (max([archived_up_to, *(end for _, end in noted)]), begin)]
        # An older version of the package noted nothing.
        return noted or ([(0, first_archived)] if first_archived else [])

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, start: Start = "beginning"
    ) -> Consumer:
        """Open a consumer; without a group it reads what expired too."""
        inner = await self._inner.consumer(topics, group, start)
        if group is not None:
            return inner
        consumer = _TieredConsumer(self, inner, topics)
        if start == "beginning":
            wanted = [await self.beginning_offsets(topic) for topic in topics]
        elif start == "end":
            return consumer
        else:
            wanted = [await self.offsets_for_time(topic, start) for topic in topics]
        await consumer.seek({at: offset for positions in wanted for at, offset in positions.items()})
        return consumer

    async def beginning_offsets(self, topic: str) -> Positions:
        """Return the first offset of each partition that the archive or the log has."""
        begins = await self._inner.beginning_offsets(topic)
        return {at: self.first_before(at, begin) for at, begin in begins.items()}

    async def retained_from(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition that the log itself has."""
        begins: dict[TopicPartition, int] = {}
        for topic in topics:
            begins |= await self._inner.beginning_offsets(topic)
        return begins

    def first_before(self, at: TopicPartition, begin: int) -> int:
        """Return the first archived offset of a partition that the log has from ``begin`` on."""
        first, end = self._archived.get(at, (begin, begin))
        return min(first, begin) if end >= begin else begin

    async def offsets_for_time(self, topic: str, timestamp_ms: int) -> Positions:
        """Return the first offset at or after a time, in the archive or in the log."""
        begins = await self._inner.beginning_offsets(topic)
        found = dict(await self._inner.offsets_for_time(topic, timestamp_ms))
        for at, begin in begins.items():
            if self.first_before(at, begin) < begin:
                first = await asyncio.to_thread(self._reader.first_at, *at, timestamp_ms)
                if first is not None and first < begin:
                    found[at] = max(first, self.first_before(at, begin))
        return found

    async def archived_piece(
        self, at: TopicPartition, start: int, end: int, most: int
    ) -> Sequence[StoredRecord]:
        """Return the next archived records of a partition from ``start`` to before ``end``."""
        rows = await asyncio.to_thread(self._reader.read, *at, start, end, min(most, _PIECE_RECORDS))
        return [record_of_row(row) for row in rows]


class _TieredConsumer:
    """Reads all partitions without a group: of each first the archive, then the log."""

    def __init__(self, log: TieredLog, inner: Consumer, topics: Sequence[str]) -> None:
        self._tiers = log
        self._inner = inner
        self._topics = tuple(dict.fromkeys(topics))
        self._archived: dict[TopicPartition, tuple[int, int]] = {}
        """Partitions that are read from the archive now: the next offset, and the log's first."""

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[StoredRecord]:
        while self._archived:
            # In turns, as a log does: who reads several partitions to a point wants little beyond it.
            at, (position, begin) = next(iter(self._archived.items()))
            del self._archived[at]
            records = await self._tiers.archived_piece(at, position, begin, max_records)
            if records:
                self._archived[at] = (records[-1].offset + 1, begin)
                return list(records)
            # From here the log's own consumer reads; it waits at its first record.
        try:
            return await self._inner.poll(max_records, timeout_s)
        except OffsetOutOfRangeError:
            # Retention was faster: what has just gone from the log is archived.
            if not await self._look_for_expired():
                raise
            return []

    def assignment(self) -> frozenset[TopicPartition]:
        return self._inner.assignment()

    def positions(self) -> Positions:
        return {**self._inner.positions(), **{at: position for at, (position, _) in self._archived.items()}}

    async def committed(self) -> Positions:
        return await self._inner.committed()

    async def commit(self, positions: Positions | None = None) -> None:
        await self._inner.commit(positions)

    async def seek(self, positions: Positions) -> None:
        """Go on from these offsets, in the archive or in the log."""
        begins = await self._tiers.retained_from({at.topic for at in positions})
        in_log: dict[TopicPartition, int] = {}
        for at, offset in positions.items():
            begin = begins.get(at, offset)
            self._archived.pop(at, None)
            if self._tiers.first_before(at, begin) <= offset < begin:
                self._archived[at] = (offset, begin)
                offset = begin
            in_log[at] = offset
        await self._inner.seek(in_log)

    async def close(self) -> None:
        await self._inner.close()

    async def _look_for_expired(self) -> bool:
        begins = await self._tiers.retained_from(self._topics)
        behind = {at: offset for at, offset in self._inner.positions().items() if offset < begins[at]}
        await self.seek(behind)
        return bool(self._archived)
