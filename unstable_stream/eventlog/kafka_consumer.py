"""The consumer of a Kafka log.

aiokafka fetches and rebalances in the background; :meth:`KafkaConsumer.poll` takes over what happened. Where
to read is decided here, never by aiokafka: at the committed position, at ``start``, or where this member was.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka
from aiokafka.structs import TopicPartition as KafkaPartition

from unstable_stream.errors import EventLogError, FencedError, LogUnavailableError
from unstable_stream.eventlog.kafka_buffer import Buffers
from unstable_stream.eventlog.kafka_cluster import Cluster
from unstable_stream.eventlog.kafka_errors import LOST_MEMBERSHIP, is_passing, translating
from unstable_stream.eventlog.kafka_membership import Membership
from unstable_stream.eventlog.kafka_offsets import KafkaOffsets, listed
from unstable_stream.eventlog.kafka_topics import KafkaTopics
from unstable_stream.eventlog.port import Positions, Start, StoredRecord, TopicPartition

__all__ = ["KafkaConsumer", "LogParts"]

_WAIT_MS: Final = 60_000  # for records; a poll stops waiting earlier by itself
_CLOSE_TIMEOUT_S: Final = 10.0

_Fetched: TypeAlias = Mapping[Any, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class LogParts:
    """What an open log shares with its consumers."""

    cluster: Cluster
    topics: KafkaTopics
    offsets: KafkaOffsets


class KafkaConsumer:
    """Implements :class:`~unstable_stream.eventlog.port.Consumer`. One task at a time may use it."""

    def __init__(
        self,
        log: LogParts,
        consumer: AIOKafkaConsumer,
        topics: Sequence[str],
        group: str | None,
        start: Start,
        on_close: Callable[["KafkaConsumer"], None],
    ) -> None:
        """``consumer`` is started, and has no partitions yet."""
        self._log = log
        self._consumer = consumer
        self._topics = topics
        self._group = group
        self._start = start
        self._on_close = on_close
        self._members = Membership(consumer, self._ring)
        self._taken_over = 0  # version of the share this member reads now
        self._owned: Mapping[TopicPartition, int] = {}
        self._next: dict[TopicPartition, int] = {}
        self._unsaved: set[TopicPartition] = set()
        self._buffers = Buffers()
        self._paused: set[TopicPartition] = set()
        self._fetching: asyncio.Task[_Fetched] | None = None
        self._bell: asyncio.Future[None] | None = None
        self._joined = False
        self._polling = False
        self._closed = False

    @property
    def cluster(self) -> Cluster:
        """The cluster of its log."""
        return self._log.cluster

    def read_all(self, positions: Positions) -> None:
        """Without a group: read these partitions from these positions."""
        self._consumer.assign([KafkaPartition(*at) for at in positions])
        self._owned = dict.fromkeys(positions, 0)
        self._go_to(positions)

    # -- reading ----------------------------------------------------------------------------------

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[StoredRecord]:
        """Return up to ``max_records``, in offset order within each partition.

        While no broker answers it returns nothing: aiokafka goes on trying.

        Raises:
            OffsetOutOfRangeError: retention deleted what was to be read next; :meth:`seek` to go on.
            EventLogError: the brokers do not allow it.
        """
        self._check_open()
        if max_records < 1:
            raise ValueError(f"max_records is {max_records}, expected at least 1")
        if self._polling:
            raise EventLogError("this consumer is being polled already: one task at a time may poll it.")
        self._polling = True
        try:
            return await self._poll(max_records, timeout_s)
        finally:
            self._polling = False

    async def _poll(self, max_records: int, timeout_s: float) -> list[StoredRecord]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if self._group is not None and not self._joined:
            self._joined = True
            self._consumer.subscribe(list(self._topics), listener=self._members)
        await asyncio.sleep(
            0
        )  # with records at hand nothing below waits, but fetches and heartbeats must run
        while True:
            bell = self._bell = loop.create_future()
            if await self._follow_the_group():
                try:
                    await self._fill(max_records)
                except kafka.KafkaError as error:
                    await self._judge(error)
                    continue
                records = self._serve(max_records)
                if records:
                    return records
            if loop.time() >= deadline:
                return []
            waiting: set[asyncio.Future[Any]] = {bell}
            if self._fetching is not None:
                waiting.add(self._fetching)
            # Neither is cancelled by a cancelled poll: what the fetch brings is there for the next one.
            await asyncio.wait(waiting, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            self._check_open()

    async def _follow_the_group(self) -> bool:
        """Take over the share this member got; tell whether it has one."""
        members = self._members
        if self._group is None:
            return True
        while not members.rebalancing and members.version != self._taken_over:
            version, owned = members.version, members.owned
            begins = {at: self._next[at] for at, since in owned.items() if self._owned.get(at) == since}
            new = [at for at in owned if at not in begins]
            begins |= await self._begin_at(new)
            if members.rebalancing or members.version != version:
                continue
            self._unsaved &= begins.keys() - set(new)
            self._owned = owned
            self._taken_over = version
            if self._fetching is not None and self._fetching.done():
                self._fetching.exception()  # whatever it brought was fetched before we said from where
                self._fetching = None
            self._next.clear()
            self._buffers = Buffers()
            self._paused.clear()
            self._go_to(begins)
        return not members.rebalancing

    async def _begin_at(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where a member begins with partitions that are new to it."""
        if not partitions:
            return {}
        assert self._group is not None
        committed = await self._log.topics.committed(self._group)
        # Nobody has committed anything: what this member has read before is the best there is.
        known = {at: committed.get(at, self._next.get(at)) for at in partitions}
        missing = [at for at, offset in known.items() if offset is None]
        started = await self._log.offsets.start(missing, self._start)
        return {at: started[at] if offset is None else offset for at, offset in known.items()}

    async def _fill(self, enough: int) -> None:
        """Move what aiokafka has fetched into the buffers, without waiting for more.

        Partitions with ``enough`` records pause, so that those with fewer are fetched meanwhile: aiokafka has
        one fetch under way for each broker, and holds it back while it has records itself.
        """
        if self._fetching is None:
            self._take_in(await self._consumer.getmany(timeout_ms=0), enough)
        elif self._fetching.done():
            fetching, self._fetching = self._fetching, None
            self._take_in(fetching.result(), enough)
        if not self._buffers and self._fetching is None and self._owned:
            self._fetching = asyncio.create_task(self._consumer.getmany(timeout_ms=_WAIT_MS))

    def _take_in(self, fetched: _Fetched, enough: int) -> None:
        for (topic, partition), records in fetched.items():
            at = TopicPartition(topic, partition)
            if at in self._owned:
                self._buffers.add(at, records)
        full = [at for at in self._owned if self._buffers.count(at) >= enough and at not in self._paused]
        self._consumer.pause(*(KafkaPartition(*at) for at in full))
        self._paused.update(full)

    def _serve(self, max_records: int) -> list[StoredRecord]:
        records, ends = self._buffers.take(max_records)
        self._next.update(ends)
        self._unsaved |= ends.keys()
        low = [at for at in self._paused if self._buffers.count(at) < max_records]
        self._consumer.resume(*(KafkaPartition(*at) for at in low))
        self._paused.difference_update(low)
        if self._fetching is None or not self._fetching.done():
            self._move_past_markers()
        return records

    def _move_past_markers(self) -> None:
        """Where all that was fetched is returned, go to where aiokafka is: behind what holds no records."""
        assignment = self._consumer._subscription.subscription.assignment
        for at in self._owned:
            if at not in self._buffers:
                state = assignment.state_value(at)
                if state is not None and state.has_valid_position and state.position > self._next[at]:
                    self._next[at] = state.position
                    self._unsaved.add(at)

    async def _judge(self, error: kafka.KafkaError) -> None:
        """Raise what the user has to know; let pass what mends itself."""
        if isinstance(error, kafka.NoOffsetForPartitionError):
            return  # a new share, and we have not yet said from where
        self._go_to({at: self._buffers.end(at, self._next[at]) for at in self._owned}, keep=True)
        if isinstance(error, kafka.OffsetOutOfRangeError):
            ((at, offset),) = error.args[0].items()
            raise await self._log.offsets.out_of_range(TopicPartition(*at), offset) from error
        if not is_passing(error):
            with translating(self._log.cluster.location, f"read {', '.join(self._topics)}"):
                raise error

    def _go_to(self, positions: Positions, *, keep: bool = False) -> None:
        """Let aiokafka go on from there; ``keep``: what is buffered comes before."""
        for at, offset in positions.items():
            self._consumer.seek(KafkaPartition(*at), offset)
            if not keep:
                self._next[at] = offset

    def _ring(self) -> None:
        """Wake a poll that waits."""
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    # -- positions --------------------------------------------------------------------------------

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions this member reads now; changes only inside :meth:`poll`."""
        return frozenset(self._owned)

    def positions(self) -> Positions:
        """Next offset of every assigned partition."""
        return dict(self._next)

    async def committed(self) -> Positions:
        """The group's committed positions of the assigned partitions that have one; none without a group."""
        self._check_open()
        if self._group is None:
            return {}
        found = await self._log.topics.committed(self._group)
        return {at: offset for at, offset in found.items() if at in self._owned}

    async def commit(self, positions: Positions | None = None) -> None:
        """Commit ``positions``, by default all that moved since the last commit.

        Raises:
            FencedError: a partition belongs to this member no more; nothing was committed.
            EventLogError: the consumer has no group.
        """
        self._check_open()
        if positions is None:
            positions = {at: self._next[at] for at in self._unsaved}
        positions = dict(positions)
        try:
            async with asyncio.timeout(self._log.cluster.delivery_timeout_s):
                while await self.claim(positions) and positions:
                    try:
                        await self._consumer.commit(
                            {KafkaPartition(*at): offset for at, offset in positions.items()}
                        )
                    except LOST_MEMBERSHIP:
                        self._members.moves()  # until aiokafka has joined again
                    else:
                        break
        except TimeoutError as error:
            raise LogUnavailableError(
                f"the positions of group {self._group!r} could not be committed within "
                f"{self._log.cluster.delivery_timeout_s:g} s: check that the brokers run."
            ) from error
        self.saved(positions)

    async def claim(self, positions: Positions) -> str:
        """Return the group if these partitions are this member's; waits for a rebalance under way.

        Raises:
            FencedError: a partition is not.
            EventLogError: the consumer has no group or is closed.
        """
        self._check_open()
        if self._group is None:
            raise EventLogError(
                "a consumer without a group has no positions to commit: open it with group=…, or keep its "
                "positions() yourself."
            )
        if positions.keys() <= self._owned.keys():
            await self._members.settled()
            self._check_open()
        for at in positions:
            if at not in self._owned or self._members.owned.get(at) != self._owned[at]:
                raise FencedError(
                    f"{at} is not assigned to this consumer of group {self._group!r} (it has "
                    f"{listed(self._members.owned)}): nothing was committed."
                )
        return self._group

    def saved(self, positions: Positions) -> None:
        """Note that these positions were committed."""
        self._unsaved -= {at for at, offset in positions.items() if self._next.get(at) == offset}

    async def seek(self, positions: Positions) -> None:
        """Go on from these offsets; whether they exist shows in the next :meth:`poll`.

        Raises:
            EventLogError: a partition is not assigned.
        """
        self._check_open()
        for at in positions:
            if at not in self._owned or (self._group is not None and at not in self._members.owned):
                raise EventLogError(
                    f"cannot seek to {at}@{positions[at]}: this consumer has {listed(self._owned)}. "
                    "A member of a group gets its partitions in poll()."
                )
        if self._fetching is not None and self._fetching.done():
            with contextlib.suppress(kafka.KafkaError):  # comes again, if it still matters
                self._take_in(self._fetching.result(), sys.maxsize)
            self._fetching = None
        for at in positions:
            self._buffers.drop(at)
        self._go_to(positions)
        self._unsaved |= positions.keys()

    async def close(self) -> None:
        """Leave the group: its other members take over at once. What was not committed is read again."""
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        self._ring()
        self._members.close()
        await stop(self._consumer)
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
            if not self._fetching.cancelled():
                self._fetching.exception()

    def _check_open(self) -> None:
        if self._closed:
            raise EventLogError("this consumer is closed; open another one to go on.")


async def stop(consumer: AIOKafkaConsumer) -> None:
    """Stop aiokafka's consumer, within bounds."""
    # Its tasks must have begun: one that is cancelled before its first step ends stop() half way.
    await asyncio.sleep(0)
    with contextlib.suppress(TimeoutError, kafka.KafkaError):
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await consumer.stop()
