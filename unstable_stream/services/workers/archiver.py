"""The archiver writes every topic into the archive, in batches, with the archive's own positions.

One batch, in this order:

1. poll: gather records, at most a batch, for at most the flush interval;
2. prepare: decode records and build columns, without locking the archive;
3. publish a dead letter for each record that cannot be decoded;
4. store rows and positions in one transaction of the archive, holding its write lock;
5. commit the positions to the archive's group, so that its lag can be measured.

Steps 1 to 3 of the next batch run during step 4 of this one.

After a kill before the end of 4, the same records are read again; dead letters published twice have the same
event id and count once. The archiver goes on at the archive's positions for this log, never at the group's.
So an archive that was deleted or restored is filled again from the log, and a new log is read from its start.
Where the log ends before such a position, it has lost records that were archived: the archiver stops.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

from unstable_stream.archive import ArchiveWriter, Written
from unstable_stream.console import get_logger
from unstable_stream.errors import ArchiveAheadError, ArchiveBusyError, FencedError, OffsetOutOfRangeError
from unstable_stream.log.cpu_time import spending
from unstable_stream.log.port import Consumer, EventLog, Positions, Record, StoredRecord, TopicPartition
from unstable_stream.log.reading import any_record
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.log.topics import load_topics
from unstable_stream.services.streams.consumer import Pace, run_consumer, wait_for_stop
from unstable_stream.services.streams.dead_letters import DeadLetters
from unstable_stream.services.workers.retention import ARCHIVER_GROUP, Retention

T = TypeVar("T")

_TOPICS_S: Final = 5.0
_MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Bytes of record values. A batch takes about four times this in memory while it is built."""
_READERS_TURN_S: Final = 0.03
_PASS_OVER_S: Final = 5.0
"""Seconds between two times that the archive's own positions move past offsets without records. If the
archiver is killed before, and retention deletes them before it comes back, they count as missing records.
"""

_log = get_logger(__name__)


async def run_archiver(
    log: EventLog,
    archive_path: ArchiveAddress,
    *,
    topics: Sequence[str] | None = None,
    stop: asyncio.Event,
    flush_interval_s: float | None = None,
    max_batch: int = 20_000,
    on_flush: Callable[[Written], None] = lambda written: None,
    retention: Retention | None = None,
) -> None:
    """Archive until ``stop`` is set, then archive everything up to the ends of the topics at that moment.

    Args:
        log: the event log.
        archive_path: the DuckDB file, or the address of a shared archive; made if it does not exist.
        topics: the topics to archive; by default our declared topics that the log has, since a cluster may
            have other topics. If there is none yet, it waits for one.
        stop: ends the service.
        flush_interval_s: the most seconds that records wait before they are stored. By default 1 for a file,
            and 5 for a shared archive, where each time leaves a file for every table.
        max_batch: the most records of one transaction.
        on_flush: called with the result of each transaction.
        retention: deletes what expires from a log that does not do so itself; by default every ten minutes.

    Raises:
        ArchiveError: the archive cannot be written, and nothing of the current batch was stored; or the log
            has lost records that were archived.
    """
    names = await _declared_topics(log, stop) if topics is None else list(topics)
    if not names:
        return
    log_id = await log.log_id()
    writer = await _when_free(lambda: ArchiveWriter(archive_path, log_id), stop)
    flush_interval_s = writer.flush_interval_s if flush_interval_s is None else flush_interval_s
    try:
        # Each archive has its own group: two archives of one cluster must not share its partitions.
        consumer = await log.consumer(names, f"{ARCHIVER_GROUP}-{writer.archive_id}")
        sink = ArchiveSink(log, consumer, writer, stop, on_flush, retention or Retention(log))
        pace = Pace(
            max_batch,
            _MAX_BATCH_BYTES,
            wait_s=flush_interval_s,
            # Even a small transaction costs about 50 ms.
            gather_s=flush_interval_s,
        )
        await run_consumer(log, names, consumer, sink, stop=stop, drain=True, pace=pace)
    finally:
        try:
            await asyncio.to_thread(writer.close)
        except ArchiveBusyError as error:
            # Everything is stored; only the write-ahead log stays a separate file until the next opening.
            _log.warning("archive left with its write-ahead log", reason=str(error))


