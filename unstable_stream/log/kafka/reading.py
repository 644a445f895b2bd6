"""Read through aiokafka: start and stop its consumers, follow a group, and return records of all partitions
fairly.
"""

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import errors as kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.structs import TopicPartition as KafkaPartition

from unstable_stream.errors import OffsetOutOfRangeError
from unstable_stream.log.kafka.cluster import Brokers, Lazy
from unstable_stream.log.kafka.records import stored_record
from unstable_stream.log.port import Positions, Start, StoredRecord, TopicPartition

_FETCH_WAIT_MS: Final = 200
"""Milliseconds that a broker waits for records; other requests to it wait too."""

_WAIT_MS: Final = 60_000  # waiting for records; a poll stops its own waiting earlier
_METADATA_S: Final = 10  # after this time, at the latest, a reader notices partitions that were added
_FETCH_BYTES: Final = 16 * 1024 * 1024
_PARTITION_FETCH_BYTES: Final = 2 * 1024 * 1024
_HEARTBEAT_S: Final = 0.5  # after this time members notice a rebalance
_CLOSE_TIMEOUT_S: Final = 10.0
_STOPPING: Final[set[asyncio.Task[None]]] = set()  # an event loop does not hold its tasks
_LAST_FETCH_S: Final = 0.01  # a fetch in progress ends in a few turns of the event loop

_Fetched: TypeAlias = Mapping[Any, Sequence[Any]]


