"""The sink of the stream processors: folds each partition; publishes results and position together.

State is kept per run and input partition: order is only defined within a partition, so only then does folding
again give the same bytes. What must share state must share a key.

Hosts of one processor share its partitions out, and a partition may change hands at any moment. It is opened
in this order:

a. its producer is opened, and from here on an earlier holder can commit nothing;
b. the committed position is read, which therefore stays what it is;
c. the partition is folded again from its beginning up to there, with the results thrown away;
d. records from that position on are processed.

The commit steps, for each batch of a partition:

1. records have been read; the partition is open;
2. every record has been decoded and folded, in memory only;
3. a transaction is open;
4. what the fold returned is in it;
5. the dead letters of records that are no events are in it;
6. the position after the batch is in it;
7. all of it is visible, or, until here, none of it.

A kill between any two loses nothing and publishes nothing twice: what is not committed is read again, by a
host whose state is a fold of exactly what was committed.

A holder that was fenced drops the partition, loses nothing but the work since its last commit, and goes on
with the others. A partition that was taken over although it is still assigned to us may have gone to another
host and back unseen, so it is opened once more after a while. If that happens twice in a row, somebody
outside the sharing uses the same group: then the host stops rather than take turns with it.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

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
from unstable_stream.runs.config import RunConfig
from unstable_stream.streams.consumer import JOIN_S
from unstable_stream.streams.dead_letters import DeadLetters
from unstable_stream.streams.run_directory import RunDirectory

__all__ = ["FoldSink", "Processor", "ProcessorSpec", "group_of"]

_SETTLE_S: Final = 3.0
"""A host may learn that it lost a partition this much later than another that it was given it."""
_UNEXPLAINED_WITHIN_S: Final = 60.0
"""Being fenced again within this time, with the partition assigned all along, has no innocent reason."""

_log = structlog.get_logger(__name__)


class Processor(Protocol):
    """A fold of one run with its state. Cheap to make, and the same after the same events."""

    def handle(self, event: Event) -> Sequence[Event]:
        """Fold one event; return what follows from it, in order.

        Raises:
            EventError: the event is impossible. State is unchanged and the record is set aside; anything
                else that is raised is taken for a bug and stops the host.
        """


@dataclass(frozen=True, slots=True)
class ProcessorSpec:
    """A stream processor: its name, what it reads, and how it is made."""

    name: str
    """Names the consumer group."""
    inputs: tuple[str, ...]
    """The topics it reads."""
    make: Callable[[str, RunConfig], Processor]
    """Returns a fresh fold of a run, given its id and the configuration it began with; raises
    :class:`ConfigError` if that makes none."""


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
        """Open nothing yet.

        Args:
            log: the event log.
            spec: the processor.
            runs: the runs of the log; each is folded with the configuration it began with.
            run_id: the run whose events are folded; others are passed over. ``None``: all.
            settle_s: how long to leave a partition alone that another host took over, in seconds.
        """
        self.log = log
        self.spec = spec
        self.run_id = run_id
        self.group = group_of(spec.name, run_id)
        """Whose committed positions count."""
        self.letters = DeadLetters(self.group, run_id)
        self._runs = runs
        self._settle_s = settle_s
        self._source = None if run_id is None else source_header(run_id)
        self.refused: dict[str, str] = {}
        """Why a run is not folded, by run: it was warned of, and all its records are set aside."""
        self._open: dict[TopicPartition, _Partition] = {}
        self._fenced_at: dict[TopicPartition, float] = {}

    def producer_id(self, at: TopicPartition) -> str:
        """Return the id under which a partition's holders fence each other."""
        return f"{self.group}/{at.topic}/{at.partition}"

    def positions(self) -> Positions:
        """Return the next offset to be processed of every open partition."""
        return {at: one.next_offset for at, one in self._open.items()}

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        """Close partitions that were taken away and open those that were given; see the port.

        Raises:
            ServiceError: part of the history is gone, so the state of a partition cannot be restored.
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
        """Process records, side by side, each partition's in a transaction of its own.

        Raises:
            ServiceError: a fold failed; nothing of its batch was committed.
            FencedError: partitions are taken over by somebody who does not share them out with us.
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
        """Leave things as they are: every batch is committed at once."""

    def deleted(self, error: OffsetOutOfRangeError) -> None:
        """Raise: a fold must not miss an event."""
        raise error

    async def may_leave(self, ends: Positions, unassigned_s: float) -> bool:
        """Leave the rest to the other hosts, who have all partitions."""
        return unassigned_s >= JOIN_S

    async def close(self) -> None:
        """Close all partitions; whoever opens them next goes on from what was committed."""
        folds, self._open = self._open, {}
        await asyncio.gather(*(one.close() for one in folds.values()))

    # -- the events of a batch ------------------------------------------------------------------

    async def decode(
        self, records: Sequence[StoredRecord]
    ) -> list[tuple[StoredRecord, Event | EventError | None]]:
        """Return with each record its event, why it is none, or ``None`` if it is another run's."""
        decoded = [(record, self._decode(record)) for record in records]
        await self._runs.learn({event.run_id for _, event in decoded if isinstance(event, Event)})
        return decoded

    def fresh(self, run_id: str) -> Processor:
        """Return a fresh fold of a run that :meth:`decode` has met.

        Raises:
            EventError: nobody started it, or this host serves all runs and cannot fold this one: its records
                are set aside, and the others go on.
            ConfigError: this host serves just this run, and its configuration makes no processor.
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
        # Saves decoding what other runs wrote; a record without the header is decoded and looked at.
        if self._source is not None and record.headers.get("ce_source", self._source) != self._source:
            return None
        try:
            event = event_from_record(record)
        except EventError as error:
            return error
        return event if self.run_id in (None, event.run_id) else None

    # -- opening and handing over ---------------------------------------------------------------

    async def _take_over(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, "_Partition"]:
        """Open partitions: whoever held them is fenced, and the state is what was committed (a to c)."""
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
        """Return where to read from: the beginning of partitions to restore, the end of all others."""
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
    """One partition: a producer of its own, a fold of each run, and how far it has come."""

    def __init__(self, sink: FoldSink, at: TopicPartition, producer: Producer, next_offset: int) -> None:
        self.next_offset = next_offset
        self._sink = sink
        self._at = at
        self._producer = producer
        self._processors: dict[str, Processor] = {}

    async def process(self, records: Sequence[StoredRecord]) -> None:
        """Fold records and publish what follows; those folded before are passed over.

        Raises:
            FencedError: another host has opened the partition; nothing of the batch was committed.
            ServiceError: the fold failed; nothing of the batch was committed.

        After an exception this object is of no more use: close it.
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
            # In the group's name, whoever its members are: the producer's id settles who may commit.
            await transaction.commit_positions(self._sink.group, {self._at: self.next_offset})

    async def fold_again(self, records: Sequence[StoredRecord]) -> int:
        """Fold records that were processed before, for their effect on the state; return how many were."""
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
