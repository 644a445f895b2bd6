"""A handle on a simulated store: what one process has of the log."""

from collections.abc import Collection, Mapping, Sequence
from typing import Self

from unstable_stream.log.port import Positions, Record, Start, TopicPartition, TopicSpec
from unstable_stream.log.simulated.conditions import CALM, Conditions
from unstable_stream.log.simulated.consumer import SimulatedConsumer
from unstable_stream.log.simulated.producer import SimulatedProducer
from unstable_stream.log.simulated.store import SimulatedStore

__all__ = ["SimulatedLog"]


class SimulatedLog:
    """Implements :class:`~unstable_stream.log.port.EventLog` in memory."""

    def __init__(self, store: SimulatedStore | None = None, conditions: Conditions = CALM) -> None:
        """Open a handle on a store, by default on a new one.

        Args:
            store: shared by all handles of one log.
            conditions: decides on this handle's requests.
        """
        self.store = SimulatedStore() if store is None else store
        self._conditions = conditions
        self._consumers: set[SimulatedConsumer] = set()

    async def log_id(self) -> str:
        """Return the store's identity."""
        await self._conditions.request("read")
        return self.store.log_id

    @property
    def compacts(self) -> bool:
        """Return whether the store may be compacted."""
        return self.store.compacts

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create those that do not exist; existing ones keep their settings.

        Raises :class:`EventLogError` if an existing one has another number of partitions.
        """
        await self._conditions.request("topics")
        self.store.create_topics(specs)

    async def topics(self) -> Mapping[str, int]:
        """Topic name to number of partitions."""
        await self._conditions.request("read")
        return {name: spec.partitions for name, spec in self.store.topics.items()}

    async def topic_settings(self) -> Mapping[str, TopicSpec]:
        """Return the topics with the settings they have now."""
        await self._conditions.request("read")
        return dict(self.store.topics)

    async def alter_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Give existing topics the settings of their spec; raises :class:`UnknownTopicError`."""
        await self._conditions.request("topics")
        self.store.alter_topics(specs)

    async def append(self, records: Sequence[Record]) -> list[tuple[TopicPartition, int]]:
        """Append a batch atomically; return partition and offset of each, in order.

        Raises:
            UnknownTopicError: a topic or forced partition does not exist.
            RecordTooLargeError: a record exceeds its topic's limit.
            LogUnavailableError: the conditions say so; the batch may have been stored.
        """
        if not records:
            return []
        placed = self.store.place(records)
        await self._conditions.request("append")
        places = self.store.append(placed)
        await self._conditions.answer("append")
        return places

    async def producer(self, producer_id: str) -> SimulatedProducer:
        """Open a transactional producer, fencing off any earlier one with the same id."""
        await self._conditions.request("producer")
        epoch = self.store.open_producer(producer_id)
        await self._conditions.answer("producer")
        return SimulatedProducer(self.store, self._conditions, producer_id, epoch)

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, start: Start = "beginning"
    ) -> SimulatedConsumer:
        """Open a consumer; a member of a group joins it in its first poll.

        Raises :class:`UnknownTopicError`.
        """
        await self._conditions.request("read")
        consumer = SimulatedConsumer(
            self.store, self._conditions, topics, group, start, self._consumers.discard
        )
        self._consumers.add(consumer)
        return consumer

    async def beginning_offsets(self, topic: str) -> Positions:
        """Offset of the first retained record of each partition."""
        await self._conditions.request("read")
        return {at: self.store.begin(at) for at in self.store.partitions(topic)}

    async def end_offsets(self, topic: str) -> Positions:
        """Offset after the last record of each partition that no open transaction holds back."""
        await self._conditions.request("read")
        return {at: self.store.end(at) for at in self.store.partitions(topic)}

    async def high_watermarks(self, topic: str) -> Positions:
        """Offset after the last record of each partition."""
        await self._conditions.request("read")
        return {at: self.store.high_watermark(at) for at in self.store.partitions(topic)}

    async def offsets_for_time(self, topic: str, timestamp_ms: int) -> Positions:
        """First offset of each partition with a timestamp at or after the given one; the end if none."""
        await self._conditions.request("read")
        return {at: self.store.offset_for_time(at, timestamp_ms) for at in self.store.partitions(topic)}

    async def groups(self) -> Sequence[str]:
        """Return the names of all groups that have committed positions, sorted."""
        await self._conditions.request("read")
        return self.store.groups_with_positions()

    async def committed_positions(self, group: str) -> Positions:
        """All positions a group has committed."""
        await self._conditions.request("read")
        return dict(self.store.positions(group))

    async def saved(self, scope: str, names: Collection[str] | None = None) -> Mapping[str, bytes]:
        """Return the saved states of a scope, or those of these names."""
        await self._conditions.request("read")
        return self.store.saved(scope, names)

    async def saved_names(self) -> Mapping[str, Collection[str]]:
        """Return the names of all saved states, by scope."""
        await self._conditions.request("read")
        return self.store.saved_names()

    async def close(self) -> None:
        """Close all consumers of this handle; the store stays. Idempotent."""
        for consumer in list(self._consumers):
            await consumer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
