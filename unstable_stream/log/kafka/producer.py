"""The transactional producer of a Kafka log.

A transaction is kept in memory until it commits. An exception inside it therefore sends nothing. At the
commit, one Kafka transaction sends the records and the positions and commits them. The call returns when all
readers can see them.

At the commit Kafka checks the producer's id, but not whether a consumer still owns its partitions at that
moment. Two members of a group are certain not to commit the same partition only if each uses a producer for
it whose id is made of the group and the partition.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Final

from aiokafka import errors as kafka

from unstable_stream.errors import EventLogError, FencedError, LogUnavailableError, UnstableStreamError
from unstable_stream.log.handles import ProducerHandle, TransactionHandle
from unstable_stream.log.kafka.cluster import Brokers
from unstable_stream.log.kafka.errors import FENCED, translated
from unstable_stream.log.kafka.records import RecordBatch, pack, prepare
from unstable_stream.log.kafka.sending import Sender
from unstable_stream.log.kafka.topics import KafkaTopics
from unstable_stream.log.port import EventLog, Positions, Record, TopicPartition, TopicSpec, partition_for_key
from unstable_stream.log.reading import TopicReader, settled_ends
from unstable_stream.log.topic_drift import check_partition

_SETTLE_S: Final = 5.0


class KafkaProducer(ProducerHandle):
    """Implements :class:`~unstable_stream.log.port.Producer`."""

    def __init__(
        self,
        cluster: Brokers,
        topics: KafkaTopics,
        sender: Sender,
        producer_id: str,
        on_close: Callable[["KafkaProducer"], None],
    ) -> None:
        super().__init__(producer_id)
        self._cluster = cluster
        self._topics = topics
        self._sender = sender
        self._on_close = on_close
        self._ended_by: UnstableStreamError | None = None

    def transaction(self) -> "KafkaTransaction":
        """Return a transaction to enter with ``async with``; only one may be open."""
        return KafkaTransaction(self, self._topics)

    async def close(self) -> None:
        """Begin no more transactions."""
        if not self._closed:
            self._closed = True
            self._on_close(self)
            if self._ended_by is None:
                await self._sender.close()

    def enter(self) -> None:
        """Note that a transaction begins.

        Raises:
            FencedError: a later producer has taken over.
            LogUnavailableError: it is unknown whether an earlier transaction was committed.
            EventLogError: the producer is closed, or a transaction is open.
        """
        if self._ended_by is not None and not self._closed:
            raise type(self._ended_by)(str(self._ended_by))
        super().enter()

    async def commit(self, batches: Sequence[RecordBatch], group: str, positions: Positions) -> None:
        """Send the records and positions, and commit.

        Raises:
            FencedError: a later producer has taken over; nothing was stored.
            LogUnavailableError: the transaction may be stored or not. This producer cannot be used any more.
        """
        sending = asyncio.create_task(self._commit(batches, group, positions))
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            # A half-finished commit would leave the result unknown. Finish it first, if brokers answer.
            await asyncio.wait([sending], timeout=_SETTLE_S)
            sending.cancel()
            await asyncio.wait([sending])
            if not sending.cancelled():
                sending.exception()  # raised when the next transaction begins
            raise

    async def _commit(self, batches: Sequence[RecordBatch], group: str, positions: Positions) -> None:
        sender = self._sender
        committing = False
        try:
            async with asyncio.timeout(self._cluster.delivery_timeout_s):
                packed = pack(batches, self._topics, in_transaction=True)
                await sender.fill_transaction(packed, group, positions)
                committing = True
                await sender.commit_transaction()
        except (kafka.KafkaError, OSError, asyncio.CancelledError) as error:
            # This producer ends here: beginning again with its id could fence one that took over meanwhile.
            self._ended_by = self._judged(error, committing)
            if not committing and not isinstance(error, FENCED):
                await sender.abort_transaction()
            await sender.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise self._ended_by from error

    def _judged(self, error: BaseException, committing: bool) -> UnstableStreamError:
        name = repr(self._producer_id)
        if isinstance(error, FENCED):
            return FencedError(
                f"producer {name} was taken over by a later one with the same id, or the brokers gave up its "
                "transaction: nothing of it was stored. Stop this process; the other one goes on."
            )
        if isinstance(error, asyncio.CancelledError):
            return LogUnavailableError(
                f"the last transaction of producer {name} was cancelled while it was committed, and may be "
                "stored or not: open another producer, and read the group's positions, to go on."
            )
        found = translated(error, self._cluster.location, f"commit a transaction of producer {name}")
        fate = "It may be stored or not" if committing else "Nothing of it was stored"
        return type(found)(f"{found} {fate}; open another producer to go on.")


class KafkaTransaction(TransactionHandle):
    """Implements :class:`~unstable_stream.log.port.Transaction`."""

    def __init__(self, producer: KafkaProducer, topics: KafkaTopics) -> None:
        super().__init__(producer)
        self._producer = producer
        self._topics = topics
        self._batches: list[RecordBatch] = []
        self._group = ""
        self._positions: dict[TopicPartition, int] = {}

    async def append(self, records: Sequence[Record]) -> None:
        """Add records, to be sent when the transaction commits."""
        self._check_open()
        self._batches.append(await prepare(records, self._topics))

    async def commit_positions(self, group: str, positions: Positions) -> None:
        """Commit positions of a group together with the records."""
        self._check_open()
        if self._group not in ("", group):
            raise EventLogError(
                f"a transaction commits the positions of one group, here {self._group!r}: commit those of "
                f"{group!r} in another."
            )
        positions = dict(positions)
        found = await self._topics.find({at.topic for at in positions})
        for at in positions:
            check_partition(at.topic, at.partition, found[at.topic].partitions)
        self._group = group
        self._positions |= positions

    async def save(self, scope: str, states: Mapping[str, bytes]) -> None:
        """Save states together with the records."""
        self._check_open()
        records = await state_records(self._topics, scope, states)
        self._batches.append(await prepare(records, self._topics, tombstones=True))

    async def _end(self) -> None:
        await self._producer.commit(self._batches, self._group, self._positions)


# -- saved states -----------------------------------------------------------------------------------
#
# They are in one compacted topic of the adapter's own. The scope picks the partition, and scope and name
# together are the record key. So the states of a scope are the newest records of its keys in one partition,
# and brokers remove the older ones. The adapter makes the topic when the first state is saved.

STATES: Final = TopicSpec(
    name="saved-states",
    partitions=8,
    cleanup_policy="compact",
    key="scope and name",
    writers=("stream processors",),
    readers=("stream processors",),
    description="Snapshots of the state of stream processors: disposable.",
)
_BETWEEN: Final = "\t"

# Brokers do not compact the segment that is being written. With their defaults (1 GiB, a week) nothing would
# be compacted for long, and a reader reads all of it.
_SETTINGS: Final = {
    "segment.bytes": str(32 * 1024 * 1024),
    "segment.ms": str(60 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.2",
}


async def state_records(topics: KafkaTopics, scope: str, states: Mapping[str, bytes]) -> list[Record]:
    """Return the records that save states; make the topic if it does not exist."""
    topic = topics.known(STATES.name)
    if topic is None:
        await topics.create([STATES], _SETTINGS)
        topic = (await topics.find([STATES.name]))[STATES.name]
    partition = partition_for_key(scope, topic.partitions)
    now_ms = time.time_ns() // 1_000_000  # brokers begin a new segment by the time of its records
    return [
        Record(STATES.name, f"{scope}{_BETWEEN}{name}", state, timestamp_ms=now_ms, partition=partition)
        for name, state in states.items()
    ]


async def read_states(
    log: EventLog, topics: KafkaTopics, scope: str, names: Collection[str] | None
) -> dict[str, bytes]:
    """Return the states of a scope; see the port."""
    found = {name: state async for owner, name, state in _states(log, topics, scope) if owner == scope}
    return {name: state for name, state in found.items() if state and (names is None or name in names)}


async def read_names(log: EventLog, topics: KafkaTopics) -> dict[str, list[str]]:
    """Return the names of all states by scope; see the port."""
    there: dict[tuple[str, str], bool] = {}
    async for scope, name, state in _states(log, topics, None):
        there[scope, name] = bool(state)
    found: dict[str, list[str]] = {}
    for scope, name in sorted(key for key, is_there in there.items() if is_there):
        found.setdefault(scope, []).append(name)
    return found


async def _states(
    log: EventLog, topics: KafkaTopics, scope: str | None
) -> AsyncIterator[tuple[str, str, bytes]]:
    """Yield scope, name and state of all records up to the present ends, or of those where a scope is."""
    partitions = (await topics.partitions()).get(STATES.name)
    if partitions is None:
        return
    begins = await log.beginning_offsets(STATES.name)
    ends = await settled_ends(log, (STATES.name,))
    of_scope = None if scope is None else partition_for_key(scope, partitions)
    starts = {at: begins[at] if of_scope in (None, at.partition) else end for at, end in ends.items()}
    async with await TopicReader.open(log, (STATES.name,), starts=starts, ends=ends) as reader:
        async for record in reader.read_to(ends):
            owner, _, name = record.key.partition(_BETWEEN)
            yield owner, name, record.value
