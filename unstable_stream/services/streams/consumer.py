"""The consumer loop: a member of a group reads its partitions and passes the records to a sink, on any log.

It is the only loop that joins a group, polls and follows the assignment. Every consumer brings a
:class:`Sink`, which processes the records and commits the positions:
:class:`~unstable_stream.services.streams.fold_sink.FoldSink` folds and publishes in transactions,
:class:`~unstable_stream.services.streams.plugins.host.PluginSink` runs a plug-in,
:class:`~unstable_stream.services.workers.archiver.ArchiveSink` fills the archive. Each also decides the
offset at which a partition goes on: the position that it stored with its results. One round:

1. poll until a batch is full or no record is left;
2. after every poll, let the sink open and close partitions, and read on from the positions it returns;
3. let the sink process the batch;
4. if there was no record, let the sink flush its unfinished work.

Several members of one group share its partitions. If a member is killed, the group gives its partitions to
the others, and their sinks go on from the stored positions.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from dataclasses import dataclass
from typing import Final, Protocol

from unstable_stream.console import get_logger
from unstable_stream.errors import EventLogError, OffsetOutOfRangeError
from unstable_stream.log.port import Consumer, EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.log.reading import any_record, ends_of, offsets_of, read_on

JOIN_S: Final = 10.0
"""Seconds. A member without a partition after this time gets none: there are more members than partitions."""
_POLL_RECORDS: Final = 1000
"""The most records of one poll. A small number makes a change of assignment noticed soon."""
_DRAIN_S: Final = 0.25
"""Seconds that a poll waits for the first record while the input is read to its end."""

_log = get_logger(__name__)


class Sink(Protocol):
    """Processes the partitions that are assigned to one member of a group. Only one task at a time may use
    it.
    """

    def positions(self) -> Positions:
        """Return the next offset to process, for every open partition."""

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        """Close partitions that are no longer assigned and open those that are new.

        Returns the partitions opened now, each with the offset to read on from. Records read from them before
        must not be processed. A sink may leave a partition closed for now; the loop asks again.
        """

    async def process(self, records: Sequence[StoredRecord], read_up_to: Positions) -> None:
        """Process records, in order within each partition; skip those of partitions that are not open.

        Args:
            records: may be empty; then the sink has time for its own work.
            read_up_to: the positions after these records and after anything that lies between records.
        """

    async def flush(self, read_up_to: Positions) -> None:
        """Finish the open work: the sink has all records that were read, and there are no more for now."""

    def deleted(self, error: OffsetOutOfRangeError) -> None:
        """Records were deleted before they were read, or lost after: close partitions to go on, or raise."""

    async def may_finish(self, other_ends: Positions) -> bool:
        """Return whether a member that has reached the ends of its own partitions may end.

        Args:
            other_ends: the ends of the partitions that it does not have. Their owner may have died, and the
                log may not have noticed yet.
        """

    async def close(self) -> None:
        """Close all partitions; the next member goes on from the stored positions."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Settings for gathering records into batches."""

    max_records: int = 500
    """The most records of one batch."""
    max_bytes: int = 64 * 1024 * 1024
    """A batch takes no more records when its values reach this size."""
    wait_s: float = 0.5
    """Seconds that a poll waits for the first record; a stop is noticed after at most this time."""
    linger_s: float = 0.0
    """Seconds that a batch waits for the next record while it is not full."""
    gather_s: float = 0.0
    """Seconds to wait after a small first poll, for sinks where a small batch costs as much as a large one.
    """


