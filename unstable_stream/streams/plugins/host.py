"""The host of a plug-in consumer: a process and a group of its own, so that it never holds back a run.

One batch, in this order:

1. ``polled``: records of partitions that are this host's, from the archive below what the log still has, from
   the log above;
2. ``handled``: the plug-in has been given their events, in order within each partition;
3. ``published``: its metrics, and the dead letters of what it failed at, are on the log, in one append;
4. ``committed``: the group's positions are after the batch; a partition that was taken away is dropped here;
5. ``saved``: positions and changed states are in the plug-in's file, in one transaction.

A kill between any two loses nothing: a plug-in with state goes on from 5, one without from 4. What was
handled since then is handled again with the state as it was, so it emits the same metrics under the same ids,
and they count once.

An event that fails is tried again, alone, with the state as it was before it. After the last retry its record
goes to ``dead-letters`` and the plug-in goes on with the next. Events before it in its batch are handled
again too: the state it may have left half changed is thrown away.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from unstable_stream.errors import FencedError, OffsetOutOfRangeError, UnknownTopicError
from unstable_stream.events import Event, Metrics, RecordRejected, event_id
from unstable_stream.log.port import Consumer, EventLog, Positions, Start, StoredRecord, TopicPartition
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.streams.plugins import Plugin
from unstable_stream.streams.plugins.backfill import Backfill
from unstable_stream.streams.plugins.state import PluginStates, Saved
from unstable_stream.streams.plugins.worker import Attempt, Failure, PluginWorker

__all__ = ["PluginCounters", "plugin_group", "run_plugin"]

_IDLE_S: Final = 0.5
"""How long a poll waits for the first record: the longest a stop goes unnoticed."""
_LONGEST_PAUSE_S: Final = 60.0
_DEAD_LETTER_BYTES: Final = 8 * 1024 * 1024
"""A longer value is cut in its dead letter: base64 and the limit of the topic leave room for no more."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class PluginCounters:
    """What a host has done since it started."""

    handled: int = 0
    """Events the plug-in was given and did not fail at."""
    emitted: int = 0
    """Metrics published."""
    retried: int = 0
    """Attempts after a failure."""
    rejected: int = 0
    """Records set aside."""
    archived: int = 0
    """Records read from the archive."""
    position_ms: int = 0
    """Time of the last record that is done, Unix milliseconds."""


def plugin_group(plugin: Plugin, run_id: str | None) -> str:
    """Return the consumer group of a plug-in; with a run it is another one than for all runs."""
    return plugin.source if run_id is None else f"{plugin.source}/{run_id}"


