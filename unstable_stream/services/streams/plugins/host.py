"""Run a plug-in consumer in a group of its own, so that it never holds back a run.

Its sink passes it events, and publishes its metrics with its state and position.

One batch of a partition, in this order:

1. its records are read;
2. the plug-in has handled their events, in order;
3. its metrics, the dead letters of records that it failed at, the changed states and the position after the
   batch are on the log, in one transaction of the partition's producer, which the next host fences.

A kill between any two steps loses nothing, and repeats nothing but what the plug-in did outside: it handles
the events again with the same state.

An event that fails is tried again, alone, with the state before it. After the last retry its record goes to
``dead-letters``, and the plug-in goes on with the next event. The failed event may leave the state half
changed, so that state is thrown away, and the earlier events of the batch are handled again too.
"""

import asyncio
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from unstable_stream.console import get_logger
from unstable_stream.errors import FencedError, OffsetOutOfRangeError, PluginError, UnknownTopicError
from unstable_stream.events import Metrics, RecordRejected
from unstable_stream.log.port import (
    EventLog,
    Positions,
    Producer,
    Record,
    Start,
    StoredRecord,
    TopicPartition,
)
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.services.streams.consumer import Pace, is_processed, run_consumer, wait_for_stop
from unstable_stream.services.streams.dead_letters import DeadLetters
from unstable_stream.services.streams.partitions import OpenPartitions
from unstable_stream.services.streams.plugins import Plugin
from unstable_stream.services.streams.plugins.worker import Attempt, Failure, PluginWorker
from unstable_stream.services.streams.snapshots import POSITION, run_name

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
    """Records that went to ``dead-letters``."""
    position_ms: int = 0
    """Time of the last finished record, Unix milliseconds."""


def plugin_group(plugin: Plugin, run_id: str | None) -> str:
    """Return the consumer group of a plug-in. A group for one run differs from the group for all runs."""
    return plugin.source if run_id is None else f"{plugin.source}/{run_id}"


async def run_plugin(
    log: EventLog,
    plugin: Plugin,
    *,
    stop: asyncio.Event,
    start: Start = "beginning",
    run_id: str | None = None,
    until_end: bool = False,
    drain: bool = False,
    reset: bool = False,
    max_records: int = 1000,
    counters: PluginCounters | None = None,
) -> None:
    """Run a plug-in until ``stop`` is set or the end is reached.

    Args:
        log: the event log.
        plugin: the plug-in.
        stop: ends the host after the current batch, or after draining.
        start: the place to begin in partitions without a stored position.
        run_id: the plug-in receives only events of this run; ``None``: of all runs.
        until_end: stop at the ends that the topics have now.
        drain: after ``stop``, first handle everything up to the ends of the topics at that moment.
        reset: first forget stored positions and states.
        max_records: the most records of one batch.
        counters: updated while the host runs.

    Raises:
        PluginError: the plug-in does not start, or its state cannot be stored.
        UnknownTopicError: the log has no such topic.
    """
    await _ensure_topics(log, plugin)
    worker = PluginWorker(plugin, run_id)
    try:
        await worker.start()
        consumer = await log.consumer(plugin.topics, plugin_group(plugin, run_id), "beginning")
        sink = PluginSink(
            log=log,
            plugin=plugin,
            run_id=run_id,
            worker=worker,
            start=start,
            forgotten=reset,
            counters=counters or PluginCounters(),
            stop=stop,
            drain=drain,
        )
        await run_consumer(
            log,
            plugin.topics,
            consumer,
            sink,
            stop=stop,
            drain=drain,
            until_end=until_end,
            pace=Pace(max_records),
        )
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


@dataclass(slots=True, eq=False)
class _PluginPartition:
    """An open partition."""

    at: TopicPartition
    producer: Producer
    next_offset: int


