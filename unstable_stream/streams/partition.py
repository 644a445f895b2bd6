"""One input partition of a stream processor: a producer of its own, the fold, and how far it has come.

State is kept per input partition: order is only defined within one, so only then does folding again give
the same bytes. What must share state must share a key.

A partition is opened in this order, so that hosts can hand it over at any moment:

a. its producer is opened, and from here on an earlier holder can commit nothing;
b. the committed position is read, which therefore stays what it is;
c. the partition is folded again from its beginning up to there, with the results thrown away;
d. records from that position on are processed.

The commit steps, for each batch of a partition:

1. ``polled``: records have been read; the partition is open.
2. ``folded``: every record has been decoded and folded, in memory only.
3. ``begun``: a transaction is open.
4. ``outputs-appended``: what the fold returned is in it.
5. ``dead-letters-appended``: records that are no events are in it, whole.
6. ``positions-added``: the position after the batch is in it.
7. ``committed``: all of it is visible, or, until here, none of it.

A kill between any two loses nothing and publishes nothing twice: what is not committed is read again, by a
host whose state is a fold of exactly what was committed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Protocol

import structlog

from unstable_stream.errors import EventError, ServiceError
from unstable_stream.events import Event, RecordRejected, event_id
from unstable_stream.log.port import EventLog, Producer, Record, StoredRecord, TopicPartition
from unstable_stream.log.records import event_from_record, record_from_event

__all__ = ["HostCounters", "Hosting", "PartitionFold", "Processor", "group_of", "open_folds"]

_DEAD_LETTER_BYTES: Final = 8 * 1024 * 1024
"""A longer value is cut in its dead letter: base64 and the limit of the topic leave room for no more."""

_log = structlog.get_logger(__name__)


class Processor(Protocol):
    """A fold with its state. Cheap to make, and the same after the same events."""

    @property
    def name(self) -> str:
        """Names the consumer group."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics it reads."""

    def handle(self, event: Event) -> Sequence[Event]:
        """Fold one event; return what follows from it, in order.

        Raises:
            EventError: the event is impossible. State is unchanged and the record is set aside; anything
                else that is raised is taken for a bug and stops the host.
        """


@dataclass(slots=True)
class HostCounters:
    """What a host has done since it started; read by whoever publishes metrics."""

    processed: int = 0
    """Events folded."""
    produced: int = 0
    """Events published."""
    rejected: int = 0
    """Records set aside."""
    skipped: int = 0
    """Records of other runs."""
    lag: int = 0
    """Offsets between the input's end and what is committed, at most a second old."""


def group_of(processor_name: str, run_id: str | None) -> str:
    """Return the consumer group of a processor; ``None`` serves all runs."""
    return processor_name if run_id is None else f"{processor_name}/{run_id}"


async def _know_already(run_ids: Collection[str]) -> None:
    pass


@dataclass(frozen=True)
class Hosting:
    """What all partitions of a hosted processor share."""

    log: EventLog
    make: Callable[[], Processor]
    """Returns a fresh processor; called once for each partition that is opened."""
    run_id: str | None
    """The run whose events are folded; others are skipped. ``None``: all."""
    learn_runs: Callable[[Collection[str]], Awaitable[None]] = _know_already
    """Awaited with the runs of events that are about to be folded."""
    counters: HostCounters = field(default_factory=HostCounters)
    on_step: Callable[[str, TopicPartition], None] = lambda step, at: None
    """Told the name of each commit step as it is reached."""
    settle_s: float = 3.0
    """A host may learn that it lost a partition this much later than another that it was given it."""

    @cached_property
    def name(self) -> str:
        """The processor's name."""
        return self.make().name

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The topics that are read."""
        return tuple(self.make().inputs)

    @cached_property
    def group(self) -> str:
        """Whose committed positions count."""
        return group_of(self.name, self.run_id)

    @cached_property
    def source(self) -> bytes | None:
        """The header that tells the run's records from others; ``None``: all are wanted."""
        return None if self.run_id is None else f"/unstable_stream/runs/{self.run_id}".encode()

    def producer_id(self, at: TopicPartition) -> str:
        """Return the id under which a partition's holders fence each other."""
        return f"{self.group}/{at.topic}/{at.partition}"


