"""The consumer of a Kafka log.

aiokafka fetches and rebalances in the background; :meth:`KafkaConsumer.poll` takes over the results. This
module, never aiokafka, decides the position to read from: the committed one, ``start``, or this member's last
one.

A consumer of aiokafka that stands still is replaced by another
(:mod:`~unstable_stream.log.kafka.standstill`). A member then joins its group anew, as after a silence.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka
from aiokafka.structs import TopicPartition as KafkaPartition

from unstable_stream.console import get_logger
from unstable_stream.errors import EventLogError, FencedError, LogUnavailableError
from unstable_stream.log.handles import ConsumerHandle, listed
from unstable_stream.log.kafka.cluster import Brokers
from unstable_stream.log.kafka.errors import LOST_MEMBERSHIP, is_passing, translating
from unstable_stream.log.kafka.membership import Membership, ShareAssignor
from unstable_stream.log.kafka.offsets import KafkaOffsets
from unstable_stream.log.kafka.readers import stop_reader
from unstable_stream.log.kafka.reading import Reading
from unstable_stream.log.kafka.standstill import Standstill
from unstable_stream.log.kafka.topics import KafkaTopics
from unstable_stream.log.port import Positions, Start, StoredRecord, TopicPartition
from unstable_stream.log.topic_drift import WHEN_OPENED, partitions_changed

_PAUSE_S: Final = 0.05  # pause after an error that may pass
_TAKE_OVER_S: Final = 5.0  # a poll may look up its first positions this long, after its timeout too
_NOWHERE: Final = KafkaPartition("", 0)  # no topic has this name, so nobody fetches from it

OpenReader: TypeAlias = Callable[[], Awaitable[tuple[AIOKafkaConsumer, ShareAssignor]]]
"""Opens another consumer of aiokafka for the same group, with its assignor."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KafkaParts:
    """The objects that an open log shares with its consumers."""

    cluster: Brokers
    topics: KafkaTopics
    offsets: KafkaOffsets


