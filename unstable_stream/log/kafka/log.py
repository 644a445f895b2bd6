"""The event log on a Kafka cluster.

``KafkaLog.open("kafka://host:9092")`` only reads the location. The first coroutine connects, and binds the
log to its event loop. The log reads only committed records (``read_committed``). All replicas in sync
acknowledge every record written, and it is stored once even if it was sent several times.

An append or transaction is visible when it returns, with one exception: an earlier transaction of another
process may still be open in one of its partitions. Then readers see the later records when that one ends.
"""

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Self

from aiokafka import AIOKafkaConsumer

from unstable_stream.errors import EventLogError
from unstable_stream.log.kafka.append import Appender
from unstable_stream.log.kafka.cluster import Brokers, set_up_aiokafka
from unstable_stream.log.kafka.consumer import STANDSTILL_S, KafkaConsumer, KafkaParts
from unstable_stream.log.kafka.location import KafkaLocation, parse_location
from unstable_stream.log.kafka.producer import KafkaProducer, read_names, read_states
from unstable_stream.log.kafka.reading import KafkaOffsets, ShareAssignor, open_reader
from unstable_stream.log.kafka.records import prepare
from unstable_stream.log.kafka.sending import open_sender
from unstable_stream.log.kafka.topics import KafkaTopics
from unstable_stream.log.port import Positions, Record, Start, TopicPartition, TopicSpec


