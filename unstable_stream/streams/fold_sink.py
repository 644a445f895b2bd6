"""The sink of the stream processors folds each partition and publishes results and position together.

There is one state for each run and input partition. Order is defined only within a partition, so only such a
state is the same when it is folded again. Events that must share state must share a key.

The hosts of one processor share its partitions, and a partition may move to another host at any moment. A
host opens a partition in this order:

a. it opens the partition's producer; from here on an earlier host can commit nothing;
b. it reads the committed position, which nobody else can change now;
c. it folds the partition again, from its beginning up to that position, and throws the results away;
d. it processes the records from that position on.

The commit steps, for each batch of a partition:

1. records are read; the partition is open;
2. every record is decoded and folded, in memory only;
3. a transaction is open;
4. the events that the fold returned are in it;
5. the dead letters of unreadable records are in it;
6. the position after the batch is in it;
7. the transaction is committed: all of it is visible. Until here, none of it is.

A kill between any two steps loses nothing and publishes nothing twice. The next host reads again what is not
committed, and its state is a fold of exactly what was committed.

A host that is fenced drops the partition and goes on with the others. It loses only the work since its last
commit. A partition may be taken over and still be assigned to this host: perhaps it moved to another host and
came back between two polls. So this host opens it again after a while. If this happens twice in a row, a
process outside the sharing uses the same group. Then this host stops, because the two would take the
partition from each other for ever.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, Protocol

from unstable_stream.errors import (
    ConfigError,
    EventError,
    FencedError,
    OffsetOutOfRangeError,
    ServiceError,
)
from unstable_stream.events import Event
from unstable_stream.log.port import EventLog, Positions, Producer, Record, StoredRecord, TopicPartition
from unstable_stream.log.reading import read_on
from unstable_stream.log.records import event_from_record, record_from_event, source_header
from unstable_stream.log_lines import get_logger
from unstable_stream.runs.config import RunConfig
from unstable_stream.streams.consumer import JOIN_S
from unstable_stream.streams.dead_letters import DeadLetters
from unstable_stream.streams.run_configs import RunDirectory

__all__ = ["FoldSink", "Processor", "ProcessorSpec", "group_of"]

_SETTLE_S: Final = 3.0
"""Seconds to wait before opening a lost partition again. The new host may know of the move this much earlier
than the old one.
"""
_UNEXPLAINED_WITHIN_S: Final = 60.0
"""Seconds. If a host is fenced twice within this time and keeps the partition assigned, another process uses
the group.
"""

_log = get_logger(__name__)


class Processor(Protocol):
    """A fold of one run with its state. It is cheap to make. The same events always give the same state."""

    def handle(self, event: Event) -> Sequence[Event]:
        """Fold one event; return the events that follow from it, in order.

        Raises:
            EventError: the event is impossible. The state is unchanged, and the host sets the record aside.
                Any other exception is a bug and stops the host.
        """


@dataclass(frozen=True, slots=True)
class ProcessorSpec:
    """A stream processor: its name, its input topics, and a function that makes it."""

    name: str
    """Names the consumer group."""
    inputs: tuple[str, ...]
    """The topics it reads."""
    make: Callable[[str, RunConfig], Processor]
    """Returns a fresh fold of a run from the run's id and first configuration; raises :class:`ConfigError` if
    the configuration does not allow it.
    """


def group_of(processor_name: str, run_id: str | None) -> str:
    """Return the consumer group of a processor; ``None`` serves all runs."""
    return processor_name if run_id is None else f"{processor_name}/{run_id}"


class FoldSink:
    """The open partitions of one host of a processor."""

    busy = False

    def __init__(
        self,
        log: EventLog,
        spec: ProcessorSpec,
        runs: RunDirectory,
        run_id: str | None,
        *,
        settle_s: float = _SETTLE_S,
    ) -> None:
        """Store the arguments; open nothing.

        Args:
            log: the event log.
            spec: the processor.
            runs: the runs of the log; each is folded with its first configuration.
            run_id: only events of this run are folded; ``None``: events of all runs.
            settle_s: seconds to wait before opening a partition again that another host took over.
        """
        self.log = log
        self.spec = spec
        self.run_id = run_id
        self.group = group_of(spec.name, run_id)
        """The group whose committed positions count."""
        self.letters = DeadLetters(self.group, run_id)
        self._runs = runs
        self._settle_s = settle_s
        self._source = None if run_id is None else source_header(run_id)
        self.refused: dict[str, str] = {}
        """By run, the reason why it is not folded. All its records are set aside, and a warning was logged
        once.
        """
        self._open: dict[TopicPartition, _Partition] = {}
        self._fenced_at: dict[TopicPartition, float] = {}

    def producer_id(self, at: TopicPartition) -> str:
        """Return the id with which the hosts of a partition fence each other."""
        return f"{self.group}/{at.topic}/{at.partition}"

    def positions(self) -> Positions:
        """Return the next offset to be processed of every open partition."""
        return {at: one.next_offset for at, one in self._open.items()}

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        """Close lost partitions and open new ones; see the port.

        Raises:
            ServiceError: part of the history was deleted, so the state of a partition cannot be restored.
        """
        lost = self._open.keys() - assigned
        for at in lost:
            await self._open.pop(at).close()
        if lost:
            _log.info("partitions closed", group=self.group, partitions=[*map(str, sorted(lost))])
        self._fenced_at = {at: when for at, when in self._fenced_at.items() if at in assigned}
        settled_before = _now() - self._settle_s
        gained = {
            at
            for at in assigned - self._open.keys()
            if at not in self._fenced_at or self._fenced_at[at] <= settled_before
        }
        if not gained:
            return {}
        opened = await self._take_over(sorted(gained))
        self._open |= opened
        return {at: one.next_offset for at, one in opened.items()}

    async def process(self, records: Sequence[StoredRecord], read_up_to: Positions) -> Positions:
        """Process the partitions in parallel, each in a transaction of its own.

        Raises:
            ServiceError: a fold failed; nothing of its batch was committed.
            FencedError: a process outside the sharing takes partitions over.
        """
        batches = _by_partition(records)
        held = [at for at in batches if at in self._open]
        results = await asyncio.gather(
            *(self._open[at].process(batches[at]) for at in held), return_exceptions=True
        )
        errors = {at: error for at, error in zip(held, results, strict=True) if error is not None}
        for error in errors.values():
            if not isinstance(error, FencedError):
                raise error
        for at, error in errors.items():
            await self._hand_over(at, error)
        return {}

    async def settle(self, read_up_to: Positions) -> None:
        """Do nothing: every batch is committed at once."""

    def deleted(self, error: OffsetOutOfRangeError) -> None:
        """Raise the error: a fold must not miss an event."""
        raise error

    async def may_leave(self, ends: Positions, unassigned_s: float) -> bool:
        """Return true: the other hosts have all partitions and process the rest."""
        return unassigned_s >= JOIN_S

    async def close(self) -> None:
        """Close all partitions; the next host goes on from the committed positions."""
        folds, self._open = self._open, {}
        await asyncio.gather(*(one.close() for one in folds.values()))

    # -- the events of a batch ------------------------------------------------------------------

    async def decode(
        self, records: Sequence[StoredRecord]
    ) -> list[tuple[StoredRecord, Event | EventError | None]]:
        """Return each record with its event, its decoding error, or ``None`` for another run."""
        decoded = [(record, self._decode(record)) for record in records]
        await self._runs.learn({event.run_id for _, event in decoded if isinstance(event, Event)})
        return decoded

    def fresh(self, run_id: str) -> Processor:
        """Return a fresh fold of a run that :meth:`decode` has seen.

        Raises:
            EventError: the run was never started, or this host serves all runs and cannot fold this one. Its
                records are set aside, and the other runs go on.
            ConfigError: this host serves only this run, and no processor can be made from its configuration.
        """
        if run_id in self.refused:
            raise EventError(self.refused[run_id])
        try:
            return self.spec.make(run_id, self._runs.config(run_id))
        except ConfigError as error:
            if self.run_id is not None:
                raise
            self.refused[run_id] = f"run {run_id!r} cannot be folded by this host: {error}"
            _log.warning("a run's records are set aside", group=self.group, run=run_id, reason=str(error))
            raise EventError(self.refused[run_id]) from error

    def _decode(self, record: StoredRecord) -> Event | EventError | None:
        # The header saves decoding records of other runs. A record without the header is decoded.
        if self._source is not None and record.headers.get("ce_source", self._source) != self._source:
            return None
        try:
            event = event_from_record(record)
        except EventError as error:
            return error
        return event if self.run_id in (None, event.run_id) else None

    # -- opening and handing over ---------------------------------------------------------------

    async def _take_over(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, "_Partition"]:
        """Open partitions: fence their earlier hosts and restore the committed state (a to c)."""
        log = self.log
        opened = await asyncio.gather(
            *(log.producer(self.producer_id(at)) for at in partitions), return_exceptions=True
        )
        producers = [one for one in opened if not isinstance(one, BaseException)]
        try:
            for one in opened:
                if isinstance(one, BaseException):
                    raise one
            committed = await log.committed_positions(self.group)
            beginnings: dict[TopicPartition, int] = {}
            for topic in {at.topic for at in partitions}:
                beginnings |= await log.beginning_offsets(topic)
            folds = {
                at: _Partition(self, at, producer, committed.get(at) or beginnings[at])
                for at, producer in zip(partitions, producers, strict=True)
            }
            folded = await self._restore({at: one for at, one in folds.items() if committed.get(at)})
        except BaseException:
            await asyncio.gather(*(producer.close() for producer in producers))
            raise
        _log.info("partitions opened", group=self.group, partitions=[*map(str, partitions)], restored=folded)
        return folds

    async def _restore(self, folds: Mapping[TopicPartition, "_Partition"]) -> int:
        """Fold each partition from its beginning up to its position; return the number of events."""
        if not folds:
            return 0
        topics = sorted({at.topic for at in folds})
        starts = await self._restore_from(topics, folds)
        folded = 0
        reader = await self.log.consumer(topics)
        try:
            await reader.seek(starts)
            targets = {at: one.next_offset for at, one in folds.items()}
            async for records in read_on(reader, targets, max_records=1000):
                batches = _by_partition(records)
                for at in batches.keys() & folds.keys():
                    folded += await folds[at].fold_again(batches[at])
        finally:
            await reader.close()
        return folded

    async def _restore_from(
        self, topics: Collection[str], folds: Mapping[TopicPartition, "_Partition"]
    ) -> Positions:
        """Return the positions to read from: the beginning of partitions to restore, the end of others."""
        starts: dict[TopicPartition, int] = {}
        for topic in topics:
            beginnings = await self.log.beginning_offsets(topic)
            for at, end in (await self.log.end_offsets(topic)).items():
                target = folds[at].next_offset if at in folds else 0
                if target == 0:
                    starts[at] = end
                elif beginnings[at] > 0 or end < target:
                    raise ServiceError(
                        f"{self.group}: {at} holds offsets {beginnings[at]} to {end}, but the state "
                        f"up to {target} is a fold from 0. Records were deleted: restore the log, or start a "
                        "new run"
                    )
                else:
                    starts[at] = 0
        return starts

    async def _hand_over(self, at: TopicPartition, error: BaseException) -> None:
        await self._open.pop(at).close()
        before, now = self._fenced_at.get(at), _now()
        if before is not None and now - before < _UNEXPLAINED_WITHIN_S:
            raise FencedError(
                f"{self.group}: {at} is assigned to this host, yet another keeps taking it over. "
                "This one stops; nothing was lost. Hosts share partitions only with hosts of the same "
                f"runtime: is one of the other runtime running too? ({error})"
            ) from error
        self._fenced_at[at] = now
        _log.info("partition taken over by another host", group=self.group, partition=str(at))


class _Partition:
    """One partition: its producer, a fold of each run, and the next offset."""

    def __init__(self, sink: FoldSink, at: TopicPartition, producer: Producer, next_offset: int) -> None:
        self.next_offset = next_offset
        self._sink = sink
        self._at = at
        self._producer = producer
        self._processors: dict[str, Processor] = {}

    async def process(self, records: Sequence[StoredRecord]) -> None:
        """Fold records and publish the resulting events; skip records that were folded before.

        Raises:
            FencedError: another host has opened the partition; nothing of the batch was committed.
            ServiceError: the fold failed; nothing of the batch was committed.

        After an exception, close this object: it cannot be used any more.
        """
        if not records or records[-1].offset < self.next_offset:
            return
        outputs: list[Record] = []
        dead_letters: list[Record] = []
        for record, event in await self._sink.decode(records):
            if record.offset < self.next_offset:
                continue
            try:
                if isinstance(event, EventError):
                    raise event
                if event is not None:
                    outputs.extend(map(record_from_event, self._fold(event, record)))
            except EventError as error:
                reason = f"{type(error).__name__}: {error}"
                known = isinstance(event, Event) and event.run_id in self._sink.refused
                dead_letters += self._sink.letters.about(record, reason, warn=not known)
            self.next_offset = record.offset + 1
        async with self._producer.transaction() as transaction:
            if outputs:
                await transaction.append(outputs)
            if dead_letters:
                await transaction.append(dead_letters)
            # Commit for the group without naming a member: the producer's id decides who may commit.
            await transaction.commit_positions(self._sink.group, {self._at: self.next_offset})

    async def fold_again(self, records: Sequence[StoredRecord]) -> int:
        """Fold records that were processed before, only to restore the state; return their number."""
        folded = 0
        for record, event in await self._sink.decode(records):
            if event is None or isinstance(event, EventError) or record.offset >= self.next_offset:
                continue
            try:
                self._fold(event, record)
            except EventError:
                continue  # it was set aside when it was first read
            folded += 1
        return folded

    async def close(self) -> None:
        """Publish nothing more."""
        await self._producer.close()

    def _fold(self, event: Event, record: StoredRecord) -> Sequence[Event]:
        try:
            processor = self._processors.get(event.run_id)
            if processor is None:
                processor = self._processors[event.run_id] = self._sink.fresh(event.run_id)
            return processor.handle(event)
        except EventError as error:
            raise type(error)(f"{record}: {error}") from error
        except Exception as error:
            raise ServiceError(
                f"{self._sink.group}: folding {record} (event {event.event_id} of run {event.run_id}) "
                f"failed with {type(error).__name__}: {error}. Nothing of its batch was committed; correct "
                "the cause and start again"
            ) from error


def _by_partition(records: Sequence[StoredRecord]) -> dict[TopicPartition, list[StoredRecord]]:
    batches: dict[TopicPartition, list[StoredRecord]] = {}
    for record in records:
        batches.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
    return batches


def _now() -> float:
    return asyncio.get_running_loop().time()