@dataclass(eq=False)
class ArchiveSink:
    """Writes records into the archive; it stores one batch while the next is read."""

    log: EventLog
    consumer: Consumer
    """Commits the positions."""
    writer: ArchiveWriter
    stop: asyncio.Event
    """When it is set, the sink no longer waits for an archive that another process has locked."""
    on_flush: Callable[[Written], None]
    """Called with the result of each transaction."""
    retention: Retention
    busy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._letters = DeadLetters(ARCHIVER_GROUP, log_id=self.writer.log_id)
        self._open: dict[TopicPartition, int] = {}
        """The first offset read, by partition."""
        self._storing: asyncio.Task[Written] | None = None
        self._storing_up_to: Positions = {}
        self._committed: dict[TopicPartition, int] = {}
        self._pass_over_at = 0.0

    def positions(self) -> Positions:
        """Return the next offset to archive, for every open partition."""
        archived = self.writer.positions
        return {at: max(start, archived.get(at, 0)) for at, start in self._open.items()}

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        """Go on with new partitions at the archive's positions, after comparing it with the log.

        Raises:
            ArchiveError: the log has lost records that were archived.
        """
        self._open = {at: start for at, start in self._open.items() if at in assigned}
        gained = assigned - self._open.keys()
        if not gained:
            return {}
        await self._stored()
        # Of a shared archive others wrote the partitions until now, and perhaps do so for another moment.
        await _when_free(self.writer.refresh, self.stop)
        starts = await _starts_of(self.log, self.writer, gained, self.stop)
        for at in gained:
            self._committed.pop(at, None)
        # The position at which the log may let a member begin again: never beyond the archived records.
        await self._commit(starts)
        self._open |= starts
        return starts

    async def process(self, records: Sequence[StoredRecord], read_up_to: Positions) -> None:
        """Prepare a batch, publish its dead letters and begin to store it (steps 2 to 4)."""
        # What was committed is stored.
        await self.retention.apply(self._committed)
        if not records:
            return
        up_to = {(at.topic, at.partition): offset for at, offset in read_up_to.items()}
        prepared = await _when_free(lambda: self.writer.prepare(records, up_to), self.stop)
        letters: list[Record] = []
        for record, error in prepared.batch.rejected:
            where = f"{record.topic}[{record.partition}]@{record.offset}"
            letters += self._letters.about(record, f"{type(error).__name__}: {where}: {error}")
        if letters:
            await self.log.append(letters)
        if await self._stored():
            # Pause between batches, so that readers, which try every 10 ms, get the lock.
            await asyncio.sleep(_READERS_TURN_S)
        store = _when_free(lambda: self.writer.store(prepared), self.stop)
        self._storing, self._storing_up_to = asyncio.create_task(store), dict(read_up_to)

    async def flush(self, read_up_to: Positions) -> None:
        """Wait until all is stored, then commit positions past offsets without records."""
        await self._stored()
        await self._commit(read_up_to)
        archived = self.writer.positions
        passed = {
            (at.topic, at.partition): offset
            for at, offset in read_up_to.items()
            if archived.get(at, 0) < offset
        }
        if passed and (self.stop.is_set() or time.monotonic() >= self._pass_over_at):
            await _when_free(lambda: self.writer.pass_over(passed), self.stop)
            self._pass_over_at = time.monotonic() + _PASS_OVER_S

    def deleted(self, error: OffsetOutOfRangeError) -> None:
        """Go on with the records that are left; the archive is compared with the log again."""
        _log.error("records to be archived next are not in the log", reason=str(error))
        self._open.clear()

    async def may_finish(self, other_ends: Positions) -> bool:
        """Return true if the rest is archived; if not, wait: others archive it, or its partitions will be
        assigned here.
        """
        await self._stored()
        await _when_free(self.writer.refresh, self.stop)
        archived = {TopicPartition(*where): at for where, at in self.writer.positions.items()}
        behind = {at: end for at, end in other_ends.items() if archived.get(at, 0) < end}
        return not behind or not await any_record(self.log, archived, behind)

    async def close(self) -> None:
        """Wait until no thread works on the archive any more."""
        if self._storing is not None:
            ((storing,), _) = await asyncio.wait([self._storing])
            if not storing.cancelled() and (error := storing.exception()) is not None:
                _log.error("the last batch was not archived: the log has it", reason=str(error))

    async def _stored(self) -> bool:
        """Wait until a batch in progress is stored, then commit and report it (step 5)."""
        if self._storing is None:
            return False
        # Shielded: a cancelled wait must not leave a working thread that close() does not know of.
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


async def _declared_topics(log: EventLog, stop: asyncio.Event) -> list[str]:
    """Return the log's topics that we declare; wait until there is one, or ``stop`` is set."""
    declared = load_topics().keys()
    while not (found := declared & (await log.topics()).keys()) and not stop.is_set():
        _log.warning("the log has none of our topics yet; make them with unstable-stream topics create")
        await wait_for_stop(stop, _TOPICS_S)
    return sorted(found)


async def _starts_of(
    log: EventLog, writer: ArchiveWriter, partitions: Collection[TopicPartition], stop: asyncio.Event
) -> Positions:
    """Return where to go on with these partitions; note in the archive what was deleted before.

    Raises:
        ArchiveAheadError: the log has lost records that were archived.
    """
    archived = writer.positions
    starts: dict[TopicPartition, int] = {}
    lost: list[str] = []
    for topic in sorted({at.topic for at in partitions}):
        beginnings, ends = await log.beginning_offsets(topic), await log.end_offsets(topic)
        for at in sorted(beginnings.keys() & set(partitions)):
            position = archived.get(at, 0)
            starts[at] = max(beginnings[at], position)
            if position > ends[at]:
                lost.append(f"{at}@{position - 1} is archived, and the log ends before {at}@{ends[at]}")
    if lost:
        more = f", and so in {len(lost) - 1} partitions more" if lost[1:] else ""
        raise ArchiveAheadError(
            f"the log {writer.log_id} has lost records that the archive {writer.path} has: {lost[0]}{more}. "
            "Restore the log from a backup; or fill a new archive from what it has now, with unstable-stream "
            "archive --rebuild, or another address if it is a shared one"
        )
    before = {at: archived.get(at, 0) for at in starts}
    missing = {(*at,): (before[at], begin) for at, begin in starts.items() if before[at] < begin}
    if missing:
        await _when_free(functools.partial(writer.note_missing, missing), stop)
    for where, (first, begin) in sorted(missing.items()):
        # Before the archive was made, deleting was nothing to worry about.
        report = _log.error if first else _log.warning
        report(
            "records were deleted before they could be archived: noted in missing_records",
            partition=str(TopicPartition(*where)),
            offsets=f"{first} to {begin - 1}",
        )
    return starts


async def _when_free(work: Callable[[], T], stop: asyncio.Event) -> T:
    """Do ``work`` on the archive in a thread; try again while another process has locked the archive, or its
    store is away.
    """

    def counted() -> T:
        with spending("archiver"):
            return work()

    while True:
        try:
            return await asyncio.to_thread(counted)
        except ArchiveBusyError as error:
            if stop.is_set():
                raise  # the records stay in the log; the next start archives them
            _log.warning("the archive cannot be used now, trying again", reason=str(error))
