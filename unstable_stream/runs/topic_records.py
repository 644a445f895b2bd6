"""One run's records of one topic, read once up to a fixed end, in bounded memory."""

from collections.abc import AsyncIterator
from typing import Final

from unstable_stream.errors import EventError, EventLogError
from unstable_stream.events import Event
from unstable_stream.log.port import Consumer, EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.log.records import event_from_record

__all__ = ["RunReader", "event_of_run", "read_record", "run_events"]

_BATCH: Final = 2000


class RunReader:
    """Reads a topic from its beginning, a stretch at a time; close it at the end."""

    def __init__(self, consumer: Consumer, topic: str, run_id: str, ends: Positions) -> None:
        """See :meth:`open`."""
        self._consumer = consumer
        self._topic = topic
        self._source = f"/unstable_stream/runs/{run_id}".encode()
        self.ends = ends

    @classmethod
    async def open(cls, log: EventLog, topic: str, run_id: str, ends: Positions | None = None) -> "RunReader":
        """Open one for the run's records below ``ends``, by default the topic's present end."""
        ends = dict(ends if ends is not None else await log.end_offsets(topic))
        return cls(await log.consumer([topic]), topic, run_id, ends)

    async def close(self) -> None:
        """Let go of the log."""
        await self._consumer.close()

    async def read_to(self, positions: Positions) -> AsyncIterator[StoredRecord]:
        """Go on until each partition has been read up to ``positions``; it may be read somewhat further.

        Yields each partition in order. A record that does not say whose it is is yielded too: decode it.
        """
        targets = {where: min(end, positions.get(where, 0)) for where, end in self.ends.items()}
        while any(self._consumer.positions().get(where, 0) < target for where, target in targets.items()):
            for record in await self._consumer.poll(max_records=_BATCH, timeout_s=0.2):
                # Saves decoding what other runs wrote.
                if record.headers.get("ce_source", self._source) != self._source:
                    continue
                if record.offset < self.ends.get(TopicPartition(self._topic, record.partition), 0):
                    yield record


async def run_events(
    log: EventLog, topic: str, run_id: str, ends: Positions | None = None
) -> AsyncIterator[tuple[StoredRecord, Event]]:
    """Yield the run's events below ``ends``; what is no event was set aside by everyone who read it."""
    reader = await RunReader.open(log, topic, run_id, ends)
    try:
        async for record in reader.read_to(reader.ends):
            event = event_of_run(record, run_id)
            if event is not None:
                yield record, event
    finally:
        await reader.close()


def event_of_run(record: StoredRecord, run_id: str) -> Event | None:
    """Return the event in ``record``, ``None`` if it is another run's or no event."""
    try:
        event = event_from_record(record)
    except EventError:
        return None
    return event if event.run_id == run_id else None


async def read_record(log: EventLog, topic: str, partition: int, offset: int) -> StoredRecord:
    """Return one record.

    Raises:
        EventLogError: it is not there any more.
    """
    wanted = TopicPartition(topic, partition)
    positions = dict(await log.end_offsets(topic))
    end = positions[wanted]
    positions[wanted] = offset
    consumer = await log.consumer([topic])
    try:
        await consumer.seek(positions)
        while consumer.positions().get(wanted, 0) < end:
            for record in await consumer.poll(max_records=1, timeout_s=0.2):
                if record.partition == partition and record.offset >= offset:
                    if record.offset == offset:
                        return record
                    end = 0  # it has been deleted: a later one came first
    finally:
        await consumer.close()
    raise EventLogError(f"{wanted}@{offset} is no longer in the log")