class PartitionFold:
    """The fold of one partition; made by :func:`open_folds`. One task at a time may use it."""

    def __init__(self, hosting: Hosting, at: TopicPartition, producer: Producer, position: int) -> None:
        self.at = at
        self.next_offset = position
        """After the last record folded."""
        self._hosting = hosting
        self._producer = producer
        self._processor = hosting.make()

    async def process(self, records: Sequence[StoredRecord]) -> None:
        """Fold records of this partition and publish what follows; those folded before are passed over.

        Raises:
            FencedError: another host has opened the partition; nothing of the batch was committed.
            ServiceError: the fold failed; nothing of the batch was committed.

        After an exception this object is of no more use: close it.
        """
        if not records or records[-1].offset < self.next_offset:
            return
        self._reached("polled")
        outputs: list[Record] = []
        dead_letters: list[Record] = []
        processed = skipped = 0
        for record, event in await self._decode_all(records):
            if record.offset < self.next_offset:
                continue
            try:
                if event is None:
                    skipped += 1
                elif isinstance(event, EventError):
                    raise event
                else:
                    outputs.extend(map(record_from_event, self._fold(event, record)))
                    processed += 1
            except EventError as error:
                dead_letters.append(self._dead_letter(record, error))
            self.next_offset = record.offset + 1
        self._reached("folded")
        await self._publish(outputs, dead_letters)
        counters = self._hosting.counters
        counters.processed += processed
        counters.skipped += skipped
        counters.produced += len(outputs)
        counters.rejected += len(dead_letters)

    async def fold_again(self, records: Sequence[StoredRecord]) -> int:
        """Fold records that were processed before, for their effect on the state; return how many were."""
        folded = 0
        for record, event in await self._decode_all(records):
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

    async def _publish(self, outputs: Sequence[Record], dead_letters: Sequence[Record]) -> None:
        async with self._producer.transaction() as transaction:
            self._reached("begun")
            if outputs:
                await transaction.append(outputs)
            self._reached("outputs-appended")
            if dead_letters:
                await transaction.append(dead_letters)
            self._reached("dead-letters-appended")
            # In the group's name, whoever its members are: the producer's id settles who may commit.
            await transaction.commit_positions(self._hosting.group, {self.at: self.next_offset})
            self._reached("positions-added")
        self._reached("committed")

    async def _decode_all(
        self, records: Sequence[StoredRecord]
    ) -> list[tuple[StoredRecord, Event | EventError | None]]:
        decoded = [(record, self._decode(record)) for record in records]
        await self._hosting.learn_runs({event.run_id for _, event in decoded if isinstance(event, Event)})
        return decoded

    def _decode(self, record: StoredRecord) -> Event | EventError | None:
        """Return the event, why it is none, or ``None`` if it is another run's."""
        if self._hosting.source is not None:
            # Saves decoding what other runs wrote; a record without the header is decoded and looked at.
            source = record.headers.get("ce_source")
            if source is not None and source != self._hosting.source:
                return None
        try:
            event = event_from_record(record)
        except EventError as error:
            return error
        return event if self._hosting.run_id in (None, event.run_id) else None

    def _fold(self, event: Event, record: StoredRecord) -> Sequence[Event]:
        try:
            return self._processor.handle(event)
        except EventError as error:
            raise type(error)(f"{record}: {error}") from error
        except Exception as error:
            raise ServiceError(
                f"{self._hosting.group}: folding {record} (event {event.event_id} of run {event.run_id}) "
                f"failed with {type(error).__name__}: {error}. Nothing of its batch was committed; correct "
                "the cause and start again"
            ) from error

    def _dead_letter(self, record: StoredRecord, error: EventError) -> Record:
        reason = f"{type(error).__name__}: {error}"
        _log.warning("record rejected", record=str(record), reason=reason)
        if len(record.value) > _DEAD_LETTER_BYTES:
            reason += (
                f" (value cut from {len(record.value)} to {_DEAD_LETTER_BYTES} bytes; whole at {record})"
            )
        run_id, group = self._hosting.run_id or "", self._hosting.group
        return record_from_event(
            RecordRejected(
                event_id=event_id(
                    run_id, "record-rejected", group, record.topic, record.partition, record.offset
                ),
                run_id=run_id,
                occurred_at_ms=record.timestamp_ms,
                consumer=group,
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                reason=reason,
                record_key=record.key,
                record_value=record.value[:_DEAD_LETTER_BYTES],
                record_headers=dict(record.headers),
                record_timestamp_ms=record.timestamp_ms,
            )
        )

    def _reached(self, step: str) -> None:
        self._hosting.on_step(step, self.at)