@dataclass(kw_only=True, eq=False)
class PluginSink(OpenPartitions[_PluginPartition]):
    """The open partitions of one running plug-in."""

    log: EventLog
    plugin: Plugin
    run_id: str | None
    """The plug-in receives only events of this run; ``None``: of all runs."""
    worker: PluginWorker
    """The plug-in's thread, already started."""
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

    def __post_init__(self) -> None:
        super().__init__(self.log, plugin_group(self.plugin, self.run_id))
        self._letters = DeadLetters(self.group, self.run_id)
        self._begun: set[TopicPartition] = set()
        self._gap = False
        """True if records were deleted before they were read."""

    # -- partitions ---------------------------------------------------------------------------

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        """Open all partitions again if there was a gap."""
        if self._gap:
            await self.close()
            self._gap = False
        return await super().follow(assigned)

    async def _opened(self, at: TopicPartition, producer: Producer) -> _PluginPartition:
        known = (await self.log.committed_positions(self.group)).get(at)
        saved: Mapping[str, bytes] = {}
        if self.plugin.state is not None:
            saved = await self.log.saved(self.producer_id(at))
        if self.forgotten and at not in self._begun:
            known = None
        elif known is not None and self.plugin.state is not None and POSITION not in saved:
            _log.warning("no state of this partition: all is handled again", partition=str(at))
            known = None
        partition = _PluginPartition(at, producer, await self._beginning(at, known))
        if known is None:
            # Stored at once: after a kill, a new look could find a later end, or a forgotten position.
            forgotten = dict.fromkeys(saved, b"")
            await self._commit(partition, partition.next_offset, states=forgotten, begins=True)
            saved = {}
        self._begun.add(at)
        of_run = run_name("")
        self.worker.restore(
            at, {name.removeprefix(of_run): state for name, state in saved.items() if name != POSITION}
        )
        return partition

    async def _beginning(self, at: TopicPartition, known: int | None) -> int:
        """Return the offset to go on from; ``known``: the next offset, ``None`` if there is none.

        Raises:
            PluginError: the log does not have the known offset, or the records from there on are gone from a
                topic that is kept for ever.
        """
        firsts, ends = await self.log.beginning_offsets(at.topic), await self.log.end_offsets(at.topic)
        first, end = firsts[at], ends[at]
        if known is None:
            if isinstance(self.start, int):
                return (await self.log.offsets_for_time(at.topic, self.start))[at]
            return first if self.start == "beginning" else end
        if known > end:
            raise PluginError(
                f"the plug-in has handled {at} up to {known}, but the log ends at {end}: it "
                "lost records (a power cut, or a topic or file put back), and the plug-in's "
                "state counts them. Handle all anew: unstable-stream consume PLUGIN --reset"
            )
        if known < first:
            gone = f"{at}: offsets {known} to {first - 1} were deleted before they were handled"
            spec = (await self.log.topic_settings())[at.topic]
            if spec.retention_ms is None and spec.cleanup_policy == "delete":
                raise PluginError(
                    f"{gone}. Restore the log, or handle all that is left anew: unstable-stream "
                    "consume PLUGIN --reset"
                )
            _log.warning(gone, plugin=self.plugin.name)
        return max(known, first)

    def deleted(self, error: OffsetOutOfRangeError) -> None:
        """Open all partitions again: retention was faster than the plug-in. All handled work is stored."""
        _log.info("the next records are not in the log", reason=str(error))
        self._gap = True

    async def may_finish(self, other_ends: Positions) -> bool:
        """Return true when other members have handled the rest."""
        return await is_processed(self.log, self.group, other_ends)

    async def _leave(self, partition: _PluginPartition) -> None:
        self.worker.forget(partition.at)

    # -- records ------------------------------------------------------------------------------

    async def process(self, records: Sequence[StoredRecord], read_up_to: Positions) -> None:
        """Handle these records, each partition in its own order.

        If an event fails for good, its record goes to ``dead-letters``. Without ``drain``, ``stop`` ends the
        work in a pause before a retry; the rest is then left for the next start.
        """
        batches: dict[TopicPartition, list[StoredRecord]] = {}
        for record in records:
            batches.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        results = await asyncio.gather(
            *(self._process(self._open[at], batch) for at, batch in batches.items() if at in self._open),
            return_exceptions=True,
        )
        for error in results:
            if error is not None:
                raise error

    async def _process(self, partition: _PluginPartition, records: Sequence[StoredRecord]) -> None:
        pending = [record for record in records if record.offset >= partition.next_offset]
        limit = len(pending)
        try:
            while pending:
                attempt = await self.worker.attempt(pending[:limit])
                if attempt.failure is None:
                    await self._finish(partition, pending[:limit], attempt)
                elif attempt.failure.index > 0:
                    limit = attempt.failure.index  # first handle the records before it
                    continue
                elif await self._insist(partition, pending[0], attempt.failure):
                    limit = 1
                else:
                    return
                pending = pending[limit:]
                limit = len(pending)
        except FencedError as error:
            await self._hand_over(partition.at, error)

    async def flush(self, read_up_to: Positions) -> None:
        """Commit positions past offsets without a record, such as the markers of transactions."""
        for at, partition in list(self._open.items()):
            if partition.next_offset < read_up_to.get(at, 0):
                try:
                    await self._commit(partition, read_up_to[at])
                except FencedError as error:
                    await self._hand_over(at, error)

    async def _insist(self, partition: _PluginPartition, record: StoredRecord, failure: Failure) -> bool:
        """Try again, then reject the record; ``False``: ``stop`` came first, and nothing drains."""
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
                await self._finish(partition, [record], attempt)
                return True
            failure = attempt.failure
        self.counters.rejected += 1
        letters = self._letters.about(record, failure.reason)
        await self._finish(partition, [record], Attempt((), 0, {}, None), letters)
        return True

    async def _finish(
        self,
        partition: _PluginPartition,
        records: Sequence[StoredRecord],
        attempt: Attempt,
        letters: Sequence[Record] = (),
    ) -> None:
        """Publish the results of a batch with its position and states (step 3)."""
        outputs = [*map(record_from_event, attempt.metrics), *letters]
        changed = attempt.changed.get(partition.at, {})
        states = {run_name(run_id): state for run_id, state in changed.items()}
        await self._commit(partition, records[-1].offset + 1, outputs, states)
        self.counters.handled += attempt.handled
        self.counters.emitted += len(attempt.metrics)
        self.counters.position_ms = records[-1].timestamp_ms

    async def _commit(
        self,
        partition: _PluginPartition,
        next_offset: int,
        outputs: Sequence[Record] = (),
        states: Mapping[str, bytes] = MappingProxyType({}),
        *,
        begins: bool = False,
    ) -> None:
        """``begins``: a partition is read for the first time, so the states that come are whole."""
        if begins and self.plugin.state is not None:
            states = {**states, POSITION: b"%d" % next_offset}
        async with partition.producer.transaction() as transaction:
            if outputs:
                await transaction.append(outputs)
            await transaction.commit_positions(self.group, {partition.at: next_offset})
            if states:
                await transaction.save(self.producer_id(partition.at), states)
        partition.next_offset = next_offset
