"""A log around another one, for whoever changes only some of its calls."""

from collections.abc import Collection, Mapping, Sequence

from unstable_stream.log.port import (
    Consumer,
    EventLog,
    Positions,
    Producer,
    Record,
    Start,
    TopicPartition,
    TopicSpec,
)


class ForwardingLog:
    """Passes every call of the port on to the log that it is around."""

    def __init__(self, log: EventLog) -> None:
        self._inner = log

    def __repr__(self) -> str:
        return repr(self._inner)

    async def log_id(self) -> str:
        return await self._inner.log_id()

    @property
    def compacts(self) -> bool:
        return self._inner.compacts

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        await self._inner.create_topics(specs)

    async def topics(self) -> Mapping[str, int]:
        return await self._inner.topics()

    async def topic_settings(self) -> Mapping[str, TopicSpec]:
        return await self._inner.topic_settings()

    async def alter_topics(self, specs: Sequence[TopicSpec]) -> None:
        await self._inner.alter_topics(specs)

    async def append(self, records: Sequence[Record]) -> list[tuple[TopicPartition, int]]:
        return await self._inner.append(records)

    async def producer(self, producer_id: str) -> Producer:
        return await self._inner.producer(producer_id)

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, start: Start = "beginning"
    ) -> Consumer:
        return await self._inner.consumer(topics, group, start)

    async def beginning_offsets(self, topic: str) -> Positions:
        return await self._inner.beginning_offsets(topic)

    async def end_offsets(self, topic: str) -> Positions:
        return await self._inner.end_offsets(topic)

    async def high_watermarks(self, topic: str) -> Positions:
        return await self._inner.high_watermarks(topic)

    async def offsets_for_time(self, topic: str, timestamp_ms: int) -> Positions:
        return await self._inner.offsets_for_time(topic, timestamp_ms)

    async def groups(self) -> Sequence[str]:
        return await self._inner.groups()

    async def committed_positions(self, group: str) -> Positions:
        return await self._inner.committed_positions(group)

    async def saved(self, scope: str, names: Collection[str] | None = None) -> Mapping[str, bytes]:
        return await self._inner.saved(scope, names)

    async def saved_names(self) -> Mapping[str, Collection[str]]:
        return await self._inner.saved_names()

    async def close(self) -> None:
        await self._inner.close()
