"""Reading partitions through aiokafka from positions we decide, and handing records out fairly."""

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

__all__ = ["Reading"]

_WAIT_MS: Final = 60_000  # for records; a poll stops waiting earlier by itself

_Fetched: TypeAlias = Mapping[Any, Sequence[Any]]


class Reading:
    """What has been fetched, returned, and is being fetched of some partitions."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._queues: dict[TopicPartition, deque[Any]] = {}  # in the order of their turns; none is empty
        self._paused: set[TopicPartition] = set()
        self._fetching: asyncio.Task[_Fetched] | None = None
        self.positions: dict[TopicPartition, int] = {}
        """Next offset to return of each partition."""
        self.moved: set[TopicPartition] = set()
        """Whose position moved since it was last taken out of here."""

    @property
    def fetching(self) -> asyncio.Task[_Fetched] | None:
        """Ends when there is something for :meth:`fetch`. Cancelling who waits for it loses nothing."""
        return self._fetching

    def begin(self, positions: Positions) -> None:
        """Read these partitions, which aiokafka has been given, and no others."""
        if self._fetching is not None and self._fetching.done():
            self._fetching.exception()  # whatever it brought, it was fetched before we said from where
            self._fetching = None
        self._queues.clear()
        self._paused.clear()
        self.moved &= {at for at, offset in positions.items() if self.positions.get(at) == offset}
        self.positions = dict(positions)
        self._tell(positions)

    def seek(self, positions: Positions) -> None:
        """Go on from these offsets."""
        if self._fetching is not None and self._fetching.done():
            with contextlib.suppress(kafka.KafkaError):  # comes again, if it still matters
                self._take_in(self._fetching.result(), sys.maxsize)
            self._fetching = None
        for at in positions:
            self._queues.pop(at, None)
        self.positions.update(positions)
        self.moved |= positions.keys()
        self._tell(positions)

    def begin_again(self) -> None:
        """After an error: fetch again what lies behind the records we have."""
        self._tell({at: self._fetched_to(at) for at in self.positions})

    def _fetched_to(self, at: TopicPartition) -> int:
        queue = self._queues.get(at)
        return int(queue[-1].offset) + 1 if queue else self.positions[at]

    def _tell(self, positions: Positions) -> None:
        """Let aiokafka go on from there; what a rebalance has just taken from it does not matter any more."""
        assigned = self._consumer.assignment()
        for at, offset in positions.items():
            if at in assigned:
                self._consumer.seek(KafkaPartition(*at), offset)

    async def fetch(self, enough: int) -> None:
        """Take what aiokafka has fetched, without waiting; if there is nothing, begin to wait for it.

        Partitions with ``enough`` records pause, so that those with fewer are fetched meanwhile: aiokafka has
        one fetch under way for each broker, and holds it back while it has records itself.

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
        """Remove up to ``most`` records: equal shares of all partitions that have as many, in turns."""
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
                    self._queues[at] = queue  # its next turn comes after all others'
        self.moved |= found.keys()
        low = [at for at in self._paused if len(self._queues.get(at, ())) < most]
        self._consumer.resume(*(KafkaPartition(*at) for at in low))
        self._paused.difference_update(low)
        self._move_past_markers()
        return [record for records in found.values() for record in records]

    def _move_past_markers(self) -> None:
        """Where all that was fetched is returned, go to where aiokafka is: behind what holds no records."""
        if self._fetching is not None and self._fetching.done():
            return  # it brought records that nobody has seen yet
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
    """Return what a coroutine returns at once; ``None`` if it would wait.

    To await it could be cancelled, when records have been taken out and not returned yet.
    """
    try:
        asked.send(None)
    except StopIteration as returned:
        return int(returned.value)
    asked.close()
    return None
