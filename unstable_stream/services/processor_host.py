"""The host of a stream processor: reads, decodes, folds, and publishes results with positions.

The commit steps, for each batch:

1. ``polled``: records have been read; their partitions are this host's, with state restored.
2. ``folded``: every record has been decoded and folded, in memory only.
3. ``begun``: a transaction is open.
4. ``outputs-appended``: what the folds returned is in it.
5. ``dead-letters-appended``: records that are no events are in it, whole.
6. ``positions-added``: the positions after the batch are in it.
7. ``committed``: all of it is visible, or, until here, none of it.

A kill between any two loses nothing and publishes nothing twice: what is not committed is read again, by a
host whose state is a fold of exactly what was committed.

State is kept per input partition: order is only defined within one, so only then does folding again give
the same bytes. What must share state must share a key.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from unstable_stream.errors import EventError, FencedError, ServiceError
from unstable_stream.eventlog.port import (
    Consumer,
    EventLog,
    Positions,
    Producer,
    Record,
    StoredRecord,
    TopicPartition,
)
from unstable_stream.eventlog.records import event_from_record, record_from_event
from unstable_stream.events import Event, RecordRejected, event_id

__all__ = ["HostCounters", "Processor", "group_of", "run_processor"]

_IDLE_S: Final = 0.5
"""How long a poll waits for the first record: the longest a stop goes unnoticed."""
_DRAIN_S: Final = 0.25
"""After a stop, the topics count as drained when nothing came for this long."""
_LAG_EVERY_S: Final = 1.0
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
    """Return the consumer group, and producer id, of a processor; ``None`` serves all runs."""
    return processor_name if run_id is None else f"{processor_name}/{run_id}"


async def run_processor(
    log: EventLog,
    make: Callable[[], Processor],
    *,
    run_id: str | None,
    stop: asyncio.Event,
    max_records: int = 500,
    linger_s: float = 0.02,
    counters: HostCounters | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> None:
    """Host a processor until ``stop`` is set and its input is drained.

    Args:
        log: the event log.
        make: returns a fresh processor; called once per input partition.
        run_id: the run whose events are folded; others are skipped. ``None``: all.
        stop: ends the host after the batches that are ready.
        max_records: most records in one transaction.
        linger_s: how long a batch that is not full waits for more.
        counters: updated as the host goes.
        on_step: told the name of each commit step as it is reached.

    Raises:
        FencedError: another host of the same processor and run has taken over.
        ServiceError: the fold failed, or its state cannot be restored; nothing of the batch is committed.
    """
    prototype = make()
    group = group_of(prototype.name, run_id)
    # The producer first: from here on an earlier host can commit nothing that the restored state would miss.
    producer = await log.producer(group)
    try:
        consumer = await log.consumer(prototype.inputs, group)
        try:
            host = _Host(log, make, group, run_id, consumer, producer, counters or HostCounters(), on_step)
            await host.serve(stop, max_records, linger_s)
        finally:
            await consumer.close()
    finally:
        await producer.close()


class _Partition:
    """One input partition: its processor, and the offset after the last record folded."""

    __slots__ = ("next_offset", "processor")

    def __init__(self, processor: Processor) -> None:
        self.processor = processor
        self.next_offset = 0


class _Host:
    def __init__(
        self,
        log: EventLog,
        make: Callable[[], Processor],
        group: str,
        run_id: str | None,
        consumer: Consumer,
        producer: Producer,
        counters: HostCounters,
        on_step: Callable[[str], None],
    ) -> None:
        self._event_log = log
        self._make = make
        self._group = group
        self._run_id = run_id
        self._source = None if run_id is None else _source_of(run_id)
        self._consumer = consumer
        self._producer = producer
        self._counters = counters
        self._on_step = on_step
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._lag_due = 0.0

    async def serve(self, stop: asyncio.Event, max_records: int, linger_s: float) -> None:
        while True:
            stopping = stop.is_set()
            records = await self._consumer.poll(max_records, _DRAIN_S if stopping else _IDLE_S)
            if records and len(records) < max_records and linger_s > 0:
                records += await self._consumer.poll(max_records - len(records), linger_s)
            await self._follow_assignment()
            if records:
                await self._process(records)
            elif stopping:
                self._lag_due = 0.0
            await self._measure_lag()
            if stopping and not records:
                return

    # -- one batch ----------------------------------------------------------------------------

    async def _process(self, records: Iterable[StoredRecord]) -> None:
        self._on_step("polled")
        outputs: list[Record] = []
        dead_letters: list[Record] = []
        positions: dict[TopicPartition, int] = {}
        processed = skipped = 0
        for record in records:
            where = TopicPartition(record.topic, record.partition)
            partition = self._partitions.get(where)
            if partition is None or record.offset < partition.next_offset:
                continue  # lost in a rebalance since it was read, or read again after one
            try:
                event = self._decode(record)
                if event is None:
                    skipped += 1
                else:
                    outputs.extend(map(record_from_event, self._fold(partition.processor, event, record)))
                    processed += 1
            except EventError as error:
                dead_letters.append(self._dead_letter(record, error))
            partition.next_offset = positions[where] = record.offset + 1
        if not positions:
            return
        self._on_step("folded")
        await self._publish(outputs, dead_letters, positions)
        self._counters.processed += processed
        self._counters.skipped += skipped
        self._counters.produced += len(outputs)
        self._counters.rejected += len(dead_letters)

    async def _publish(
        self, outputs: Sequence[Record], dead_letters: Sequence[Record], positions: Positions
    ) -> None:
        try:
            async with self._producer.transaction() as transaction:
                self._on_step("begun")
                if outputs:
                    await transaction.append(outputs)
                self._on_step("outputs-appended")
                if dead_letters:
                    await transaction.append(dead_letters)
                self._on_step("dead-letters-appended")
                await transaction.commit_positions(self._consumer, positions)
                self._on_step("positions-added")
        except FencedError as error:
            raise FencedError(
                f"{self._group}: another host has taken over and this one stops; nothing was lost: {error}"
            ) from error
        self._on_step("committed")

    def _decode(self, record: StoredRecord) -> Event | None:
        """Return the event, ``None`` if it is another run's; raises :class:`EventError`."""
        if self._source is not None:
            # Saves decoding what other runs wrote; a record without the header is decoded and looked at.
            source = record.headers.get("ce_source")
            if source is not None and source != self._source:
                return None
        event = event_from_record(record)
        return event if self._run_id is None or event.run_id == self._run_id else None

    def _fold(self, processor: Processor, event: Event, record: StoredRecord) -> Sequence[Event]:
        try:
            return processor.handle(event)
        except EventError as error:
            raise type(error)(f"{record}: {error}") from error
        except Exception as error:
            raise ServiceError(
                f"{self._group}: folding {record} (event {event.event_id}) failed with "
                f"{type(error).__name__}: {error}. Nothing of its batch was committed; correct the cause and "
                "start again"
            ) from error

    def _dead_letter(self, record: StoredRecord, error: EventError) -> Record:
        reason = f"{type(error).__name__}: {error}"
        _log.warning("record rejected", record=str(record), reason=reason)
        if len(record.value) > _DEAD_LETTER_BYTES:
            reason += (
                f" (value cut from {len(record.value)} to {_DEAD_LETTER_BYTES} bytes; whole at {record})"
            )
        return record_from_event(
            RecordRejected(
                event_id=event_id(
                    self._run_id or "",
                    "record-rejected",
                    self._group,
                    record.topic,
                    record.partition,
                    record.offset,
                ),
                run_id=self._run_id or "",
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
        )

    # -- state --------------------------------------------------------------------------------

    async def _follow_assignment(self) -> None:
        """Forget partitions that were taken away; restore the state of those that were given."""
        assigned = self._consumer.assignment()
        for lost in self._partitions.keys() - assigned:
            del self._partitions[lost]
        gained = assigned - self._partitions.keys()
        if gained:
            committed = await self._consumer.committed()
            await self._restore({where: committed.get(where, 0) for where in gained})

    async def _restore(self, targets: dict[TopicPartition, int]) -> None:
        """Fold each partition again from its beginning up to its committed position; discard the results."""
        restored = {where: _Partition(self._make()) for where in targets}
        topics = sorted({where.topic for where, target in targets.items() if target > 0})
        folded = 0
        if topics:
            starts = await self._starts(topics, targets)
            reader = await self._event_log.consumer(topics)
            try:
                await reader.seek(starts)
                while any(reader.positions()[w] < t for w, t in targets.items() if w in starts and t > 0):
                    for record in await reader.poll():
                        where = TopicPartition(record.topic, record.partition)
                        if where in restored and record.offset < targets[where]:
                            folded += self._fold_again(restored[where].processor, record)
            finally:
                await reader.close()
        for where, partition in restored.items():
            partition.next_offset = targets[where]
        self._partitions.update(restored)
        _log.info("state restored", group=self._group, partitions=sorted(map(str, restored)), events=folded)

    async def _starts(
        self, topics: Sequence[str], targets: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Where to read from: the beginning of partitions to restore, the end of all others.

        Raises:
            ServiceError: part of the history is gone, so the state cannot be what it was.
        """
        starts: dict[TopicPartition, int] = {}
        for topic in topics:
            beginnings = await self._event_log.beginning_offsets(topic)
            ends = await self._event_log.end_offsets(topic)
            for where, end in ends.items():
                target = targets.get(where, 0)
                if target == 0:
                    starts[where] = end
                elif beginnings[where] > 0 or end < target:
                    raise ServiceError(
                        f"{self._group}: {where} holds offsets {beginnings[where]} to {end}, but the state "
                        f"up to {target} is a fold from 0. Records were deleted: restore the log, or "
                        "start a new run"
                    )
                else:
                    starts[where] = 0
        return starts

    def _fold_again(self, processor: Processor, record: StoredRecord) -> int:
        try:
            event = self._decode(record)
            if event is None:
                return 0
            self._fold(processor, event, record)
        except EventError:
            return 0  # it was set aside when it was first read
        return 1

    async def _measure_lag(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._lag_due:
            return
        self._lag_due = now + _LAG_EVERY_S
        lag = 0
        for topic in {where.topic for where in self._partitions}:
            for where, end in (await self._event_log.end_offsets(topic)).items():
                partition = self._partitions.get(where)
                lag += 0 if partition is None else max(0, end - partition.next_offset)
        self._counters.lag = lag


def _source_of(run_id: str) -> bytes:
    return f"/unstable_stream/runs/{run_id}".encode()
