"""A poll of a member that waits for its group ends in time, whatever aiokafka waits for meanwhile."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from unstable_stream.errors import EventLogError
from unstable_stream.log.kafka.consumer import KafkaConsumer, LogParts
from unstable_stream.log.kafka.leaders import WatchedConsumer
from unstable_stream.log.kafka.membership import ShareAssignor
from unstable_stream.log.marks import Mark
from unstable_stream.log.port import TopicPartition

_DEADLINE_S = 30.0


class _Joining:
    """Stands where aiokafka is, and answers nothing before it has joined, which it never does."""

    def __init__(self) -> None:
        self.asked = 0

    async def getmany(self, *partitions: object, timeout_ms: int) -> Mapping[Any, Sequence[Any]]:
        self.asked += 1
        await asyncio.Event().wait()
        return {}

    def on_metadata(self, see: Callable[[Any], None]) -> None: ...

    def subscribe(self, topics: Sequence[str], listener: object) -> None: ...

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset()

    def unsubscribe(self) -> None: ...

    async def stop(self) -> None: ...


async def _find_lost(marks: Mapping[TopicPartition, Mark]) -> Mapping[TopicPartition, int]:
    raise AssertionError("nothing was read")


def _member(joining: _Joining) -> KafkaConsumer:
    reader = cast(WatchedConsumer, joining)
    parts = cast(LogParts, None)  # for positions, which no member has before it has joined
    return KafkaConsumer(parts, reader, ShareAssignor(), ["t"], "g", "beginning", lambda _: None, _find_lost)


async def test_a_poll_ends_when_its_time_is_over() -> None:
    joining = _Joining()
    consumer = _member(joining)
    async with asyncio.timeout(_DEADLINE_S):
        for _ in range(3):
            assert await consumer.poll(timeout_s=0.01) == []
    assert joining.asked == 1, "the question stands until it is answered"
    await consumer.close()


async def test_a_poll_ends_when_the_consumer_is_closed() -> None:
    consumer = _member(_Joining())
    waiting = asyncio.create_task(consumer.poll(timeout_s=3600))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    await consumer.close()
    with pytest.raises(EventLogError, match="closed"):
        await asyncio.wait_for(waiting, _DEADLINE_S)
