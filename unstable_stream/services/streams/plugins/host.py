"""Run a plug-in consumer in a group of its own, so that it never holds back a run.

Its sink passes it events, publishes its metrics, and stores its state and positions.

One batch, in this order:

1. records of open partitions are read;
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

from unstable_stream.console import get_logger
from unstable_stream.errors import FencedError, OffsetOutOfRangeError, PluginError, UnknownTopicError
from unstable_stream.events import Metrics, RecordRejected
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
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.streams.consumer import Pace, is_processed, run_consumer, wait_for_stop
from unstable_stream.services.streams.dead_letters import DeadLetters
from unstable_stream.services.streams.plugins import Plugin
from unstable_stream.services.streams.plugins.worker import (
    Attempt,
    Failure,
    PluginStates,
    PluginWorker,
    Saved,
)

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
    data: DataDir,
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
        data: the data directory with the file of states.
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
    group = plugin_group(plugin, run_id)
    log_id = await log.log_id()
    worker = PluginWorker(plugin, run_id)
    try:
        await worker.start()
        states: PluginStates | None = None
        if plugin.state is not None:
            path = data.plugins / f"{plugin.name}.sqlite"
            states = await worker.do(lambda: PluginStates(path, log_id, group))
        if states is not None and reset:
            await worker.do(states.forget)
        consumer = await log.consumer(plugin.topics, group, "beginning")
        sink = PluginSink(
            log=log,
            plugin=plugin,
            run_id=run_id,
            consumer=consumer,
            worker=worker,
            states=states,
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
        self._group = plugin_group(self.plugin, self.run_id)
        self._letters = DeadLetters(self._group, self.run_id)
        self._begun: set[TopicPartition] = set()
        self._open: dict[TopicPartition, int] = {}
        """The next offset to handle."""

    # -- partitions ---------------------------------------------------------------------------

    def positions(self) -> Positions:
        """Return the next offset to handle, for every open partition."""
        return dict(self._open)

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        """Forget lost partitions; find the offset to go on from in new ones."""
        for lost in self._open.keys() - assigned:
            self._drop(lost)
        gained = assigned - self._open.keys()
        if not gained:
            return {}
        committed = await self.log.committed_positions(self._group)
        stored = {at: await self._stored(at, committed) for at in sorted(gained)}
        begins = await self._beginnings(stored)
        self._open |= begins
        self._begun |= begins.keys()
        # Store the beginnings at once. After a kill, a new look could find a later end, or a forgotten
        # position.
        fresh = {at: begin for at, begin in begins.items() if stored[at] is None}
        if fresh:
            await self._store(fresh, {})
        return begins

    async def _beginnings(self, stored: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
        """Return the offsets to go on from; ``stored``: the next offsets, ``None`` where there is none.

        Raises:
            PluginError: the log ends before a stored offset, or it has deleted records that were not handled,
                and nothing of the topic may expire.
        """
        settings = await self.log.topic_settings()
        found: dict[TopicPartition, int] = {}
        for topic in {at.topic for at in stored}:
            firsts, ends = await self.log.beginning_offsets(topic), await self.log.end_offsets(topic)
            starts = firsts if self.start == "beginning" else ends
            if isinstance(self.start, int):
                starts = await self.log.offsets_for_time(topic, self.start)
            for at, known in stored.items():
                if at.topic != topic:
                    continue
                first, end = firsts[at], ends[at]
                if known is not None and known > end:
                    raise PluginError(
                        f"the plug-in has handled {at} up to {known}, but the log ends at {end}: it "
                        "lost records (a power cut, or a topic or file put back), and the plug-in's "
                        "state counts them. Handle all anew: unstable-stream consume PLUGIN --reset"
                    )
                if known is not None and known < first:
                    gone = f"{at}: offsets {known} to {first - 1} were deleted before they were handled"
                    spec = settings[topic]
                    if spec.retention_ms is None and spec.cleanup_policy == "delete":
                        raise PluginError(
                            f"{gone}. Restore the log, or handle all that is left anew: unstable-stream "
                            "consume PLUGIN --reset"
                        )
                    _log.warning(gone, plugin=self.plugin.name)
                found[at] = starts[at] if known is None else max(known, first)
        return found

    def deleted(self, error: OffsetOutOfRangeError) -> None:
        """Open all partitions again: retention was faster than the plug-in. All handled work is stored."""
        _log.info("the next records are not in the log", reason=str(error))
        self._open.clear()

    async def may_finish(self, other_ends: Positions) -> bool:
        """Return true when other members have handled the rest."""
        return await is_processed(self.log, self._group, other_ends)

    async def close(self) -> None:
        """Close the file of states."""
        self._open.clear()
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

    async def process(self, records: Sequence[StoredRecord], read_up_to: Positions) -> None:
        """Handle these records.

        If ``stop`` is set in a pause before a retry, the remaining records stay unhandled, unless the sink
        drains: the loop reads on then, and later positions must not pass records that nobody handled.
        """
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

    async def flush(self, read_up_to: Positions) -> None:
        """Commit positions past offsets without a record, such as the markers of transactions."""
        behind = {at: read_up_to[at] for at, offset in self._open.items() if offset < read_up_to.get(at, 0)}
        if behind:
            await self._store(behind, {})

    def _is_next(self, record: StoredRecord) -> bool:
        # The partition may be lost after the read, or the record be read a second time.
        next_offset = self._open.get(TopicPartition(record.topic, record.partition))
        return next_offset is not None and record.offset >= next_offset

    async def _insist(self, record: StoredRecord, failure: Failure) -> bool:
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
        self._open |= kept
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
