"""The sink of a plug-in passes it events, publishes its metrics, and stores its state and positions.

One batch, in this order:

1. records of open partitions are read, from the archive up to the first offset of the log, then from the log;
2. the plug-in has handled their events, in order within each partition;
3. its metrics, and the dead letters of records that it failed at, are on the log, in one append;
4. the group's positions are after the batch; a partition that was lost is dropped here;
5. positions and changed states are in the plug-in's file, in one transaction.

A kill between any two steps loses nothing. A plug-in with state goes on from the positions of 5, a plug-in
without state from those of 4. It handles the later events again with the same state, so it emits the same
metrics with the same ids, and they count once.

An event that fails is tried again, alone, with the state before it. After the last retry its record goes to
``dead-letters``, and the plug-in goes on with the next event. The failed event may leave the state half
changed, so that state is thrown away, and the earlier events of the batch are handled again too.
"""

import asyncio
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Final

from unstable_stream.errors import FencedError, OffsetOutOfRangeError, RecordsLostError
from unstable_stream.log.port import (
    Consumer,
    EventLog,
    Positions,
    Record,
    Start,
    StoredRecord,
    TopicPartition,
)
from unstable_stream.log.records import record_from_event
from unstable_stream.log_lines import get_logger
from unstable_stream.streams.consumer import is_processed, wait_for_stop
from unstable_stream.streams.dead_letters import DeadLetters
from unstable_stream.streams.plugins import Plugin
from unstable_stream.streams.plugins.backfill import Backfill
from unstable_stream.streams.plugins.state import PluginStates, Saved
from unstable_stream.streams.plugins.worker import Attempt, Failure, PluginWorker

__all__ = ["PluginCounters", "PluginSink", "plugin_group"]

_LONGEST_PAUSE_S: Final = 60.0

_log = get_logger(__name__)


@dataclass(slots=True)
class PluginCounters:
    """Counts of a host since its start."""

    handled: int = 0
    """Events that the plug-in handled without failure."""
    emitted: int = 0
    """Metrics published."""
    retried: int = 0
    """Attempts after a failure."""
    rejected: int = 0
    """Records set aside."""
    archived: int = 0
    """Records read from the archive."""
    position_ms: int = 0
    """Time of the last finished record, Unix milliseconds."""


def plugin_group(plugin: Plugin, run_id: str | None) -> str:
    """Return the consumer group of a plug-in. A group for one run differs from the group for all runs."""
    return plugin.source if run_id is None else f"{plugin.source}/{run_id}"


@dataclass(slots=True)
class _Partition:
    next_offset: int
    log_from: int | None
    """The archive is read up to this offset, then the log; ``None``: the log is read now."""


