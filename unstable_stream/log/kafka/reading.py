"""Read partitions through aiokafka from our own positions, and return records of all partitions fairly."""

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, TypeAlias

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka
from aiokafka.structs import TopicPartition as KafkaPartition

from unstable_stream.log.kafka.readers import stop_reader
from unstable_stream.log.kafka.records import stored_record
from unstable_stream.log.port import Positions, StoredRecord, TopicPartition

_WAIT_MS: Final = 60_000  # waiting for records; a poll stops its own waiting earlier

_Fetched: TypeAlias = Mapping[Any, Sequence[Any]]


class Reading:
    """The fetched and returned records of some partitions, and the fetch in progress."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._queues: dict[TopicPartition, deque[Any]] = {}  # in the order of their turns; no queue is empty
        self._paused: set[TopicPartition] = set()
        self._fetching: asyncio.Task[_Fetched] | None = None
        self.positions: dict[TopicPartition, int] = {}
        """The next offset to return, by partition."""
        self.moved: set[TopicPartition] = set()
        """Partitions whose position changed since they were last taken out of here."""

    @property
    def fetching(self) -> asyncio.Task[_Fetched] | None:
        """A task that ends when :meth:`fetch` has records to take. Cancelling a caller that waits for it
        loses nothing.
        """
        return self._fetching

    @property
    def waiting(self) -> Positions:
        """The positions of partitions of which all fetched records were returned."""
        return {at: offset for at, offset in self.positions.items() if at not in self._queues}

    def on(self, consumer: AIOKafkaConsumer) -> "Reading":
        """Return what reads on from here through another consumer; it has fetched nothing yet."""
        other = Reading(consumer)
        other.positions, other.moved = dict(self.positions), set(self.moved)
        return other

    def begin(self, positions: Positions) -> None:
        """Read these partitions, which are assigned in aiokafka, and no others."""
        if self._fetching is not None and self._fetching.done():
            self._fetching.exception()  # its records were fetched before we set the positions
            self._fetching = None
        self._queues.clear()
        self._paused.clear()
        self.moved &= {at for at, offset in positions.items() if self.positions.get(at) == offset}
        self.positions = dict(positions)
        self._tell(positions)

    def seek(self, positions: Positions) -> None:
        """Go on from these offsets."""
        if self._fetching is not None and self._fetching.done():
            with contextlib.suppress(kafka.KafkaError):  # the error comes again if it still matters
                self._take_in(self._fetching.result(), sys.maxsize)
            self._fetching = None
        for at in positions:
            self._queues.pop(at, None)
        self.positions.update(positions)
        self.moved |= positions.keys()
        self._tell(positions)

    def begin_again(self) -> None:
        """Fetch again the records after those in memory; called after an error."""
        self._tell({at: self._fetched_to(at) for at in self.positions})

    def _fetched_to(self, at: TopicPartition) -> int:
        queue = self._queues.get(at)
        return int(queue[-1].offset) + 1 if queue else self.positions[at]

    def _tell(self, positions: Positions) -> None:
        """Let aiokafka go on from these offsets; ignore partitions that a rebalance has just taken away."""
        assigned = self._consumer.assignment()
        for at, offset in positions.items():
            if at in assigned:
                self._consumer.seek(KafkaPartition(*at), offset)

    async def fetch(self, enough: int) -> None:
        """Take the records that aiokafka has fetched; if there are none, start a task that waits for them.

        Partitions with ``enough`` records pause, so that the others are fetched meanwhile: aiokafka makes one
        fetch at a time for each broker, and delays it while it holds records itself.

        Raises aiokafka's errors.
        """
        if self._fetching is None:
            self._take_in(await self._consumer.getmany(timeout_ms=0), enough)
        elif self._fetching.done():
            fetching, self._fetching = self._fetching, None
            self._take_in(fetching.result(), enough)
        if not self._queues and self._fetching is None and self.positions:
            self._fetching = asyncio.create_task(self._consumer.getmany(timeout_ms=_WAIT_MS))

    def _take_in(self, fetched: _Fetched, enough: int) -> None:
        for (topic, partition), records in fetched.items():
            at = TopicPartition(topic, partition)
            if records and at in self.positions:
                self._queues.setdefault(at, deque()).extend(records)
        full = [at for at, queue in self._queues.items() if len(queue) >= enough and at not in self._paused]
        self._consumer.pause(*(KafkaPartition(*at) for at in full))
        self._paused.update(full)

    def take(self, most: int) -> list[StoredRecord]:
        """Remove up to ``most`` records, in equal shares of the partitions, in turns."""
        found: dict[TopicPartition, list[StoredRecord]] = {}
        room = most
        while self._queues and room > 0:
            share = max(1, room // len(self._queues))
            for at in list(self._queues)[:room]:
                queue = self._queues.pop(at)
                count = min(share, len(queue))
                records = [stored_record(queue.popleft()) for _ in range(count)]
                found.setdefault(at, []).extend(records)
                self.positions[at] = records[-1].offset + 1
                room -= count
                if queue:
                    self._queues[at] = queue  # its next turn comes after all others
        self.moved |= found.keys()
        low = [at for at in self._paused if len(self._queues.get(at, ())) < most]
        self._consumer.resume(*(KafkaPartition(*at) for at in low))
        self._paused.difference_update(low)
        self._move_past_markers()
        return [record for records in found.values() for record in records]

    def _move_past_markers(self) -> None:
        """Move past offsets without records in partitions whose fetched records are all returned."""
        if self._fetching is not None and self._fetching.done():
            return  # it fetched records that were not taken yet
        assigned = self._consumer.assignment()
        for at, offset in self.positions.items():
            if at not in self._queues and at in assigned:
                position = _without_waiting(self._consumer.position(KafkaPartition(*at)))
                if position is not None and position > offset:
                    self.positions[at] = position
                    self.moved.add(at)

    async def close(self) -> None:
        """Stop reading; a member leaves its group at once."""
        await stop_reader(self._consumer)
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
            if not self._fetching.cancelled():
                self._fetching.exception()


def _without_waiting(asked: Coroutine[Any, Any, int]) -> int | None:
    """Return the result of a coroutine that does not wait; ``None`` if it would wait.

    Awaiting it could be cancelled after records were taken out and before they are returned.
    """
    try:
        asked.send(None)
    except StopIteration as returned:
        return int(returned.value)
    asked.close()
    return None