async def open_folds(
    hosting: Hosting, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, PartitionFold]:
    """Take partitions over: whoever held them is fenced, and the state is what was committed.

    Raises:
        ServiceError: part of the history is gone, so the state cannot be restored.
    """
    log, ordered = hosting.log, sorted(partitions)
    opened = await asyncio.gather(
        *(log.producer(hosting.producer_id(at)) for at in ordered), return_exceptions=True
    )
    producers = [one for one in opened if not isinstance(one, BaseException)]
    try:
        for one in opened:
            if isinstance(one, BaseException):
                raise one
        committed = await log.committed_positions(hosting.group)
        beginnings: dict[TopicPartition, int] = {}
        for topic in {at.topic for at in ordered}:
            beginnings |= await log.beginning_offsets(topic)
        folds = {
            at: PartitionFold(hosting, at, producer, committed.get(at) or beginnings[at])
            for at, producer in zip(ordered, producers, strict=True)
        }
        folded = await _restore(hosting, {at: fold for at, fold in folds.items() if committed.get(at)})
    except BaseException:
        await asyncio.gather(*(producer.close() for producer in producers))
        raise
    _log.info("partitions opened", group=hosting.group, partitions=[*map(str, ordered)], restored=folded)
    return folds


async def _restore(hosting: Hosting, folds: Mapping[TopicPartition, PartitionFold]) -> int:
    """Fold each partition from its beginning up to its position; return the number of events."""
    if not folds:
        return 0
    topics = sorted({at.topic for at in folds})
    starts = await _starts(hosting, topics, folds)
    folded = 0
    reader = await hosting.log.consumer(topics)
    try:
        await reader.seek(starts)
        while any(reader.positions()[at] < fold.next_offset for at, fold in folds.items()):
            batches: dict[TopicPartition, list[StoredRecord]] = {}
            for record in await reader.poll(max_records=1000):
                batches.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
            for at in batches.keys() & folds.keys():
                folded += await folds[at].fold_again(batches[at])
    finally:
        await reader.close()
    return folded


async def _starts(
    hosting: Hosting, topics: Sequence[str], folds: Mapping[TopicPartition, PartitionFold]
) -> dict[TopicPartition, int]:
    """Return where to read from: the beginning of partitions to restore, the end of all others."""
    starts: dict[TopicPartition, int] = {}
    for topic in topics:
        beginnings = await hosting.log.beginning_offsets(topic)
        ends = await hosting.log.end_offsets(topic)
        for at, end in ends.items():
            target = folds[at].next_offset if at in folds else 0
            if target == 0:
                starts[at] = end
            elif beginnings[at] > 0 or end < target:
                raise ServiceError(
                    f"{hosting.group}: {at} holds offsets {beginnings[at]} to {end}, but the state up to "
                    f"{target} is a fold from 0. Records were deleted: restore the log, or start a new run"
                )
            else:
                starts[at] = 0
    return starts
