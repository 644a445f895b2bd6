"""The archiver: every topic into the archive, in batches, with the archive's own positions.

One batch, in this order:

1. poll: gather what is there, at most a batch, for at most the flush interval;
2. prepare: decode and build columns, without holding the archive;
3. publish a dead letter for each record that cannot be decoded;
4. store rows and positions in one transaction of the archive, holding its write lock;
5. commit the positions to the archive's group, for whoever watches its lag.

1 to 3 of the next batch go on while 4 of this one is under way.

A kill before 4 is complete reads the same records again; dead letters published twice have the same event
id and count once. Where to go on is what the archive says of this very log, never what the group says: an
archive that was deleted or restored is filled again from the log, and a log that is new to it from its start.
"""

import asyncio
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import structlog

from unstable_stream.archive import ArchiveWriter, Written
from unstable_stream.errors import ArchiveBusyError, FencedError, OffsetOutOfRangeError
from unstable_stream.log.port import Consumer, EventLog, Positions, Record, StoredRecord, TopicPartition
from unstable_stream.streams.consumer import Pace, run_consumer
from unstable_stream.streams.dead_letters import DeadLetters
from unstable_stream.workers.archiver_start import attribute, declared_topics, starts_of, when_free

__all__ = ["GROUP", "ArchiveSink", "run_archiver"]

GROUP: Final = "archiver"

_MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Of record values. A batch takes about four times this in memory while it is built."""
_PATIENCE_S: Final = 30.0
"""After a stop, how long nothing may come before the end: a group or a cluster may be finding itself anew."""
_READERS_TURN_S: Final = 0.03

_log = structlog.get_logger(__name__)


async def run_archiver(
    log: EventLog,
    archive_path: Path | str,
    *,
    topics: Sequence[str] | None = None,
    stop: asyncio.Event,
    flush_interval_s: float = 1.0,
    max_batch: int = 20_000,
    on_flush: Callable[[Written], None] = lambda written: None,
) -> None:
    """Archive until ``stop`` is set, then archive everything up to the ends the topics have by then.

    Args:
        log: the event log.
        archive_path: the DuckDB file; created if it does not exist.
        topics: what to archive; by default the topics declared for us that the log has: a cluster may have
            others'. If it has none yet, waits for them.
        stop: ends the service.
        flush_interval_s: how long records may wait before they are stored.
        max_batch: most records of one transaction.
        on_flush: told what each transaction stored.

    Raises:
        ArchiveError: the archive cannot be written; nothing of the batch in hand was stored. Or it is ahead
            of the log: a topic was deleted and made again.
        LogUnavailableError: after ``stop`` the log did not give what it holds.
    """
    names = await declared_topics(log, stop) if topics is None else list(topics)
    if not names:
        return
    log_id = await log.log_id()
    writer = await when_free(lambda: ArchiveWriter(archive_path, log_id), stop)
    try:
        if writer.unattributed:
            await attribute(log, names, writer, stop)
        # A group for each archive: two archives of one cluster must not share its partitions out.
        consumer = await log.consumer(names, f"{GROUP}-{writer.archive_id}")
        sink = ArchiveSink(log, consumer, writer, stop, on_flush)
        pace = Pace(
            max_batch,
            _MAX_BATCH_BYTES,
            wait_s=flush_interval_s,
            # A transaction costs some 50 ms however small it is.
            gather_s=flush_interval_s,
            patience_s=_PATIENCE_S,
        )
        await run_consumer(log, names, consumer, sink, stop=stop, drain=True, pace=pace)
    finally:
        try:
            await asyncio.to_thread(writer.close)
        except ArchiveBusyError as error:
            # All is stored; only the write-ahead log stays a file of its own until the next opening.
            _log.warning("archive left with its write-ahead log", reason=str(error))


@dataclass(eq=False)
class ArchiveSink:
    """Writes what is read into the archive; the batch before is stored while the next is read."""

    log: EventLog
    consumer: Consumer
    """Commits the positions."""
    writer: ArchiveWriter
    stop: asyncio.Event
    """Once it is set, an archive that others hold is waited for no more."""
    on_flush: Callable[[Written], None]
    """Told what each transaction stored."""
    busy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._letters = DeadLetters(GROUP, log_id=self.writer.log_id)
        self._open: dict[TopicPartition, int] = {}
        """Where reading of each partition began."""
        self._storing: asyncio.Task[Written] | None = None
        self._storing_up_to: Positions = {}
        self._committed: dict[TopicPartition, int] = {}

    def positions(self) -> Positions:
        """Return the next offset to be archived of every open partition."""
        archived = self.writer.positions
        return {at: max(start, archived.get(at, 0)) for at, start in self._open.items()}

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        """Go on with gained partitions where the archive says.

        Raises:
            ArchiveError: the log ends before that.
        """
        gained = assigned - self._open.keys()
        self._open = {at: start for at, start in self._open.items() if at in assigned}
        if not gained:
            return {}
        await self._stored()
        starts = await starts_of(self.log, self.writer, gained)
        for at in gained:
            self._committed.pop(at, None)
        # Where the log may make a member begin once more: never beyond what is archived.
        await self._commit(starts)
        self._open |= starts
        return starts

    async def process(self, records: Sequence[StoredRecord], read_up_to: Positions) -> Positions:
        """Prepare a batch, publish its dead letters and begin to store it (steps 2 to 4)."""
        if not records:
            return {}
        prepared = await when_free(lambda: self.writer.prepare(records), self.stop)
        letters: list[Record] = []
        for record, error in prepared.batch.rejected:
            where = f"{record.topic}[{record.partition}]@{record.offset}"
            letters += self._letters.about(record, f"{type(error).__name__}: {where}: {error}")
        if letters:
            await self.log.append(letters)
        if await self._stored():
            # Batch after batch: let readers, who look every 10 ms, have their turn.
            await asyncio.sleep(_READERS_TURN_S)
        store = when_free(lambda: self.writer.store(prepared), self.stop)
        self._storing, self._storing_up_to = asyncio.create_task(store), dict(read_up_to)
        return {}

    async def settle(self, read_up_to: Positions) -> None:
        """Wait until all is stored; the positions may have moved on over what holds no records."""
        await self._stored()
        await self._commit(read_up_to)

    def deleted(self, error: OffsetOutOfRangeError) -> None:
        """Go on with what is left."""
        _log.error("records were deleted before they could be archived", reason=str(error))
        self._open.clear()

    async def may_leave(self, ends: Positions, unassigned_s: float) -> bool:
        """Refuse: nobody else is to write this archive, so the partitions will come."""
        return False

    async def close(self) -> None:
        """Wait until no thread is at work on the archive any more."""
        if self._storing is not None:
            await asyncio.wait([self._storing])

    async def _stored(self) -> bool:
        """Wait for the batch that is being stored, if there is one, and tell of it (step 5)."""
        if self._storing is None:
            return False
        # Shielded: a cancelled wait must not leave a thread at work that close() knows nothing of.
        written = await asyncio.shield(self._storing)
        self._storing = None
        self.on_flush(written)
        await self._commit(self._storing_up_to)
        return True

    async def _commit(self, positions: Positions) -> None:
        moved = {where: at for where, at in positions.items() if self._committed.get(where) != at}
        if not moved:
            return
        try:
            await self.consumer.commit(moved)
        except FencedError as error:
            # Another archiver has a partition now. The archive has its own positions; nothing is lost.
            _log.info("positions not committed to the group", reason=str(error))
        else:
            self._committed |= moved