class ShareAssignor(RangePartitionAssignor):  # type: ignore[misc]  # aiokafka publishes no types
    """Kafka's range assignor: it divides topics of equal size in the same way, so equal keys go to one
    member.

    It also tells a member whether another member may have owned its partitions between its last two shares.
    No other member did if this member asked to join once and still has the same name: brokers make a
    generation without a member only after they forget its name. aiokafka hides the names, so the leader
    writes each member's name into its share.
    """

    def __init__(self) -> None:
        self._joins = 0
        self._name = b""
        self.unbroken = False
        """True if this member belonged to every generation since its share before the last one."""

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Note that the member asks to join; aiokafka calls this each time."""
        self._joins += 1
        return super().metadata(topics)

    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        """Divide the partitions among the members; the group's leader calls this."""
        return {
            name: ConsumerProtocolMemberAssignment(share.version, share.assignment, name.encode())
            for name, share in super().assign(cluster, members).items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Check a new share. A share from a leader with another assignor has no name in it."""
        name = bytes(assignment.user_data or b"")
        self.unbroken = self._joins == 1 and name != b"" and name == self._name
        self._name = name
        self._joins = 0


class Membership(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka publishes no types
    """The partitions that a member owns now, and for each the share since which no other member owned it.

    aiokafka rebalances in the background and calls this listener.
    """

    def __init__(self, assignor: ShareAssignor, on_change: Callable[[], None]) -> None:
        self._assignor = assignor
        self._on_change = on_change
        self.rebalancing = True
        """True from the first sign of a rebalance until this member has its new share."""
        self.version = 0
        """The number of shares that this member received."""
        self.owned: Mapping[TopicPartition, int] = {}
        """By partition, the first version of the unbroken row of shares in which this member had it."""

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        """Note that a rebalance begins."""
        self.rebalancing = True
        self._on_change()

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        """Note the new share."""
        # In a generation without this member, another member may have had its partitions.
        before = self.owned if self._assignor.unbroken else {}
        self.version += 1
        partitions = [TopicPartition(at.topic, at.partition) for at in assigned]
        self.owned = {at: before.get(at, self.version) for at in partitions}
        self.rebalancing = False
        self._on_change()


async def open_reader(
    cluster: Brokers,
    group: str | None = None,
    session_timeout_s: float = 10.0,
    assignor: ShareAssignor | None = None,
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed",
) -> AIOKafkaConsumer:
    """Start an aiokafka consumer without topics. It commits nothing itself.

    The fetch limits bound memory, not the size of a record: a larger record comes alone.

    Args:
        cluster: the cluster to read from.
        group: the group to join.
        session_timeout_s: seconds of silence after which a member loses its partitions.
        assignor: divides partitions and interprets this member's shares.
        isolation_level: ``read_uncommitted`` is for looking up offsets only.

    Raises the :class:`~unstable_stream.errors.EventLogError` family.
    """

    async def start() -> AIOKafkaConsumer:
        reader = AIOKafkaConsumer(
            **cluster.settings(),
            group_id=group,
            isolation_level=isolation_level,
            enable_auto_commit=False,
            auto_offset_reset="none",
            partition_assignment_strategy=(assignor or ShareAssignor(),),
            session_timeout_ms=round(session_timeout_s * 1000),
            heartbeat_interval_ms=round(min(session_timeout_s / 3, _HEARTBEAT_S) * 1000),
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            metadata_max_age_ms=_METADATA_S * 1000,
        )
        try:
            await reader.start()
        except BaseException:
            await _stop(reader)
            raise
        return reader

    return await cluster.start(start, "connect" if group is None else f"join group {group!r}")


async def stop_reader(reader: AIOKafkaConsumer) -> None:
    """Stop a started consumer; a member leaves its group at once.

    The call waits a limited time for a broker that does not answer; then stopping goes on in the background.
    """
    # Its tasks must have begun: a task that is cancelled before its first step makes stop() end too early.
    await asyncio.sleep(0)
    # A fetch that stop() cancels while a broker is away has the same effect. Unsubscribing cancels it
    # correctly.
    reader.unsubscribe()
    await asyncio.sleep(_LAST_FETCH_S)
    await _stop(reader)


async def _stop(reader: AIOKafkaConsumer) -> None:
    stopping = asyncio.create_task(reader.stop())
    _STOPPING.add(stopping)
    stopping.add_done_callback(_STOPPING.discard)
    await asyncio.wait((stopping,), timeout=_CLOSE_TIMEOUT_S)
    if stopping.done() and not stopping.cancelled():
        with contextlib.suppress(kafka.KafkaError):
            stopping.result()


class Reading:
    """The fetched and returned records of some partitions, read from our own positions, and the fetch in
    progress.
    """

    def __init__(self, consumer: AIOKafkaConsumer, positions: Positions = MappingProxyType({})) -> None:
        self._consumer = consumer
        self._queues: dict[TopicPartition, deque[Any]] = {}  # in the order of their turns; no queue is empty
        self._paused: set[TopicPartition] = set()
        self._fetching: asyncio.Task[_Fetched] | None = None
        self.positions = dict(positions)
        """The next offset to return, by partition."""

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

    def begin(self, positions: Positions) -> None:
        """Read these partitions, which are assigned in aiokafka, and no others."""
        if self._fetching is not None and self._fetching.done():
            self._fetching.exception()  # its records were fetched before we set the positions
            self._fetching = None
        self._queues.clear()
        self._paused.clear()
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

    async def close(self) -> None:
        """Stop reading; a member leaves its group at once."""
        await stop_reader(self._consumer)
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)


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


class KafkaOffsets:
    """Looks up offsets of whole partitions."""

    def __init__(self, cluster: Brokers) -> None:
        self._cluster = cluster
        self._reader = Lazy(lambda: open_reader(cluster), stop_reader)
        self._uncommitted = Lazy(
            lambda: open_reader(cluster, isolation_level="read_uncommitted"), stop_reader
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._reader.close()
        await self._uncommitted.close()

    async def beginning(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the first retained record of each partition."""
        return await self._look_up(self._reader, AIOKafkaConsumer.beginning_offsets, partitions)

    async def end(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition: committed records behind it cannot be read yet."""
        return await self._look_up(self._reader, AIOKafkaConsumer.end_offsets, partitions)

    async def high_watermark(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition, whatever transaction it is in."""
        return await self._look_up(self._uncommitted, AIOKafkaConsumer.end_offsets, partitions)

    async def _look_up(
        self, lazy: Lazy[AIOKafkaConsumer], find: Callable[..., Any], partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        reader = await lazy.get()
        wanted = [KafkaPartition(*at) for at in partitions]
        found = await self._cluster.ask(lambda: find(reader, wanted), "look up offsets")
        return {at: found[at] for at in partitions}

    async def start(self, partitions: Sequence[TopicPartition], start: Start) -> dict[TopicPartition, int]:
        """Return the first position to read if no position is committed."""
        if not partitions:
            return {}
        if start == "beginning":
            return await self.beginning(partitions)
        if start == "end":
            return await self.end(partitions)
        return await self.for_time(partitions, start)

    async def for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return, for each partition, the first offset with a timestamp at or after the given one; the end if
        none.

        It may be of the end of a transaction, which carries the time of writing. No record before it is so
        late.
        """
        reader = await self._reader.get()
        wanted = {KafkaPartition(*at): max(timestamp_ms, 0) for at in partitions}
        found = await self._cluster.ask(lambda: reader.offsets_for_times(wanted), "look up offsets by time")
        ends = await self.end(partitions)
        return {at: ends[at] if found[at] is None else min(found[at].offset, ends[at]) for at in partitions}

    async def out_of_range(self, at: TopicPartition, offset: int) -> OffsetOutOfRangeError:
        """Return the error for a position that does not exist."""
        begin, end = (await self.beginning([at]))[at], (await self.end([at]))[at]
        return OffsetOutOfRangeError.of(at, offset, begin, end)
