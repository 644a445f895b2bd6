"""Read a log whose oldest records were deleted as if it had them: they come from the archive.

For whoever reads the history of a run that is over (``verify``, ``replay``, ``why``, ``fork``), and expired
``steps``; services read the log alone. Each partition is read from the archive up to the first offset that
the log has, then from the log. Where the archive lacks records in between, the partition begins behind them.

Only consumers without a group read from the archive. All else is the log's own.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, cast

from unstable_stream.archive.records import RecordReader
from unstable_stream.log.port import Consumer, EventLog, Positions, Start, StoredRecord, TopicPartition
from unstable_stream.log.stores.archive_address import ArchiveAddress, archive_exists

_PIECE_RECORDS: Final = 2000


@contextlib.asynccontextmanager
async def with_archive(log: EventLog, archive: ArchiveAddress) -> AsyncIterator[EventLog]:
    """Yield a log that has also what was deleted, as far as the archive holds it.

    Raises:
        ArchiveError: records were deleted, and the archive cannot be read.
    """
    begins: dict[TopicPartition, int] = {}
    for topic in await log.topics():
        begins |= {at: begin for at, begin in (await log.beginning_offsets(topic)).items() if begin}
    if not begins or not archive_exists(archive):
        yield log
        return
    reader = await asyncio.to_thread(RecordReader, archive, await log.log_id())
    try:
        ends, missing = await asyncio.to_thread(reader.ends), await asyncio.to_thread(reader.missing)
        ranges: dict[TopicPartition, tuple[int, int]] = {}
        for at, begin in begins.items():
            first = max((stop for _, stop in missing.get(at, ())), default=0)
            if first < begin <= ends.get(at, 0):
                ranges[at] = first, begin
        yield cast(EventLog, _TieredLog(log, reader, ranges))
    finally:
        await asyncio.to_thread(reader.release)


class _TieredLog:
    """A log with the two answers that what was deleted changes."""

    def __init__(
        self, log: EventLog, reader: RecordReader, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> None:
        """``ranges``: the offsets to read from the archive, the first one and the one after the last."""
        self._inner = log
        self._reader = reader
        self._ranges = ranges

    def __getattr__(self, name: str) -> Any:
        """Return what is the log's own."""
        return getattr(self._inner, name)

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, start: Start = "beginning"
    ) -> Consumer:
        """Open a consumer; without a group it reads what was deleted too, so not from a time on."""
        if not isinstance(start, str):
            raise ValueError(f"start={start}: a log with its archive is read from its beginning or its end")
        inner = await self._inner.consumer(topics, group, start)
        if group is not None:
            return inner
        consumer = _TieredConsumer(self._reader, inner, self._ranges)
        for topic in topics:
            if start == "beginning":
                await consumer.seek(await self.beginning_offsets(topic))
        return consumer

    async def beginning_offsets(self, topic: str) -> Positions:
        """Return the first offset of each partition that the archive or the log has."""
        begins = await self._inner.beginning_offsets(topic)
        return {at: self._ranges.get(at, (begin, 0))[0] for at, begin in begins.items()}


class _TieredConsumer:
    """Reads all partitions without a group: of each first the archive, then the log."""

    def __init__(
        self, reader: RecordReader, inner: Consumer, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> None:
        self._reader = reader
        self._inner = inner
        self._ranges = ranges
        self._archived: dict[TopicPartition, int] = {}
        """The next offsets of partitions that are read from the archive now."""
        self.assignment = inner.assignment
        self.commit = inner.commit
        self.close = inner.close

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[StoredRecord]:
        while self._archived:
            # In turns, as a log does: who reads several partitions to a point wants little beyond it.
            at, position = next(iter(self._archived.items()))
            del self._archived[at]
            most, end = min(max_records, _PIECE_RECORDS), self._ranges[at][1]
            records = await asyncio.to_thread(self._reader.read, *at, position, end, most)
            if records:
                self._archived[at] = records[-1].offset + 1
                return records
        return await self._inner.poll(max_records, timeout_s)

    def positions(self) -> Positions:
        return {**self._inner.positions(), **self._archived}

    async def seek(self, positions: Positions) -> None:
        """Go on from these offsets, in the archive or in the log, which waits at its first record."""
        in_log = dict(positions)
        for at, offset in positions.items():
            self._archived.pop(at, None)
            first, begin = self._ranges.get(at, (0, 0))
            if first <= offset < begin:
                self._archived[at], in_log[at] = offset, begin
        await self._inner.seek(in_log)
