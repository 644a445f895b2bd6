"""What the contract suite needs of an adapter under test, and how tests wait: on conditions, not on time."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from unstable_stream.log.port import Consumer, EventLog, Record, StoredRecord, TopicPartition, TopicSpec
from unstable_stream.log.topics import load_topics

DEADLINE_S = 120.0
FOREVER_S = 600.0
"""A poll that is to be woken waits this long: if nobody wakes it, the deadline passes first."""
"""After this long a condition that did not come true fails the test."""


def topics_of_one_partition() -> list[TopicSpec]:
    """Return the topics as earlier versions made them: games and outcomes of all runs are in one order.

    For tests that count offsets.
    """
    return [
        replace(spec, partitions=min((spec.partitions, *spec.earlier_partitions)))
        for spec in load_topics().values()
    ]


@dataclass
class LogHarness:
    """One store, possibly shared with other tests, so topics and groups have names of their own."""

    open_log: Callable[[], Awaitable[EventLog]]
    """Opens another handle on the store, as another process would."""
    hold_back: Callable[[str], AbstractAsyncContextManager[None]] | None = None
    """Leaves a transaction open in partition 0 of a topic; ``None``: the log stores nothing uncommitted."""
    opened: list[EventLog] = field(default_factory=list)

    async def open(self) -> EventLog:
        """Open a handle that is closed when the test ends."""
        log = await self.open_log()
        self.opened.append(log)
        return log

    async def topic(self, partitions: int = 1, max_message_bytes: int = 1024 * 1024) -> str:
        """Create a topic nobody else uses."""
        name = f"topic-{secrets.token_hex(6)}"
        await self.opened[0].create_topics([TopicSpec(name, partitions, max_message_bytes=max_message_bytes)])
        return name

    def group(self) -> str:
        """Return the name of a group nobody else uses."""
        return f"group-{secrets.token_hex(6)}"

    @contextlib.asynccontextmanager
    async def open_transaction(self, topic: str) -> AsyncIterator[bool]:
        """Leave a transaction of another producer open in partition 0; yield whether the log can have one."""
        if self.hold_back is None:
            yield False
            return
        async with self.hold_back(topic):
            yield True

    async def close(self) -> None:
        for log in self.opened:
            await log.close()


def records(topic: str, values: Sequence[str], key: str = "k", partition: int | None = None) -> list[Record]:
    """Records with these values, one key and rising timestamps from 1000 ms."""
    return [
        Record(topic, key, value.encode(), timestamp_ms=1000 + index, partition=partition)
        for index, value in enumerate(values)
    ]


async def read(consumer: Consumer, count: int, timeout_s: float = 1.0) -> list[StoredRecord]:
    """Poll until ``count`` records came; fails after the deadline or if there are more."""
    found: list[StoredRecord] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            found += await consumer.poll(timeout_s=timeout_s)
    assert len(found) == count, [str(record) for record in found]
    return found


async def share_out(
    members: Sequence[Consumer], topics: Sequence[str], partitions: int
) -> list[StoredRecord]:
    """Poll all members until each has its share of the topics' partitions; return what came meanwhile."""
    found: list[StoredRecord] = []
    expected = {TopicPartition(topic, number) for topic in topics for number in range(partitions)}
    async with asyncio.timeout(DEADLINE_S):
        while True:
            for batch in await asyncio.gather(*(member.poll(timeout_s=0.05) for member in members)):
                found += batch
            parts = [member.assignment() for member in members]
            even = max(map(len, parts)) - min(map(len, parts)) <= len(topics)
            if even and sum(map(len, parts)) == len(expected) and frozenset().union(*parts) == expected:
                return found
