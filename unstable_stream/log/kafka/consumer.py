"""The consumer of a Kafka log.

aiokafka fetches and rebalances in the background; :meth:`KafkaConsumer.poll` takes over the results. This
module, never aiokafka, decides the position to read from: the committed one, ``start``, or this member's last
one.

A consumer of aiokafka that stands still is replaced by another (:class:`Standstill`). A member then joins its
group anew, as after a silence.
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
from unstable_stream.errors import EventLogError
from unstable_stream.log.handles import ConsumerHandle
from unstable_stream.log.kafka.cluster import Brokers
from unstable_stream.log.kafka.errors import is_passing, translating
from unstable_stream.log.kafka.reading import KafkaOffsets, Membership, Reading, ShareAssignor, stop_reader
from unstable_stream.log.kafka.topics import KafkaTopics
from unstable_stream.log.port import Positions, Start, StoredRecord, TopicPartition
from unstable_stream.log.topic_drift import WHEN_OPENED, partitions_changed

_PAUSE_S: Final = 0.05  # pause after an error that may pass
_TAKE_OVER_S: Final = 5.0  # a poll may look up its first positions this long, after its timeout too
_TURNS_TO_TELL: Final = 10
"""Turns of the event loop within which aiokafka tells that it has left its group; it takes a few."""
_NOWHERE: Final = KafkaPartition("", 0)  # no topic has this name, so nobody fetches from it

OpenReader: TypeAlias = Callable[[], Awaitable[tuple[AIOKafkaConsumer, ShareAssignor]]]
"""Opens another consumer of aiokafka for the same group, with its assignor."""

_log = get_logger(__name__)


STANDSTILL_S: Final = 30.0
"""Seconds without a record after which a partition is looked at. A change of leaders takes about ten."""
_LOOKS: Final = 20
"""A reader that is asked seldom is not blamed: so often it had the opportunity to read."""


class Standstill:
    """Watches the positions of one reader: records wait, brokers answer, and for long it has read none.

    aiokafka reads in background tasks. In a thousand faults one such reader was seen to read nothing any more
    after its broker had been killed and had come back, without an error, while others read on. Whoever polls
    it could wait for ever.
    """

    def __init__(
        self,
        find_ends: Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]],
        after_s: float = STANDSTILL_S,
    ) -> None:
        """Take what asks brokers for the ends of partitions, over other connections than the reader's."""
        self._find_ends = find_ends
        self._after_s = after_s
        self.begin()

    def begin(self) -> None:
        """Forget all that was seen, and begin to watch."""
        self._since_s: dict[tuple[TopicPartition, int], float] = {}
        """By partition and offset, since when the reader is there."""
        self._asked_s = self._suspected_s = 0.0
        self._asking: asyncio.Future[Mapping[TopicPartition, int]] | None = None
        self._suspects: set[tuple[TopicPartition, int]] = set()
        """Partitions with records behind these positions, when the brokers were asked."""
        self._looks = 0

    def is_certain(self, positions: Positions) -> bool:
        """Return true if the reader stands still; it has just tried to read on from ``positions``.

        It waits for nothing.
        """
        now_s = asyncio.get_running_loop().time()
        self._since_s = {stand: self._since_s.get(stand, now_s) for stand in positions.items()}
        if self._asking is not None and self._asking.done():
            asking, self._asking = self._asking, None
            # Where the brokers do not answer, whoever reads waits for them.
            with contextlib.suppress(EventLogError):
                ends = asking.result()
                self._suspected_s, self._looks = now_s, 0
                self._suspects = {(at, offset) for at, offset in self._since_s if offset < ends.get(at, 0)}
        self._suspects &= self._since_s.keys()
        if self._suspects:
            self._looks += 1
            return self._looks >= _LOOKS and now_s - self._suspected_s >= self._after_s / 2
        old = [at for (at, _), since_s in self._since_s.items() if now_s - since_s >= self._after_s]
        if old and self._asking is None and now_s - self._asked_s >= self._after_s:
            self._asked_s = now_s
            self._asking = asyncio.ensure_future(self._find_ends(old))
        return False

    def end(self) -> None:
        """Ask nothing more."""
        if self._asking is not None:
            self._asking.cancel()


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
        # Who takes few records at a time leaves the others in memory: for these nobody waits.
        if self._standstill.is_certain(self._reading.waiting):
            await self._read_anew()
            if self._group is not None:
                return []  # its owner lets go of its partitions before it is given others
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
                await self._stop_hearing()  # with a share, a fetch raises the same errors
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

    async def _read_anew(self) -> None:
        """Go on through another consumer of aiokafka from where this one stands."""
        _log.warning(
            "records wait and are not read: the connection to the brokers is opened anew",
            group=self._group,
            positions={str(at): offset for at, offset in sorted(self._reading.positions.items())},
        )
        self._standstill.begin()
        try:
            reader, assignor = await self._open_reader()
        except EventLogError as error:
            _log.warning("not opened, tried again later", group=self._group, reason=str(error))
            return
        if self._closed:
            await stop_reader(reader)
            self._check_open()
        await self._stop_hearing()
        before = self._reading
        self._consumer, self._reading = reader, Reading(reader, before.positions)
        self._members = Membership(assignor, self._ring)
        self._taken_over, self._owned = 0, {}
        if self._group is None:
            self.read_all(before.positions)
        await before.close()

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

    async def commit(self, positions: Positions) -> None:
        """Commit positions.

        Raises:
            FencedError: a partition is no longer this member's, or the group divides its partitions anew;
                nothing was committed.
            EventLogError: the consumer has no group.
            LogUnavailableError: the brokers did not accept the positions in time.
        """
        self._check_open()
        if self._group is None:
            raise self._without_group()
        # A commit without a member's name is an administrator's: brokers take it while the group is empty.
        for _ in range(_TURNS_TO_TELL):
            await asyncio.sleep(0)
        mine = {} if self._members.rebalancing else self._members.owned
        for at in positions:
            if at not in mine or mine[at] != self._owned.get(at):
                raise self._not_assigned(at, self._group, mine)
        if not positions:
            return
        offsets = {KafkaPartition(*at): offset for at, offset in positions.items()}
        with translating(self._log.cluster.location, f"commit positions of group {self._group!r}"):
            async with asyncio.timeout(self._log.cluster.delivery_timeout_s):
                # The commit has its own task: in a cancelled commit, aiokafka's later errors would be lost.
                committing = asyncio.create_task(self._consumer.commit(offsets))
                committing.add_done_callback(lambda task: task.cancelled() or task.exception())
                await asyncio.shield(committing)

    async def seek(self, positions: Positions) -> None:
        """Go on from these offsets; if one does not exist, the next :meth:`poll` raises.

        Raises :class:`EventLogError` if a partition is not assigned.
        """
        self._check_seek(positions, self._owned)
        self._reading.seek(positions)

    async def _close(self) -> None:
        self._ring()
        self._standstill.end()
        await self._stop_hearing()
        await self._reading.close()

    async def _stop_hearing(self) -> None:
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
