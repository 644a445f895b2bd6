"""A poll of a member that waits for its group ends in time, whatever aiokafka waits for meanwhile."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import CommitFailedError
from aiokafka.structs import TopicPartition as KafkaPartition

from unstable_stream.errors import EventLogError, FencedError
from unstable_stream.log.kafka.cluster import Brokers
from unstable_stream.log.kafka.consumer import KafkaConsumer, KafkaParts
from unstable_stream.log.kafka.location import parse_location
from unstable_stream.log.kafka.membership import Membership, ShareAssignor
from unstable_stream.log.port import TopicPartition

_DEADLINE_S = 120.0


class _Joining:
    """Stands where aiokafka is, and answers nothing before it has joined, which it never does."""

    def __init__(self) -> None:
        self.asked = 0
        self.topics: Sequence[str] = ()

    async def getmany(self, *partitions: object, timeout_ms: int) -> Mapping[Any, Sequence[Any]]:
        self.asked += 1
        await asyncio.Event().wait()
        return {}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return None

    def subscribe(self, topics: Sequence[str], listener: object) -> None:
        self.topics = topics

    def subscription(self) -> Sequence[str]:
        return self.topics

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset()

    def unsubscribe(self) -> None: ...

    async def stop(self) -> None: ...


async def _reopen() -> tuple[AIOKafkaConsumer, ShareAssignor]:
    raise AssertionError("it does not stand still")


def _member(joining: _Joining) -> KafkaConsumer:
    reader, brokers = cast(AIOKafkaConsumer, joining), cast(Any, _Brokers())
    parts = KafkaParts(Brokers(parse_location("kafka://host:9092", {}), 1.0, _DEADLINE_S), brokers, brokers)
    assignor = ShareAssignor()
    return KafkaConsumer(
        parts, reader, assignor, ["t"], "g", "beginning", lambda _: None, _reopen, _DEADLINE_S
    )


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


class _Rebalancing(_Joining):
    """Stands where aiokafka is: the answer to the first commit comes after a rebalance that began and ended
    meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0
        self._listener: Membership | None = None

    async def getmany(self, *partitions: object, timeout_ms: int) -> Mapping[Any, Sequence[Any]]:
        return {}

    def subscribe(self, topics: Sequence[str], listener: object) -> None:
        self._listener = cast(Membership, listener)
        self.share()

    def share(self) -> None:
        assert self._listener is not None
        self._listener.on_partitions_revoked([])
        self._listener.on_partitions_assigned([KafkaPartition("t", 0)])

    async def commit(self, offsets: Mapping[Any, int]) -> None:
        self.commits += 1
        if self.commits == 1:
            self.share()
            raise CommitFailedError("the generation is not the current one")

    def pause(self, *partitions: object) -> None: ...

    def resume(self, *partitions: object) -> None: ...


class _Brokers:
    """Stands where the brokers answer for the group's positions and the partitions of topics."""

    def known(self, name: str) -> None: ...

    async def committed(self, group: str) -> Mapping[TopicPartition, int]:
        return {TopicPartition("t", 0): 5}

    async def start(
        self, partitions: Sequence[TopicPartition], start: object
    ) -> Mapping[TopicPartition, int]:
        return {}


async def test_a_refused_commit_waits_for_no_share_when_its_rebalance_has_ended() -> None:
    rebalancing = _Rebalancing()
    consumer = _member(rebalancing)
    at = TopicPartition("t", 0)
    async with asyncio.timeout(_DEADLINE_S / 2):
        await consumer.poll(timeout_s=0.01)
        assert consumer.positions() == {at: 5}
        with pytest.raises(FencedError, match="not assigned"):  # another member may have had it in between
            await consumer.commit({at: 6})
        await consumer.poll(timeout_s=0.01)
        await consumer.commit({at: 6})
    assert rebalancing.commits == 2
    await consumer.close()