class KafkaLog:
    """Implements :class:`~unstable_stream.log.port.EventLog` on Kafka."""

    def __init__(self, cluster: Brokers, session_timeout_s: float, standstill_s: float) -> None:
        """Store the parts; use :meth:`open` instead."""
        self._cluster = cluster
        self._standstill_s = standstill_s
        self._session_timeout_s = session_timeout_s
        self._parts = KafkaParts(cluster, KafkaTopics(cluster), KafkaOffsets(cluster))
        self._appender = Appender(cluster, self._parts.topics)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: set[KafkaConsumer | KafkaProducer] = set()
        self._closed = False

    @classmethod
    def open(
        cls,
        location: str | KafkaLocation,
        *,
        environ: Mapping[str, str] | None = None,
        connect_timeout_s: float = 15.0,
        delivery_timeout_s: float = 60.0,
        session_timeout_s: float = 10.0,
        standstill_s: float = STANDSTILL_S,
    ) -> Self:
        """Open the log at ``location`` without sending anything.

        Args:
            location: see :mod:`~unstable_stream.log.kafka.location`.
            environ: completes the location; by default the environment of this process.
            connect_timeout_s: seconds that the first request waits for a broker.
            delivery_timeout_s: seconds that later requests wait for brokers that restart or moved.
            session_timeout_s: seconds of silence after which a group member loses its partitions. A busy
                event loop makes a member silent.
            standstill_s: seconds after which a consumer that reads none of the records that wait for it opens
                its connections anew; it takes half as long again to be certain.

        Raises:
            ConfigError: the location is malformed, or its certificates cannot be read.
        """
        if isinstance(location, str):
            location = parse_location(location, os.environ if environ is None else environ)
        set_up_aiokafka()
        cluster = Brokers(location, connect_timeout_s, delivery_timeout_s)
        return cls(cluster, session_timeout_s, standstill_s)

    def __repr__(self) -> str:
        return f"<KafkaLog {self._cluster.location}>"

    def _use(self) -> KafkaParts:
        """Return the parts, in the event loop of the first use."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise EventLogError("this log is closed; open it again to go on.")
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise EventLogError("this log was used in another event loop: open one for each event loop.")
        return self._parts

    async def log_id(self) -> str:
        """Return the cluster's id."""
        return await self._use().topics.cluster_id()

    @property
    def compacts(self) -> bool:
        """Return true: brokers clean topics that have the policy ``compact``."""
        return True

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create missing topics; existing ones keep their settings.

        Raises :class:`EventLogError` if an existing one has another number of partitions.
        """
        await self._use().topics.create(specs)

    async def topics(self) -> Mapping[str, int]:
        """Return the number of partitions by topic name, without Kafka's own topics."""
        return await self._use().topics.partitions()

    async def topic_settings(self) -> Mapping[str, TopicSpec]:
        """Return the topics with their present settings."""
        return await self._use().topics.settings()

    async def alter_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Give existing topics the settings of their spec; raises :class:`UnknownTopicError`."""
        await self._use().topics.alter(specs)

    async def append(self, records: Sequence[Record]) -> list[tuple[TopicPartition, int]]:
        """Append a batch atomically and durably; return partition and offset of each, in order.

        Batches of several tasks are sent together; each is stored whole or not at all; see
        :mod:`~unstable_stream.log.kafka.append`.

        Raises:
            UnknownTopicError: a topic or forced partition does not exist.
            RecordTooLargeError: a record exceeds its topic's limit.
            LogUnavailableError: the brokers did not accept the batch in time; it may be stored or not.
        """
        parts = self._use()
        if not records:
            return []
        batch = await prepare(records, parts.topics)
        await self._appender.append(batch)
        return batch.places()

    async def producer(self, producer_id: str) -> KafkaProducer:
        """Open a transactional producer and fence earlier ones with the same id."""
        parts = self._use()
        opened = await open_sender(self._cluster, f"open producer {producer_id!r}", producer_id)
        producer = KafkaProducer(self._cluster, parts.topics, opened, producer_id, self._open.discard)
        self._open.add(producer)
        return producer

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, start: Start = "beginning"
    ) -> KafkaConsumer:
        """Open a consumer; it joins its group in its first poll.

        Raises :class:`UnknownTopicError`.
        """
        parts = self._use()
        found = await parts.topics.find(topics, reload=True)
        whole = [TopicPartition(name, n) for name, topic in found.items() for n in range(topic.partitions)]
        begins = await parts.offsets.start(whole, start) if group is None else {}

        async def read() -> tuple[AIOKafkaConsumer, ShareAssignor]:
            assignor = ShareAssignor()
            return await open_reader(self._cluster, group, self._session_timeout_s, assignor), assignor

        consumer = KafkaConsumer(
            parts,
            *await read(),
            list(found),
            group,
            start,
            self._open.discard,
            read,
            self._standstill_s,
        )
        self._open.add(consumer)
        if group is None:
            consumer.read_all(begins)
        return consumer

    async def beginning_offsets(self, topic: str) -> Positions:
        """Return the offset of the first retained record of each partition."""
        return await self._use().offsets.beginning(await self._partitions(topic))

    async def end_offsets(self, topic: str) -> Positions:
        """Return the last stable offsets: no reader goes beyond the first open transaction."""
        return await self._use().offsets.end(await self._partitions(topic))

    async def high_watermarks(self, topic: str) -> Positions:
        """Return the offset after the last record of each partition, in an open transaction or behind it."""
        return await self._use().offsets.high_watermark(await self._partitions(topic))

    async def offsets_for_time(self, topic: str, timestamp_ms: int) -> Positions:
        """Return the first offset with a timestamp at or after the given one, for each partition; the end if
        none.
        """
        return await self._use().offsets.for_time(await self._partitions(topic), timestamp_ms)

    async def _partitions(self, topic: str) -> list[TopicPartition]:
        found = await self._use().topics.find([topic])
        return [TopicPartition(topic, number) for number in range(found[topic].partitions)]

    async def groups(self) -> Sequence[str]:
        """Return the names of all groups that have committed positions, sorted."""
        return await self._use().topics.groups()

    async def committed_positions(self, group: str) -> Positions:
        """Return all positions that a group has committed."""
        return await self._use().topics.committed(group)

    async def saved(self, scope: str, names: Collection[str] | None = None) -> Mapping[str, bytes]:
        """Return the saved states of a scope, or those of these names."""
        return await read_states(self, self._use().topics, scope, names)

    async def saved_names(self) -> Mapping[str, Collection[str]]:
        """Return the names of all saved states, by scope: it reads the whole topic."""
        return await read_names(self, self._use().topics)

    async def close(self) -> None:
        """Close all consumers and producers, finish appends in progress and disconnect. A second call does
        nothing.
        """
        if self._closed:
            return
        try:
            for opened in list(self._open):
                await opened.close()
            await self._appender.close()
        finally:
            self._closed = True
            await self._parts.offsets.close()
            await self._parts.topics.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