async def run_plugin(
    log: EventLog,
    plugin: Plugin,
    data: DataDir,
    *,
    stop: asyncio.Event,
    start: Start = "beginning",
    run_id: str | None = None,
    until_end: bool = False,
    reset: bool = False,
    max_records: int = 1000,
    counters: PluginCounters | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> None:
    """Serve a plug-in until ``stop`` is set, or until it has seen all there is.

    Args:
        log: the event log.
        plugin: what to run.
        data: where the archive is, and the file of states.
        stop: ends the host after the batch in hand.
        start: where to begin in partitions it has never read; elsewhere it goes on where it was.
        run_id: the only run whose events it is given; ``None``: all.
        until_end: end when the ends that the topics have now are reached.
        reset: forget positions and states first.
        max_records: most records in one batch.
        counters: updated as the host goes.
        on_step: told the name of each step as it is reached.

    Raises:
        PluginError: the plug-in does not start, or its state cannot be kept.
        UnknownTopicError: the log has no such topic.
    """
    await _ensure_topics(log, plugin)
    group = plugin_group(plugin, run_id)
    log_id = await log.log_id()
    worker = PluginWorker(plugin, run_id)
    backfill = Backfill(log, log_id, data.archive)
    try:
        await worker.start()
        states: PluginStates | None = None
        if plugin.state is not None:
            path = data.root / "plugins" / f"{plugin.name}.sqlite"
            states = await worker.do(lambda: PluginStates(path, log_id, group))
            if reset:
                await worker.do(states.forget)
        consumer = await log.consumer(plugin.topics, group, "beginning")
        try:
            host = _Host(
                log=log,
                plugin=plugin,
                run_id=run_id,
                consumer=consumer,
                worker=worker,
                states=states,
                backfill=backfill,
                start=start,
                forgotten=reset,
                counters=counters or PluginCounters(),
                stop=stop,
                on_step=on_step,
            )
            await host.serve(max_records, until_end=until_end)
        finally:
            await consumer.close()
            await backfill.release()
            if states is not None:
                await worker.do(states.close)
    finally:
        await worker.close()


async def _ensure_topics(log: EventLog, plugin: Plugin) -> None:
    specs = load_topics()
    there = await log.topics()
    needed = {*plugin.topics, Metrics.TOPIC, RecordRejected.TOPIC} - there.keys()
    if unknown := sorted(needed - specs.keys()):
        raise UnknownTopicError(
            f"plug-in {plugin.name!r}: no topic {unknown[0]!r} on this log; it has {', '.join(sorted(there))}"
        )
    if needed:
        await log.create_topics([specs[name] for name in sorted(needed)])


@dataclass(slots=True)
class _Partition:
    next_offset: int
    log_from: int | None
    """The archive is being read up to here, then comes the log; ``None``: the log is being read."""


class _Host:
    def __init__(
        self,
        *,
        log: EventLog,
        plugin: Plugin,
        run_id: str | None,
        consumer: Consumer,
        worker: PluginWorker,
        states: PluginStates | None,
        backfill: Backfill,
        start: Start,
        forgotten: bool,
        counters: PluginCounters,
        stop: asyncio.Event,
        on_step: Callable[[str], None],
    ) -> None:
        """``forgotten``: the group's committed position of a partition does not count the first time."""
        self._event_log = log
        self._plugin = plugin
        self._run_id = run_id
        self._group = plugin_group(plugin, run_id)
        self._consumer = consumer
        self._worker = worker
        self._states = states
        self._backfill = backfill
        self._start = start
        self._forgotten = forgotten
        self._begun: set[TopicPartition] = set()
        self._counters = counters
        self._stop = stop
        self._on_step = on_step
        self._partitions: dict[TopicPartition, _Partition] = {}

    async def serve(self, max_records: int, *, until_end: bool) -> None:
        ends: dict[TopicPartition, int] = {}
        if until_end:
            for topic in self._plugin.topics:
                ends.update(await self._event_log.end_offsets(topic))
        while not self._stop.is_set():
            records = await self._poll(max_records)
            gained = await self._follow_assignment()
            # What came from a gained partition came before it was told where to go on: it comes again.
            await self._work([r for r in records if TopicPartition(r.topic, r.partition) not in gained])
            for where in [where for where, one in self._partitions.items() if one.log_from is not None]:
                await self._fill(where, max_records)
            if not records and not gained:
                await self._settle()
            if until_end:
                if await self._has_reached(ends):
                    return
                if not records:
                    await self._drop_deleted()

    # -- reading ------------------------------------------------------------------------------

    async def _poll(self, max_records: int) -> list[StoredRecord]:
        filling = any(one.log_from is not None for one in self._partitions.values())
        try:
            return await self._consumer.poll(max_records, 0.0 if filling else _IDLE_S)
        except OffsetOutOfRangeError as error:
            # Retention was faster than the plug-in. All it has handled is saved: begin anew everywhere.
            _log.info("looking for deleted records in the archive", reason=str(error))
            self._partitions.clear()
            return []

    async def _follow_assignment(self) -> set[TopicPartition]:
        """Forget partitions that were taken away; find where to go on in those that were given."""
        assigned = self._consumer.assignment()
        for lost in self._partitions.keys() - assigned:
            self._drop(lost)
        gained = assigned - self._partitions.keys()
        if not gained:
            return set()
        committed = await self._consumer.committed()
        stored = {where: await self._stored(where, committed) for where in sorted(gained)}
        begins = await self._backfill.begin(stored, self._start)
        fresh: dict[TopicPartition, int] = {}
        seek: dict[TopicPartition, int] = {}
        for where, begin in begins.items():
            self._partitions[where] = _Partition(begin.offset, begin.log_from)
            self._begun.add(where)
            if stored[where] is None:
                fresh[where] = begin.offset
            # While the archive is read, it is parked where polling finds nothing and keeps the membership.
            seek[where] = begin.offset if begin.log_from is None else begin.end
        await self._consumer.seek(seek)
        if fresh:
            # Noted at once: killed now, it must not begin at a later end, or find again what was forgotten.
            await self._store(fresh, {})
        return set(gained)

    async def _stored(self, where: TopicPartition, committed: Positions) -> int | None:
        """Restore a partition's states and return its next offset; ``None``: it was never read."""
        if self._forgotten and where not in self._begun:
            self._worker.restore(where, {})
            return None
        if self._states is None:
            return committed.get(where)
        saved = await self._worker.do(partial(self._states.load, where))
        self._worker.restore(where, {} if saved is None else saved.states)
        if saved is None and where in committed:
            _log.warning(
                "no state of this partition in the data directory: it is folded again from its beginning",
                partition=str(where),
                committed=committed[where],
            )
            return 0
        return None if saved is None else saved.next_offset

    async def _fill(self, where: TopicPartition, max_records: int) -> None:
        """Handle some archived records; after the last one, go over to the log."""
        partition = self._partitions.get(where)
        if partition is None or partition.log_from is None:
            return
        log_from = partition.log_from
        records = await self._backfill.read(where, partition.next_offset, log_from, max_records)
        self._counters.archived += len(records)
        await self._work(records)
        if records or self._stop.is_set() or where not in self._partitions:
            return
        await self._backfill.release()
        partition.next_offset = log_from
        partition.log_from = await self._backfill.extend(where, log_from)
        if partition.log_from == log_from:
            partition.log_from = None
            await self._consumer.seek({where: log_from})
            _log.info("going over from the archive to the log", partition=str(where), offset=log_from)

    async def _settle(self) -> None:
        """Commit positions behind what no record takes up, such as the markers of transactions."""
        behind = {
            where: offset
            for where, offset in self._consumer.positions().items()
            if where in self._partitions
            and self._partitions[where].log_from is None
            and self._partitions[where].next_offset < offset
        }
        if behind:
            await self._store(behind, {})

    async def _drop_deleted(self) -> None:
        """Begin anew where the next record is gone: a log may tell only when there is a later one."""
        for topic in self._plugin.topics:
            for where, first in (await self._event_log.beginning_offsets(topic)).items():
                partition = self._partitions.get(where)
                if partition is not None and partition.log_from is None and partition.next_offset < first:
                    self._drop(where)

    async def _has_reached(self, ends: Positions) -> bool:
        if not self._partitions:
            # The other members have them all, and may be finished or not.
            committed = await self._event_log.committed_positions(self._group)
            return all(committed.get(where, 0) >= end for where, end in ends.items())
        positions = self._consumer.positions()
        return all(
            one.log_from is None and positions.get(where, 0) >= ends[where]
            for where, one in self._partitions.items()
        )

    # -- handling -----------------------------------------------------------------------------

    async def _work(self, records: Sequence[StoredRecord]) -> None:
        """Handle records, whatever the plug-in does."""
        pending = [record for record in records if self._is_next(record)]
        limit = len(pending)
        if pending:
            self._on_step("polled")
        while pending:
            attempt = await self._worker.attempt(pending[:limit])
            if attempt.failure is None:
                self._on_step("handled")
                await self._finish(pending[:limit], attempt)
            elif attempt.failure.index > 0:
                limit = attempt.failure.index  # those before it first, on their own
                continue
            elif await self._insist(pending[0], attempt.failure):
                limit = 1
            else:
                return
            pending = [record for record in pending[limit:] if self._is_next(record)]
            limit = len(pending)

    def _is_next(self, record: StoredRecord) -> bool:
        partition = self._partitions.get(TopicPartition(record.topic, record.partition))
        if partition is None or record.offset < partition.next_offset:
            return False  # lost in a rebalance since it was read, or read again after one
        return partition.log_from is None or record.offset < partition.log_from

    async def _insist(self, record: StoredRecord, failure: Failure) -> bool:
        """Try again, then set the record aside; ``False`` if stopped first, with nothing done."""
        for number in range(0 if failure.unreadable else self._plugin.retries):
            pause_s = min(self._plugin.backoff_s * 2**number, _LONGEST_PAUSE_S)
            _log.warning(
                "plug-in failed, trying again",
                plugin=self._plugin.name,
                record=str(record),
                reason=failure.reason,
                pause_s=pause_s,
            )
            if await self._stopped_within(pause_s):
                return False
            attempt = await self._worker.attempt([record])
            self._counters.retried += 1
            if attempt.failure is None:
                self._on_step("handled")
                await self._finish([record], attempt)
                return True
            failure = attempt.failure
        _log.error("record set aside", plugin=self._plugin.name, record=str(record), reason=failure.reason)
        self._on_step("handled")
        # A dead letter about a dead letter could go round for ever.
        letters = [] if record.topic == RecordRejected.TOPIC else [self._dead_letter(record, failure)]
        self._counters.rejected += 1
        await self._finish([record], Attempt((), 0, {}, None), letters)
        return True

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True

    async def _finish(
        self, records: Sequence[StoredRecord], attempt: Attempt, letters: Sequence[Event] = ()
    ) -> None:
        """Publish what came of a batch, then store that it is done (steps 3 to 5)."""
        outputs = [record_from_event(event) for event in (*attempt.metrics, *letters)]
        if outputs:
            await self._event_log.append(outputs)
        self._on_step("published")
        # Of each partition the last record's position stays.
        positions = {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}
        await self._store(positions, attempt.changed)
        self._counters.handled += attempt.handled
        self._counters.emitted += len(attempt.metrics)
        self._counters.position_ms = records[-1].timestamp_ms

    async def _store(
        self, positions: Positions, changed: Mapping[TopicPartition, Mapping[str, bytes]]
    ) -> None:
        kept = await self._commit(positions)
        self._on_step("committed")
        for where, offset in kept.items():
            self._partitions[where].next_offset = offset
        if self._states is not None and kept:
            saved = {where: Saved(offset, changed.get(where, {})) for where, offset in kept.items()}
            await self._worker.do(partial(self._states.save, saved))
        self._on_step("saved")

    async def _commit(self, positions: Positions) -> dict[TopicPartition, int]:
        """Commit to the group; drop the partitions another member has by now, and return the others."""
        try:
            await self._consumer.commit(positions)
        except FencedError as error:
            if len(positions) == 1:
                (where,) = positions
                _log.info("partition taken over by another member", partition=str(where), reason=str(error))
                self._drop(where)
                return {}
            kept: dict[TopicPartition, int] = {}
            for where, offset in positions.items():
                kept |= await self._commit({where: offset})
            return kept
        return dict(positions)

    def _drop(self, where: TopicPartition) -> None:
        self._partitions.pop(where, None)
        self._worker.forget(where)

    def _dead_letter(self, record: StoredRecord, failure: Failure) -> RecordRejected:
        reason = failure.reason
        if len(record.value) > _DEAD_LETTER_BYTES:
            reason += (
                f" (value cut from {len(record.value)} to {_DEAD_LETTER_BYTES} bytes; whole at {record})"
            )
        run_id = self._run_id or ""
        return RecordRejected(
            event_id=event_id(
                run_id, "record-rejected", self._group, record.topic, record.partition, record.offset
            ),
            run_id=run_id,
            occurred_at_ms=record.timestamp_ms,
            consumer=self._group,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=reason,
            record_key=record.key,
            record_value=record.value[:_DEAD_LETTER_BYTES],
            record_headers=dict(record.headers),
            record_timestamp_ms=record.timestamp_ms,
        )