class KafkaConsumer(ConsumerHandle):
    """Implements :class:`~unstable_stream.log.port.Consumer`. One task at a time may use it."""

    def __init__(
        self,
        log: KafkaParts,
        consumer: AIOKafkaConsumer,
        assignor: ShareAssignor,
        topics: Sequence[str],
        group: str | None,
        start: Start,
        on_close: Callable[["KafkaConsumer"], None],
        open_reader: OpenReader,
        standstill_s: float,
    ) -> None:
        """Take a ``consumer`` that was started with ``assignor`` and has no partitions yet."""
        super().__init__(on_close)
        self._log = log
        self._consumer = consumer
        self._topics = topics
        self._group = group
        self._start = start
        self._reading = Reading(consumer)
        self._open_reader = open_reader
        self._standstill = Standstill(self._find_ends, standstill_s)
        self._reopening: asyncio.Future[tuple[AIOKafkaConsumer, ShareAssignor]] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._hearing: asyncio.Future[Any] | None = None
        self._members = Membership(assignor, self._ring)
        self._taken_over = 0  # version of the share that this member reads now
        self._owned: Mapping[TopicPartition, int] = {}
        self._bell: asyncio.Future[None] | None = None

    def read_all(self, positions: Positions) -> None:
        """Read these partitions from these positions, without a group."""
        self._consumer.assign([KafkaPartition(*at) for at in positions])
        self._owned = dict.fromkeys(positions, 0)
        self._reading.begin(positions)

    # -- reading ----------------------------------------------------------------------------------

    async def _poll(self, max_records: int, timeout_s: float) -> list[StoredRecord]:
        records = await self._next_records(max_records, timeout_s)
        self._look_for_standstill()
        return records

    async def _next_records(self, max_records: int, timeout_s: float) -> list[StoredRecord]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if self._group is not None and not self._consumer.subscription():
            self._consumer.subscribe(list(self._topics), listener=self._members)
        await asyncio.sleep(0)  # with records ready nothing below waits, but fetches and heartbeats must run
        while True:
            self._check_partitions()
            bell = self._bell = loop.create_future()
            if await self._follow_the_group(timeout_s):
                self._check_open()
                self._end_hearing()
                try:
                    await self._reading.fetch(enough=max_records)
                except kafka.KafkaError as error:
                    await self._judge(error)
                    continue
                records = self._reading.take(max_records)
                if records:
                    return records
            else:
                await self._hear_of_the_group()
            if loop.time() >= deadline:
                return []
            waiting: set[asyncio.Future[Any]] = {bell}
            if self._reading.fetching is not None:
                waiting.add(self._reading.fetching)
            # One that has ended is taken up in its own branch above: waiting for it would not wait.
            if self._hearing is not None and not self._hearing.done():
                waiting.add(self._hearing)
            await asyncio.wait(waiting, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            self._check_open()

    def _check_partitions(self) -> None:
        for name in self._topics:
            topic, now = self._log.topics.known(name), len(self._consumer.partitions_for_topic(name) or ())
            if topic is not None and now > topic.partitions:
                raise partitions_changed(name, topic.partitions, now, WHEN_OPENED)

    async def _find_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return await self._log.offsets.end(partitions)

    def _look_for_standstill(self) -> None:
        """Replace aiokafka's consumer if it stands still; called at the end of each poll."""
        if self._reopening is None:
            # Who takes few records at a time leaves the others in memory: for these nobody waits.
            if not self._standstill.is_certain(self._reading.waiting):
                return
            _log.warning(
                "records wait and are not read: the connection to the brokers is opened anew",
                group=self._group,
                positions={str(at): offset for at, offset in sorted(self._reading.positions.items())},
            )
            self._reopening = asyncio.ensure_future(self._open_reader())
        elif self._reopening.done():
            reopening, self._reopening = self._reopening, None
            self._standstill = self._standstill.again()
            try:
                reader, assignor = reopening.result()
            except EventLogError as error:
                _log.warning("not opened, tried again later", group=self._group, reason=str(error))
                return
            self._read_through(reader, assignor)

    def _read_through(self, reader: AIOKafkaConsumer, assignor: ShareAssignor) -> None:
        """Go on through another consumer of aiokafka from where this one stands."""
        before = self._reading
        leaving = asyncio.create_task(before.close())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        self._members.close()
        self._end_asking()
        self._consumer, self._reading = reader, before.on(reader)
        self._members = Membership(assignor, self._ring)
        self._taken_over = 0
        if self._group is None:
            self.read_all(before.positions)
        else:
            self._owned = {}

    async def _follow_the_group(self, timeout_s: float) -> bool:
        """Take over this member's new share; return whether it has one and reads it."""
        members = self._members
        if self._group is None:
            return True
        try:
            async with asyncio.timeout(max(timeout_s, _TAKE_OVER_S)):
                while not members.rebalancing and members.version != self._taken_over:
                    await self._take_over(members.version, members.owned)
        except TimeoutError:
            return False
        return not members.rebalancing

    async def _hear_of_the_group(self) -> None:
        """Raise why this member cannot join, as for want of rights.

        A fetch raises it, too, but without a share there is none. aiokafka joins again only after its error
        was heard, so one that passes must be heard as well. Until it has joined or failed, aiokafka answers
        nothing, also where the consumer is closed meanwhile: so this is asked in a task.
        """
        if self._hearing is None:
            self._hearing = asyncio.ensure_future(self._consumer.getmany(_NOWHERE, timeout_ms=0))
        await asyncio.wait([self._hearing], timeout=0)
        if self._hearing.done():
            hearing, self._hearing = self._hearing, None
            try:
                hearing.result()
            except kafka.KafkaError as error:
                await self._judge(error)

    def _end_hearing(self) -> None:
        """Forget an answer that came after all: with a share, a fetch raises the same error."""
        if self._hearing is not None and self._hearing.done():
            hearing, self._hearing = self._hearing, None
            if not hearing.cancelled():
                hearing.exception()

    async def _take_over(self, version: int, owned: Mapping[TopicPartition, int]) -> None:
        positions = self._reading.positions
        begins = {at: positions[at] for at, since in owned.items() if self._owned.get(at) == since}
        begins |= await self._begin_at([at for at in owned if at not in begins])
        if not self._members.rebalancing and self._members.version == version:
            self._owned = owned
            self._taken_over = version
            self._reading.begin(begins)

    async def _begin_at(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first positions in partitions that are new to this member."""
        if not partitions:
            return {}
        assert self._group is not None
        committed = await self._log.topics.committed(self._group)
        # Where nobody has committed a position, this member's own last position is the best one.
        known = {at: committed.get(at, self._reading.positions.get(at)) for at in partitions}
        missing = [at for at, offset in known.items() if offset is None]
        started = await self._log.offsets.start(missing, self._start)
        return {at: started[at] if offset is None else offset for at, offset in known.items()}

    async def _judge(self, error: kafka.KafkaError) -> None:
        """Raise errors that the user must know; ignore those that pass by themselves."""
        if not self._members.rebalancing or self._group is None:
            self._reading.begin_again()
        if isinstance(error, kafka.OffsetOutOfRangeError):
            ((at, offset),) = error.args[0].items()
            raise await self._log.offsets.out_of_range(TopicPartition(*at), offset) from error
        # An error without an offset means a new share for which we have not set positions yet.
        if not is_passing(error) and not isinstance(error, kafka.NoOffsetForPartitionError):
            with translating(self._log.cluster.location, f"read {', '.join(self._topics)}"):
                raise error
        await asyncio.sleep(_PAUSE_S)

    def _ring(self) -> None:
        """Wake a waiting poll."""
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    # -- positions --------------------------------------------------------------------------------

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this member reads now; they change only inside :meth:`poll`."""
        return frozenset(self._owned)

    def positions(self) -> Positions:
        """Return the next offset of every assigned partition."""
        return dict(self._reading.positions)

    async def committed(self) -> Positions:
        """Return the committed positions of assigned partitions; none without a group."""
        self._check_open()
        if self._group is None:
            return {}
        found = await self._log.topics.committed(self._group)
        return {at: offset for at, offset in found.items() if at in self._owned}

    async def commit(self, positions: Positions | None = None) -> None:
        """Commit ``positions``; by default all positions that changed since the last commit.

        Raises:
            FencedError: a partition is no longer this member's; nothing was committed.
            EventLogError: the consumer has no group.
            LogUnavailableError: the brokers did not accept the positions in time.
        """
        self._check_open()
        if positions is None:
            positions = {at: self._reading.positions[at] for at in self._reading.moved}
        offsets = {KafkaPartition(*at): offset for at, offset in positions.items()}
        committed = False
        try:
            async with asyncio.timeout(self._log.cluster.delivery_timeout_s):
                while not committed:
                    group = await self._claim(positions)
                    committed = not offsets or await self._commit(group, offsets)
        except TimeoutError as error:
            raise LogUnavailableError(
                f"the positions of group {self._group!r} could not be committed within "
                f"{self._log.cluster.delivery_timeout_s:g} s: check that the brokers run."
            ) from error
        now = self._reading.positions
        self._reading.moved -= {at for at, offset in positions.items() if now.get(at) == offset}

    async def _commit(self, group: str, offsets: Mapping[Any, int]) -> bool:
        """Return whether the commit worked; if not, the group is in a rebalance: try again after it."""
        version = self._members.version
        with translating(self._log.cluster.location, f"commit positions of group {group!r}"):
            # The commit has its own task: in a cancelled commit, aiokafka's later errors would be lost.
            committing = asyncio.create_task(self._consumer.commit(offsets))
            committing.add_done_callback(_heard)
            try:
                await asyncio.shield(committing)
            except LOST_MEMBERSHIP:
                if self._members.version == version:  # else the rebalance has ended: no further share comes
                    self._members.moves()
                return False
        return True

    async def _claim(self, positions: Positions) -> str:
        """Return the group if these partitions are this member's; first wait for the end of a rebalance.

        Raises:
            FencedError: a partition is not this member's.
            EventLogError: the consumer has no group or is closed.
            LogUnavailableError: the rebalance does not end.
        """
        self._check_open()
        if self._group is None:
            raise self._without_group()
        if positions.keys() <= self._owned.keys() and positions:
            within_s = self._log.cluster.delivery_timeout_s
            try:
                async with asyncio.timeout(within_s):
                    await self._settle()
            except TimeoutError as error:
                raise LogUnavailableError(
                    f"group {self._group!r} is dividing its partitions since {within_s:g} s and more: check "
                    "that the brokers run, and that no member of the group has stopped answering."
                ) from error
            self._check_open()
        for at in positions:
            if at not in self._owned or self._members.owned.get(at) != self._owned[at]:
                raise FencedError(
                    f"{at} is not assigned to this consumer of group {self._group!r} (it has "
                    f"{listed(self._members.owned)}): nothing was committed."
                )
        return self._group

    async def _settle(self) -> None:
        """Wait until no rebalance is in progress, or the consumer is closed.

        Who asked for no records for five minutes is out of the group, and aiokafka joins again only while
        records are asked for: so they are.
        """
        while self._members.rebalancing and not self._closed:
            await self._hear_of_the_group()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._members.settled(), _PAUSE_S)

    async def seek(self, positions: Positions) -> None:
        """Go on from these offsets; if one does not exist, the next :meth:`poll` raises.

        Raises :class:`EventLogError` if a partition is not assigned.
        """
        self._check_seek(positions, self._owned)
        self._reading.seek(positions)

    async def _close(self) -> None:
        self._ring()
        self._members.close()
        self._standstill.end()
        asked = self._end_asking()
        if self._reopening is not None and not self._reopening.done():
            self._reopening.cancel()
            asked.append(self._reopening)
        await asyncio.gather(*asked, *self._leaving, return_exceptions=True)
        if (
            self._reopening is not None
            and not self._reopening.cancelled()
            and not self._reopening.exception()
        ):
            await stop_reader(self._reopening.result()[0])
        await self._reading.close()

    def _end_asking(self) -> list[asyncio.Future[Any]]:
        """Cancel what is asked through aiokafka's consumer, and return it."""
        asked = [] if self._hearing is None else [self._hearing]
        self._hearing = None
        for task in asked:
            task.cancel()
        return asked


def _heard(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