async def run_consumer(
    log: EventLog,
    topics: Sequence[str],
    consumer: Consumer,
    sink: Sink,
    *,
    stop: asyncio.Event,
    drain: bool,
    until_end: bool = False,
    pace: Pace | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Feed a sink until ``stop`` is set or the end is reached, then close the consumer and the sink.

    Args:
        log: the event log.
        topics: the topics that ``consumer`` reads.
        consumer: a member of a group.
        sink: processes the records.
        stop: ends the loop after the batch in hand.
        drain: after ``stop``, first process everything up to the ends of the topics at that moment.
        until_end: stop at the ends that the topics have now.
        pace: settings for gathering records.
        on_ready: called when the consumer has joined its group and opened its first partitions.

    Raises:
        OffsetOutOfRangeError: the log deleted records before they were read, or lost what was read.
    """
    loop = _Loop(log, topics, consumer, sink, stop, drain, pace or Pace())
    try:
        await loop.run(await ends_of(log, topics) if until_end else None, on_ready)
    finally:
        try:
            await sink.close()
        finally:
            await consumer.close()


async def is_processed(log: EventLog, group: str, ends: Positions, starts: Positions | None = None) -> bool:
    """Return whether a group has committed positions after all records below ``ends``.

    ``starts``: where the group begins in partitions of which it has committed nothing.
    """
    committed = {**(starts or {}), **await log.committed_positions(group)}
    behind = {at: end for at, end in ends.items() if committed.get(at, 0) < end}
    return not behind or not await any_record(log, committed, behind)


async def read_partition(
    log: EventLog, at: TopicPartition, first: int, up_to: int, max_records: int = 500
) -> AsyncGenerator[Sequence[StoredRecord], None]:
    """Yield the records of a partition from ``first`` to before ``up_to``, in order, in pieces."""
    if up_to <= first:
        return
    reader = await log.consumer([at.topic], start="end")
    try:
        await reader.seek({at: first})
        async for records in read_on(reader, {at: up_to}, max_records=max_records):
            # It also returns new records of other partitions, which are not wanted here.
            yield [one for one in records if one.partition == at.partition and one.offset < up_to]
    finally:
        await reader.close()


async def wait_for_stop(stop: asyncio.Event, seconds: float) -> bool:
    """Wait for ``stop``, at most ``seconds``; return whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
    return stop.is_set()


@dataclass(eq=False)
class _Loop:
    log: EventLog
    topics: Sequence[str]
    consumer: Consumer
    sink: Sink
    stop: asyncio.Event
    drain: bool
    pace: Pace

    def __post_init__(self) -> None:
        self._assigned_at = loop_time()
        """The last time this member had a partition."""

    async def run(self, ends: Positions | None, on_ready: Callable[[], None]) -> None:
        """Repeat the round until ``stop``, or until the positions ``ends``."""
        ready = False
        while not self.stop.is_set() or self.drain:
            if self.stop.is_set() and ends is None:
                ends = await offsets_of(self.log.high_watermarks, self.topics)
            records = await self._gather(_DRAIN_S if ends is not None else self.pace.wait_s)
            await self.sink.process(records, self._read_up_to())
            if self.stop.is_set() and not self.drain:
                return  # the sink may not have processed the whole batch, so it must not flush
            if self.consumer.assignment():
                self._assigned_at = loop_time()
            if not ready and (self.consumer.assignment() or loop_time() - self._assigned_at >= JOIN_S):
                ready = True
                on_ready()
            if not records:
                await self.sink.flush(self._read_up_to())
            if ends is None:
                continue
            if await self._reached(ends):
                await self.sink.flush(self._read_up_to())
                return
            if not records:
                await self._look_for_deleted()

    # -- reading ------------------------------------------------------------------------------

    async def _gather(self, wait_s: float) -> list[StoredRecord]:
        """Return at most a batch of records."""
        pace, batch = self.pace, list[StoredRecord]()
        first = await self._poll(batch, wait_s)
        if 0 < first < min(_POLL_RECORDS, pace.max_records) and pace.gather_s and not self.stop.is_set():
            await wait_for_stop(self.stop, pace.gather_s)
        linger_s = pace.linger_s
        size = sum(len(record.value) for record in batch)
        while batch and len(batch) < pace.max_records and size < pace.max_bytes:
            before = len(batch)
            if not await self._poll(batch, linger_s):
                break
            size += sum(len(record.value) for record in batch[before:])
            linger_s = 0.0
        return batch

    async def _poll(self, batch: list[StoredRecord], wait_s: float) -> int:
        """Add records to a batch, follow the assignment, and return how many were added."""
        most = min(_POLL_RECORDS, self.pace.max_records - len(batch))
        deleted = None
        try:
            records = await self.consumer.poll(most, wait_s)
        except OffsetOutOfRangeError as error:
            deleted, records = error, []
        opened = await self.sink.follow(self.consumer.assignment())
        if deleted is not None and not opened:
            # A partition that was opened now was behind before the sink could say from where it goes on.
            self.sink.deleted(deleted)
            opened = await self.sink.follow(self.consumer.assignment())
            if not opened:
                await asyncio.sleep(_DRAIN_S)  # it waits for something: the error comes again at once
        if opened:
            await self._go_to(opened)
            # These records were read from the group's position, not from the sink's. They are read again.
            batch[:] = [record for record in batch if _at(record) not in opened]
            records = [record for record in records if _at(record) not in opened]
        batch += records
        return len(records)

    def _read_up_to(self) -> Positions:
        """Return the positions of the partitions that the sink has open.

        Where going to the sink's position failed, the consumer's may be behind records that were left out.
        """
        held = self.sink.positions()
        return {at: offset for at, offset in self.consumer.positions().items() if at in held}

    async def _go_to(self, positions: Positions) -> None:
        """Continue these partitions from the given offsets."""
        for at, offset in positions.items():
            try:
                await self.consumer.seek({at: offset})
            except OffsetOutOfRangeError as error:
                self.sink.deleted(error)
            except EventLogError as error:
                _log.info("partition moved on before it was read", partition=str(at), reason=str(error))
                # The partition may leave and come back between two polls. Then it must be opened again.
                await self._go_to(await self.sink.follow(self.consumer.assignment() - {at}))

    # -- ending -------------------------------------------------------------------------------

    async def _reached(self, ends: Positions) -> bool:
        """Return whether all partitions of this member are open and processed up to ``ends``, and it need not
        wait for others: a dead member keeps its partitions until the log notices.
        """
        assigned = self.consumer.assignment()
        if self.sink.positions().keys() != assigned:
            return False
        read_up_to = self.consumer.positions()
        if any(read_up_to[at] < ends.get(at, 0) for at in assigned):
            return False
        other_ends = {at: end for at, end in ends.items() if at not in assigned}
        return not other_ends or await self.sink.may_finish(other_ends)

    async def _look_for_deleted(self) -> None:
        """Notify the sink if the next record was deleted: a log may report this only when a later record
        exists.
        """
        read_up_to = self.consumer.positions()
        for topic in self.topics if read_up_to else ():
            for at, first in (await self.log.beginning_offsets(topic)).items():
                if read_up_to.get(at, first) < first:
                    self.sink.deleted(
                        OffsetOutOfRangeError(f"{at} begins at {first}, and was read up to {read_up_to[at]}")
                    )
                    return


def _at(record: StoredRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def loop_time() -> float:
    """Return the time of the running loop, seconds."""
    return asyncio.get_running_loop().time()
