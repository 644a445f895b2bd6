"""Read topics to their present ends: the one loop for all code that reads history.

All records come in order within each partition, in bounded memory. Offsets have gaps (transaction markers,
compaction), so the consumer's position shows the end, never a count. A record that is no event is left out
with a warning that names its position; the archiver sets it aside.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, Self

from unstable_stream.console import get_logger
from unstable_stream.errors import EventError, EventLogError, LogUnavailableError, OffsetOutOfRangeError
from unstable_stream.events import Event
from unstable_stream.log.port import Consumer, EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.log.records import event_from_record, source_header

_BATCH_RECORDS: Final = 2000
_WAIT_S: Final = 0.2  # records below the end exist already, so a longer wait gains nothing
_PATIENCE_S: Final = 120.0
"""Our transactions time out after 60 s, and brokers look for such ones every 10 s."""

_logger = get_logger(__name__)


async def ends_of(log: EventLog, topics: Iterable[str]) -> dict[TopicPartition, int]:
    """Return the present end of every partition of these topics.

    Raises:
        UnknownTopicError: a topic does not exist.
    """
    return await offsets_of(log.end_offsets, topics)


async def offsets_of(
    find: Callable[[str], Awaitable[Positions]], topics: Iterable[str]
) -> dict[TopicPartition, int]:
    """Return what ``find`` returns for each of these topics, e.g. :meth:`EventLog.high_watermarks`.

    Raises:
        UnknownTopicError: a topic does not exist.
    """
    found: dict[TopicPartition, int] = {}
    for topic in topics:
        found |= await find(topic)
    return found


async def check_offsets(log: EventLog, positions: Positions, *, expiring: bool = False) -> None:
    """Raise :class:`OffsetOutOfRangeError` if the log ends before one of these positions, or begins after it.

    ``expiring``: it may begin behind them.
    """
    for topic in sorted({at.topic for at in positions}):
        begins = await log.beginning_offsets(topic)
        for at, end in sorted((await log.end_offsets(topic)).items()):
            position = positions.get(at, end)
            if position > end or (not expiring and position < begins[at]):
                raise OffsetOutOfRangeError.of(at, position, begins[at], end)


async def settled_ends(
    log: EventLog, topics: Iterable[str], *, patience_s: float = _PATIENCE_S
) -> dict[TopicPartition, int]:
    """Return the present ends once all records that are in the log now can be read, for restoring state.

    On Kafka the records behind another producer's open transaction cannot be read yet, though they were
    acknowledged. A service that restores its state without them would repeat what they say, or contradict it.

    Raises:
        UnknownTopicError: a topic does not exist.
        LogUnavailableError: a transaction was still open after ``patience_s``.
    """
    wanted = await offsets_of(log.high_watermarks, topics)
    now = asyncio.get_running_loop().time
    begun, pause_s = now(), _WAIT_S
    while True:
        ends = await ends_of(log, dict.fromkeys(at.topic for at in wanted))
        behind = {at: ends[at] for at, mark in wanted.items() if ends[at] < mark}
        if not behind:
            return ends
        held = ", ".join(f"{at}@{end}" for at, end in sorted(behind.items()))
        if now() - begun >= patience_s:
            raise LogUnavailableError(
                f"a transaction of another producer is open at {held} since more than {patience_s:g} s, and "
                "records behind it are needed to restore what this service knew. Brokers abort it after its "
                "producer's transaction time-out; find it with kafka-transactions.sh find-hanging, end it "
                "with kafka-transactions.sh abort, and start again"
            )
        if pause_s == _WAIT_S:
            _logger.info("waiting for another producer's open transaction", at=held)
        await asyncio.sleep(pause_s)
        pause_s = min(1.0, 2 * pause_s)


async def read_on(
    consumer: Consumer, ends: Positions, *, max_records: int = _BATCH_RECORDS
) -> AsyncGenerator[Sequence[StoredRecord], None]:
    """Poll a consumer until it has reached ``ends``; yield all its records, which may be a few more.

    ``ends`` may change meanwhile. Records of partitions that are not in it are yielded too, if they come.
    """
    while True:
        positions = consumer.positions()
        if all(positions.get(at, 0) >= end for at, end in ends.items()):
            return
        yield await consumer.poll(max_records=max_records, timeout_s=_WAIT_S)


class TopicReader:
    """Reads topics once, in several parts, up to fixed ends. Use it with ``async with``."""

    def __init__(self, consumer: Consumer, ends: Positions, run_id: str | None) -> None:
        """See :meth:`open`."""
        self._consumer = consumer
        self._source = None if run_id is None else source_header(run_id)
        self.ends = ends
        """By partition, the offset at which reading stops."""

    @classmethod
    async def open(
        cls,
        log: EventLog,
        topics: Sequence[str],
        *,
        run_id: str | None = None,
        starts: Positions | None = None,
        ends: Positions | None = None,
    ) -> Self:
        """Open a reader.

        Args:
            log: what to read.
            topics: the topics to read.
            run_id: leave out records whose header names another run.
            starts: the first offsets of these partitions; the others are read from their beginning.
            ends: the offsets to stop at, by default the present ends; partitions not in it are left out.

        Raises:
            UnknownTopicError: a topic does not exist.
        """
        stops = await ends_of(log, topics) if ends is None else dict(ends)
        consumer = await log.consumer(topics)
        if starts is not None:
            await consumer.seek(starts)
        return cls(consumer, stops, run_id)

    async def read_to(self, positions: Positions) -> AsyncGenerator[StoredRecord, None]:
        """Read on until each partition is read up to ``positions``, or a little further.

        With a run, records without a header that names one are yielded too: decode them.
        """
        targets = {at: min(end, positions.get(at, 0)) for at, end in self.ends.items()}
        async for records in read_on(self._consumer, targets):
            for record in records:
                # The header saves decoding records of other runs.
                if self._source is not None and record.headers.get("ce_source", self._source) != self._source:
                    continue
                if record.offset < self.ends.get(TopicPartition(record.topic, record.partition), 0):
                    yield record

    async def close(self) -> None:
        """Close the reader."""
        await self._consumer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def read_to_end(
    log: EventLog,
    topics: Sequence[str],
    *,
    run_id: str | None = None,
    starts: Positions | None = None,
    ends: Positions | None = None,
) -> AsyncGenerator[StoredRecord, None]:
    """Yield the present records of the topics; see :meth:`TopicReader.open` for the arguments."""
    async with (
        await TopicReader.open(log, topics, run_id=run_id, starts=starts, ends=ends) as reader,
        contextlib.aclosing(reader.read_to(reader.ends)) as records,
    ):
        async for record in records:
            yield record


async def events_to_end(
    log: EventLog,
    topics: Sequence[str],
    *,
    run_id: str | None = None,
    starts: Positions | None = None,
    ends: Positions | None = None,
) -> AsyncGenerator[tuple[StoredRecord, Event], None]:
    """Yield the present events of the topics, each with its record; with ``run_id``, only its events.

    See :meth:`TopicReader.open` for the other arguments.
    """
    reading = read_to_end(log, topics, run_id=run_id, starts=starts, ends=ends)
    async with contextlib.aclosing(reading) as records:
        async for record in records:
            event = readable_event(record)
            if event is not None and (run_id is None or event.run_id == run_id):
                yield record, event


def readable_event(record: StoredRecord) -> Event | None:
    """Return the event in ``record``; warn and return ``None`` if this version cannot read one."""
    try:
        return event_from_record(record)
    except EventError as error:
        _logger.warning("record left out", reason=str(error))
        return None


def of_run(records: Iterable[StoredRecord], run_id: str) -> list[StoredRecord]:
    """Leave out the records of other runs, by their headers: decoding each takes several times as long.

    A record without a header that names a run stays.
    """
    source = source_header(run_id)
    return [record for record in records if record.headers.get("ce_source", source) == source]


def readable_events(records: Iterable[StoredRecord]) -> Iterator[Event]:
    """Yield the events in ``records`` and leave out records that are no event; see :func:`readable_event`."""
    for record in records:
        event = readable_event(record)
        if event is not None:
            yield event


async def any_record(log: EventLog, starts: Positions, ends: Positions) -> bool:
    """Return whether there is a record from ``starts`` up to ``ends``: offsets have gaps and do not tell.

    Partitions that are not in ``starts`` are looked at from their beginning.
    """
    topics = sorted({at.topic for at in ends})
    begins = await offsets_of(log.beginning_offsets, topics)
    first = {at: max(begins[at], starts.get(at, 0)) for at in ends}
    async with contextlib.aclosing(read_to_end(log, topics, starts=first, ends=ends)) as records:
        return await anext(records, None) is not None


async def read_record(log: EventLog, at: TopicPartition, offset: int) -> StoredRecord:
    """Return one record.

    Raises:
        EventLogError: the record is not in the log any more.
    """
    ends = await log.end_offsets(at.topic)
    consumer = await log.consumer([at.topic], start="end")
    try:
        await consumer.seek({**ends, at: offset})
        # Read only up to this record's offset; if the record was deleted, the position moves past it.
        async for records in read_on(consumer, {at: min(offset + 1, ends[at])}, max_records=1):
            for record in records:
                if (record.partition, record.offset) == (at.partition, offset):
                    return record
    finally:
        await consumer.close()
    raise EventLogError(f"{at}@{offset} is no longer in the log")


async def read_tail(
    log: EventLog, topic: str, count: int, wanted: Callable[[StoredRecord], bool] = lambda record: True
) -> tuple[list[StoredRecord], Consumer]:
    """Return the last ``count`` wanted records, oldest first, and a consumer that goes on after them.

    It reads four times as far back each time until it has ``count`` records. The caller closes the consumer.
    """
    begins, ends = await log.beginning_offsets(topic), await log.end_offsets(topic)
    found: dict[TopicPartition, list[StoredRecord]] = {}
    back = count
    unfinished = set(ends) if count else set()
    while unfinished:
        starts = {at: max(begins[at], ends[at] - back) if at in unfinished else ends[at] for at in ends}
        found |= {at: [] for at in unfinished}
        async for record in read_to_end(log, (topic,), starts=starts, ends=ends):
            if wanted(record):
                found[TopicPartition(topic, record.partition)].append(record)
        # Each partition may hold any share of the last records, so each must yield ``count`` records or all
        # it has.
        unfinished = {at for at in unfinished if len(found[at]) < count and starts[at] > begins[at]}
        back *= 4
    consumer = await log.consumer([topic], start="end")
    await consumer.seek(ends)
    records = sorted(
        (record for records in found.values() for record in records),
        key=lambda record: (record.timestamp_ms, record.partition, record.offset),
    )
    return records[-count:] if count else [], consumer
