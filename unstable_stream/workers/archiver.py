"""The archiver: every topic into the archive, in batches, with the archive's own positions.

One batch, in this order:

1. poll: gather what is there, at most a batch, for at most the flush interval;
2. prepare: decode and build columns, without holding the archive;
3. publish a dead letter for each record that cannot be decoded;
4. store rows and positions in one transaction of the archive, holding its write lock;
5. commit the positions to the archive's group, for whoever watches its lag.

With a backlog, 1 to 3 of the next batch go on while 4 of this one is under way.

A kill before 4 is complete reads the same records again; dead letters published twice have the same event
id and count once. Where to go on is what the archive says of this very log, never what the group says: an
archive that was deleted or restored is filled again from the log, and a log that is new to it from its start.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import structlog

from unstable_stream.archive import LATEST_MS, ArchivedRecord, ArchiveWriter, Written
from unstable_stream.errors import (
    ArchiveBusyError,
    EventError,
    EventLogError,
    FencedError,
    LogUnavailableError,
    OffsetOutOfRangeError,
)
from unstable_stream.events import RecordRejected, event_id
from unstable_stream.log.port import Consumer, EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.log.records import record_from_event
from unstable_stream.workers.archiver_start import attribute, declared_topics, starts_of, wait, when_free

__all__ = ["GROUP", "run_archiver"]

T = TypeVar("T")

GROUP: Final = "archiver"

_CHUNK_RECORDS: Final = 1000
_MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Of record values. A batch takes about four times this in memory while it is built."""
_DRAIN_S: Final = 0.25
_PATIENCE_S: Final = 30.0
"""After a stop, how long nothing may come before the end: a group or a cluster may be finding itself anew."""
_READERS_TURN_S: Final = 0.03
_DEAD_LETTER_BYTES: Final = 8 * 1024 * 1024
"""A longer value is cut in its dead letter: base64 and the topic's limit leave room for no more."""

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
        archiver = _Archiver(log, consumer, writer, stop, flush_interval_s, max_batch, on_flush)
        try:
            while not stop.is_set():
                await archiver.flush(flush_interval_s)
            ends: dict[TopicPartition, int] = {}
            for name in names:
                ends.update(await log.end_offsets(name))
            await archiver.drain(ends)
        finally:
            await archiver.abandon()
            await consumer.close()
    finally:
        try:
            await asyncio.to_thread(writer.close)
        except ArchiveBusyError as error:
            # All is stored; only the write-ahead log stays a file of its own until the next opening.
            _log.warning("archive left with its write-ahead log", reason=str(error))