@dataclass(kw_only=True, eq=False)
class PluginSink:
    """The open partitions of one running plug-in."""

    log: EventLog
    plugin: Plugin
    run_id: str | None
    """The plug-in receives only events of this run; ``None``: of all runs."""
    consumer: Consumer
    """Reads and commits the group's positions."""
    worker: PluginWorker
    """The plug-in's thread, already started."""
    states: PluginStates | None
    """The plug-in's file of states; ``None``: it keeps no state. Closed with the sink."""
    backfill: Backfill
    """Reads the records that the log no longer has."""
    start: Start
    """The place to begin in partitions without a stored position."""
    forgotten: bool
    """True: ignore the committed position of a partition the first time that it is opened."""
    counters: PluginCounters
    """Updated while the sink works."""
    stop: asyncio.Event
    """Ends a pause before a retry."""
    drain: bool
    """True: after ``stop`` the sink goes on without pauses. False: it leaves its records unhandled."""
    max_records: int
    """The most records read from the archive at once."""

    def __post_init__(self) -> None:
        self._group = plugin_group(self.plugin, self.run_id)
        self._letters = DeadLetters(self._group, self.run_id)
        self._begun: set[TopicPartition] = set()
        self._open: dict[TopicPartition, _Partition] = {}

    # -- partitions ---------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """True while a partition is read from the archive."""
        return any(one.log_from is not None for one in self._open.values())

    def positions(self) -> Positions:
        """Return the next offset to handle, for every open partition."""
        return {at: one.next_offset for at, one in self._open.items()}

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        """Forget lost partitions; find the offset to go on from in new ones."""
        for lost in self._open.keys() - assigned:
            self._drop(lost)
        gained = assigned - self._open.keys()
        if not gained:
            return {}
        committed = await self.consumer.committed()
        stored = {at: await self._stored(at, committed) for at in sorted(gained)}
        begins = await self.backfill.begin(stored, self.start)
        self._open |= {at: _Partition(begin.offset, begin.log_from) for at, begin in begins.items()}
        self._begun |= begins.keys()
        # Store the beginnings at once. After a kill, a new look could find a later end, or a forgotten
        # position.
        fresh = {at: begin.offset for at, begin in begins.items() if stored[at] is None}
        if fresh:
            await self._store(fresh, {})
        # While the archive is read, the log's reader waits at the end: polling finds nothing and keeps
        # membership.
        return {at: begin.offset if begin.log_from is None else begin.end for at, begin in begins.items()}

    def deleted(self, error: OffsetOutOfRangeError) -> None:
        """Open all partitions again: retention was faster than the plug-in. All handled work is stored.

        Where the log lost what was handled, it stays handled, and the plug-in goes on from its position.
        """
        if isinstance(error, RecordsLostError):
            _log.error("the log lost records that were handled; they stay so", reason=str(error))
        else:
            _log.info("looking for deleted records in the archive", reason=str(error))
        self._open.clear()

    async def may_leave(self, elsewhere: Positions) -> bool:
        """Return true when other members have handled the rest."""
        return await is_processed(self.log, self._group, elsewhere)

    async def close(self) -> None:
        """Close the archive and the file of states."""
        self._open.clear()
        try:
            await self.backfill.release()
        finally:
            if self.states is not None:
                await self.worker.do(self.states.close)

    async def _stored(self, at: TopicPartition, committed: Positions) -> int | None:
        """Restore a partition's states and return its next offset; ``None`` if it was never read."""
        if self.forgotten and at not in self._begun:
            self.worker.restore(at, {})
            return None
        if self.states is None:
            return committed.get(at)
        saved = await self.worker.do(partial(self.states.load, at))
        self.worker.restore(at, {} if saved is None else saved.states)
        if saved is None and at in committed:
            _log.warning(
                "no state of this partition in the data directory: it is folded again from its beginning",
                partition=str(at),
                committed=committed[at],
            )
            return 0
        return None if saved is None else saved.next_offset

    def _drop(self, at: TopicPartition) -> None:
        self._open.pop(at, None)
        self.worker.forget(at)

    # -- records ------------------------------------------------------------------------------

    async def process(self, records: Sequence[StoredRecord], read_up_to: Positions) -> Positions:
        """Handle these records, and some archived records of each partition that still reads the archive.

        If ``stop`` is set in a pause before a retry, the remaining records stay unhandled, unless the sink
        drains: the loop reads on then, and later positions must not pass records that nobody handled.
        """
        await self._work(records)
        from_log: dict[TopicPartition, int] = {}
        for at in [at for at, one in self._open.items() if one.log_from is not None]:
            from_log |= await self._fill(at)
        return from_log

    async def settle(self, read_up_to: Positions) -> None:
        """Commit positions past offsets without a record, such as the markers of transactions."""
        behind = {
            at: read_up_to[at]
            for at, one in self._open.items()
            if one.log_from is None and one.next_offset < read_up_to.get(at, 0)
        }
        if behind:
            await self._store(behind, {})

    async def _fill(self, at: TopicPartition) -> Positions:
        """Handle some archived records. After the last one, return the offset at which the log goes on."""
        partition = self._open.get(at)
        if partition is None or partition.log_from is None:
            return {}
        log_from = partition.log_from
        records = await self.backfill.read(at, partition.next_offset, log_from, self.max_records)
        self.counters.archived += len(records)
        await self._work(records)
        if records or self.stop.is_set() or at not in self._open:
            return {}
        await self.backfill.release()
        partition.next_offset = log_from
        partition.log_from = await self.backfill.extend(at, log_from)
        if partition.log_from != log_from:
            return {}
        partition.log_from = None
        _log.info("going over from the archive to the log", partition=str(at), offset=log_from)
        return {at: log_from}

    async def _work(self, records: Sequence[StoredRecord]) -> None:
        pending = [record for record in records if self._is_next(record)]
        limit = len(pending)
        while pending:
            attempt = await self.worker.attempt(pending[:limit])
            if attempt.failure is None:
                await self._finish(pending[:limit], attempt)
            elif attempt.failure.index > 0:
                limit = attempt.failure.index  # first handle the records before it
                continue
            elif await self._insist(pending[0], attempt.failure):
                limit = 1
            else:
                return
            pending = [record for record in pending[limit:] if self._is_next(record)]
            limit = len(pending)

    def _is_next(self, record: StoredRecord) -> bool:
        partition = self._open.get(TopicPartition(record.topic, record.partition))
        if partition is None or record.offset < partition.next_offset:
            return False  # the partition was lost after the read, or the record was read a second time
        return partition.log_from is None or record.offset < partition.log_from

    async def _insist(self, record: StoredRecord, failure: Failure) -> bool:
        """Try again, then set the record aside; ``False``: ``stop`` came first, and nothing drains."""
        for number in range(0 if failure.unreadable else self.plugin.retries):
            pause_s = min(self.plugin.backoff_s * 2**number, _LONGEST_PAUSE_S)
            _log.warning(
                "plug-in failed, trying again",
                plugin=self.plugin.name,
                record=str(record),
                reason=failure.reason,
                pause_s=pause_s,
            )
            if await wait_for_stop(self.stop, pause_s) and not self.drain:
                return False
            attempt = await self.worker.attempt([record])
            self.counters.retried += 1
            if attempt.failure is None:
                await self._finish([record], attempt)
                return True
            failure = attempt.failure
        self.counters.rejected += 1
        await self._finish([record], Attempt((), 0, {}, None), self._letters.about(record, failure.reason))
        return True

    async def _finish(
        self, records: Sequence[StoredRecord], attempt: Attempt, letters: Sequence[Record] = ()
    ) -> None:
        """Publish the results of a batch, then store its positions and states (steps 3 to 5)."""
        outputs = [*map(record_from_event, attempt.metrics), *letters]
        if outputs:
            await self.log.append(outputs)
        # The last record of each partition decides its position.
        positions = {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}
        await self._store(positions, attempt.changed)
        self.counters.handled += attempt.handled
        self.counters.emitted += len(attempt.metrics)
        self.counters.position_ms = records[-1].timestamp_ms

    async def _store(
        self, positions: Positions, changed: Mapping[TopicPartition, Mapping[str, bytes]]
    ) -> None:
        kept = await self._commit(positions)
        for at, offset in kept.items():
            self._open[at].next_offset = offset
        if self.states is not None and kept:
            saved = {at: Saved(offset, changed.get(at, {})) for at, offset in kept.items()}
            await self.worker.do(partial(self.states.save, saved))

    async def _commit(self, positions: Positions) -> dict[TopicPartition, int]:
        """Commit to the group; drop the partitions that another member has now, and return the others."""
        try:
            await self.consumer.commit(positions)
        except FencedError as error:
            if len(positions) == 1:
                (at,) = positions
                _log.info("partition taken over by another member", partition=str(at), reason=str(error))
                self._drop(at)
                return {}
            kept: dict[TopicPartition, int] = {}
            for at, offset in positions.items():
                kept |= await self._commit({at: offset})
            return kept
        return dict(positions)