class _Archiver:
    def __init__(
        self,
        log: EventLog,
        consumer: Consumer,
        writer: ArchiveWriter,
        stop: asyncio.Event,
        flush_interval_s: float,
        max_batch: int,
        on_flush: Callable[[Written], None],
    ) -> None:
        self._event_log = log
        self._consumer = consumer
        self._writer = writer
        self._stop = stop
        self._flush_interval_s = flush_interval_s
        self._max_batch = max_batch
        self._on_flush = on_flush
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._storing: asyncio.Task[Written] | None = None
        self._storing_up_to: Positions = {}
        self._committed: dict[TopicPartition, int] = {}

    async def drain(self, ends: Positions) -> None:
        """Archive the partitions read here up to ``ends``."""
        clock = asyncio.get_running_loop().time
        progress = clock()
        while behind := self._behind(ends):
            if await self.flush(_DRAIN_S):
                progress = clock()
            elif clock() - progress > _PATIENCE_S:
                where, position = next(iter(behind.items()))
                raise LogUnavailableError(
                    f"{where} was archived up to {position} of {ends[where]}, and nothing came for "
                    f"{_PATIENCE_S:g} s. Nothing is lost: archive the rest with unstable-stream archive"
                )
        await self.settle()
        await self._commit(self._consumer.positions())

    def _behind(self, ends: Positions) -> Positions:
        """Return the positions short of their ends; without an assignment, all."""
        positions = self._consumer.positions() if self._assigned else dict.fromkeys(ends, 0)
        return {where: position for where, position in positions.items() if position < ends.get(where, 0)}

    async def flush(self, wait_s: float) -> bool:
        """Archive what is there, waiting ``wait_s`` for the first record; return whether there was any."""
        assigned_before = self._assigned
        records, backlog = await self._gather(wait_s)
        if not records:
            await self.settle()
            # All that was read is stored, and the positions may have moved on over what holds no records.
            await self._commit(self._consumer.positions())
            return self._assigned != assigned_before
        up_to = dict(self._consumer.positions())
        prepared = await when_free(lambda: self._writer.prepare(records), self._stop)
        letters = [
            _dead_letter(self._writer.log_id, reject.record, reject.error)
            for reject in prepared.batch.rejected
            # What is on dead-letters already is where it belongs; a letter about it could go round for ever.
            if reject.record.topic != RecordRejected.TOPIC
        ]
        if letters:
            await self._event_log.append([record_from_event(letter) for letter in letters])
        if await self.settle():
            # Batch after batch: let readers, who look every 10 ms, have their turn.
            await asyncio.sleep(_READERS_TURN_S)
        store = when_free(lambda: self._writer.store(prepared), self._stop)
        self._storing, self._storing_up_to = asyncio.create_task(store), up_to
        if not backlog:
            await self.settle()
        return True

    async def settle(self) -> bool:
        """Wait for the batch that is being stored, if there is one, and tell of it (step 5)."""
        if self._storing is None:
            return False
        # Shielded: a cancelled wait must not leave a thread at work that abandon() knows nothing of.
        written = await asyncio.shield(self._storing)
        self._storing = None
        self._on_flush(written)
        await self._commit(self._storing_up_to)
        return True

    async def _commit(self, positions: Positions) -> None:
        moved = {where: at for where, at in positions.items() if self._committed.get(where) != at}
        if not moved:
            return
        try:
            await self._consumer.commit(moved)
        except FencedError as error:
            # Another archiver has a partition now. The archive has its own positions; nothing is lost.
            _log.info("positions not committed to the group", reason=str(error))
        else:
            self._committed |= moved

    async def abandon(self) -> None:
        """Wait until no thread is at work on the archive any more."""
        if self._storing is not None:
            await asyncio.wait([self._storing])

    async def _gather(self, wait_s: float) -> tuple[list[StoredRecord], bool]:
        """Return at most a batch of records, and whether there are probably more."""
        records = await self._poll(self._max_batch, wait_s)
        if records and len(records) < min(_CHUNK_RECORDS, self._max_batch) and not self._stop.is_set():
            # No backlog: let records gather, since a transaction costs some 50 ms however small it is.
            await wait(self._stop, self._flush_interval_s)
        size = sum(len(record.value) for record in records)
        while records and len(records) < self._max_batch and size < _MAX_BATCH_BYTES:
            more = await self._poll(self._max_batch - len(records), 0.0)
            if not more:
                return records, False
            records += more
            size += sum(len(record.value) for record in more)
        return records, bool(records)

    async def _poll(self, max_records: int, timeout_s: float) -> list[StoredRecord]:
        try:
            records = await self._consumer.poll(min(max_records, _CHUNK_RECORDS), timeout_s)
        except OffsetOutOfRangeError as error:
            _log.error("records were deleted before they could be archived", reason=str(error))
            self._assigned = frozenset()
            records = []
        assigned = self._consumer.assignment()
        if assigned != self._assigned:
            gained = assigned - self._assigned
            # What came from the gained partitions came from the group's positions: read it again.
            records = [r for r in records if TopicPartition(r.topic, r.partition) not in gained]
            starts = await starts_of(self._event_log, self._writer, gained)
            try:
                await self._consumer.seek(starts)
                # Where the log may make a member begin once more: never beyond what is archived.
                await self._consumer.commit(starts)
            except EventLogError as error:
                _log.info("partitions moved on before they were read", reason=str(error))
            else:
                self._assigned = assigned
                self._committed |= starts
        return records


def _dead_letter(log_id: str, record: ArchivedRecord, error: EventError) -> RecordRejected:
    where = f"{record.topic}[{record.partition}]@{record.offset}"
    reason = f"{type(error).__name__}: {where}: {error}"
    _log.warning("record rejected", record=where, reason=reason)
    if len(record.value) > _DEAD_LETTER_BYTES:
        reason += f" (cut from {len(record.value)} to {_DEAD_LETTER_BYTES} bytes; whole in the table events)"
    return RecordRejected(
        # With the log: the same position of another one is another record.
        event_id=event_id(
            "", "record-rejected", GROUP, log_id, record.topic, record.partition, record.offset
        ),
        run_id="",
        # An absurd time may be what is wrong with the record.
        occurred_at_ms=record.timestamp_ms if 0 <= record.timestamp_ms <= LATEST_MS else 0,
        consumer=GROUP,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        reason=reason,
        record_key=record.key,
        record_value=record.value[:_DEAD_LETTER_BYTES],
        record_headers=dict(record.headers),
        record_timestamp_ms=record.timestamp_ms,
    )
