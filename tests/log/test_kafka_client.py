"""What the Kafka log does with aiokafka: public names alone, shares of a group, polls, fairness, order,
connections.
"""

import ast
import asyncio
import socket
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.conn import create_conn
from aiokafka.structs import TopicPartition as KafkaPartition

import unstable_stream
from unstable_stream.errors import EventLogError
from unstable_stream.log.kafka import cluster
from unstable_stream.log.kafka.cluster import GONE_S, Brokers, set_up_aiokafka
from unstable_stream.log.kafka.consumer import KafkaConsumer, KafkaParts
from unstable_stream.log.kafka.location import parse_location
from unstable_stream.log.kafka.reading import Membership, Reading, ShareAssignor
from unstable_stream.log.port import StoredRecord, TopicPartition


def test_the_kafka_log_reaches_into_nothing() -> None:
    """No private attribute of something that is not ``self``, and no private module of aiokafka."""
    found = []
    for path in (Path(unstable_stream.__file__).parent / "log" / "kafka").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    names = []
                case (
                    ast.Attribute(attr=name)
                    | ast.Call(
                        func=ast.Name(id="getattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_]
                    )
                ):
                    names = [name]
                case ast.ImportFrom(module=str(module), names=imported) if module.startswith("aiokafka"):
                    names = [*module.split("."), *(part.name for part in imported)]
                case _:
                    names = []
            found += [(path.name, name) for name in names if name.startswith("_") and name[:2] != "__"]
    assert found == []


@pytest.mark.parametrize(
    ("joins", "name", "unbroken"),
    [
        (1, "member-a", True),
        (2, "member-a", False),  # a generation may have begun and ended without this member
        (1, "member-b", False),  # the brokers had forgotten it
        (1, None, False),  # from a leader that writes no names
    ],
)
def test_a_share_continues_the_last_one_only_if_no_generation_was_missed(
    joins: int, name: str | None, unbroken: bool
) -> None:
    assignor, at = ShareAssignor(), TopicPartition("t", 0)
    members = Membership(assignor, lambda: None)
    for asked, named in ((1, "member-a"), (joins, name)):
        for _ in range(asked):
            assignor.metadata(["t"])
        assign = assignor.assign if named else super(ShareAssignor, assignor).assign
        cluster = SimpleNamespace(partitions_for_topic=lambda topic: {0})
        share = assign(cluster, {named or "": ShareAssignor().metadata(["t"])})[named or ""]
        assignor.on_assignment(share)
        members.on_partitions_assigned([at])
    assert members.owned == {at: 1 if unbroken else 2}


_DEADLINE_S = 120.0


@pytest.fixture
def joining() -> MagicMock:
    """Stands where aiokafka is, and answers nothing before it has joined, which it never does."""

    async def never(*partitions: object, timeout_ms: int) -> None:
        await asyncio.Event().wait()

    client = MagicMock(AIOKafkaConsumer)
    client.getmany.side_effect = never
    client.partitions_for_topic.return_value = None
    client.subscription.return_value = ["t"]
    client.assignment.return_value = frozenset()
    return client


@pytest.fixture
def member(joining: MagicMock) -> KafkaConsumer:
    topics: Any = SimpleNamespace(known=lambda name: None)
    cluster = Brokers(parse_location("kafka://host:9092", {}), 1.0, _DEADLINE_S)
    parts, reopen = KafkaParts(cluster, topics, topics), AsyncMock(side_effect=AssertionError)
    whose = (ShareAssignor(), ["t"], "g")
    return KafkaConsumer(parts, joining, *whose, "beginning", lambda _: None, reopen, _DEADLINE_S)


async def test_a_poll_ends_when_its_time_is_over(joining: MagicMock, member: KafkaConsumer) -> None:
    async with asyncio.timeout(_DEADLINE_S):
        for _ in range(3):
            assert await member.poll(timeout_s=0.01) == []
    joining.getmany.assert_called_once()  # the question stands until it is answered
    await member.close()


async def test_a_poll_ends_when_the_consumer_is_closed(member: KafkaConsumer) -> None:
    waiting = asyncio.create_task(member.poll(timeout_s=3600))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    await member.close()
    with pytest.raises(EventLogError, match="closed"):
        await asyncio.wait_for(waiting, _DEADLINE_S)


BUSY, QUIET, THIRD = (TopicPartition(topic, 0) for topic in ("busy", "quiet", "third"))


@dataclass(frozen=True)
class _Message:
    topic: str
    partition: int
    offset: int
    key: bytes = b"k"
    value: bytes = b"v"
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp: int = 1


class _Broker:
    """Stands where aiokafka is: each fetch brings all that is there of the partitions that are not paused."""

    def __init__(self) -> None:
        self.there: dict[TopicPartition, deque[_Message]] = {}
        self.paused: set[TopicPartition] = set()
        self._next: dict[TopicPartition, int] = {}

    def append(self, at: TopicPartition, count: int) -> None:
        first = self._next.get(at, 0)
        self._next[at] = first + count
        waiting = self.there.setdefault(at, deque())
        waiting.extend(_Message(at.topic, at.partition, offset) for offset in range(first, first + count))

    async def getmany(self, *, timeout_ms: int) -> Mapping[KafkaPartition, Sequence[Any]]:
        brought = {}
        for at, waiting in self.there.items():
            if at not in self.paused and waiting:
                brought[KafkaPartition(*at)] = list(waiting)
                waiting.clear()
        return brought

    def pause(self, *partitions: KafkaPartition) -> None:
        self.paused |= {TopicPartition(*at) for at in partitions}

    def resume(self, *partitions: KafkaPartition) -> None:
        self.paused -= {TopicPartition(*at) for at in partitions}

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset()  # so that no position is looked up behind markers


@pytest.fixture
def broker() -> _Broker:
    return _Broker()


@pytest.fixture
def reading(broker: _Broker) -> Reading:
    begun = Reading(cast(AIOKafkaConsumer, broker))
    begun.begin({BUSY: 0, QUIET: 0, THIRD: 0})
    return begun


def _topics(records: Sequence[StoredRecord]) -> dict[str, int]:
    return {topic: sum(each.topic == topic for each in records) for topic in ("busy", "quiet", "third")}


async def test_shares_are_equal_and_what_one_cannot_use_goes_to_the_others(
    broker: _Broker, reading: Reading
) -> None:
    for at, count in ((BUSY, 100), (QUIET, 2), (THIRD, 100)):
        broker.append(at, count)
    await reading.fetch(12)
    # 4 each, of which quiet has 2; the two left over are shared again.
    assert _topics(reading.take(12)) == {"busy": 5, "quiet": 2, "third": 5}


async def test_with_room_for_one_partitions_take_turns(broker: _Broker, reading: Reading) -> None:
    for at in (BUSY, QUIET, THIRD):
        broker.append(at, 100)
    await reading.fetch(1)
    turns = []
    for _ in range(6):
        (record,) = reading.take(1)
        turns.append(record.topic)
        await reading.fetch(1)
    assert turns == ["busy", "quiet", "third"] * 2


async def test_a_partition_waits_once_all_that_was_fetched_is_returned(
    broker: _Broker, reading: Reading
) -> None:
    """One whose turn comes late has records in memory: it does not stand still."""
    broker.append(BUSY, 1)
    broker.append(QUIET, 2)
    await reading.fetch(10)
    assert reading.waiting == {THIRD: 0}
    waiting = []
    for _ in range(3):
        reading.take(1)
        waiting.append(reading.waiting)
    assert waiting == [{BUSY: 1, THIRD: 0}, {BUSY: 1, THIRD: 0}, {BUSY: 1, QUIET: 2, THIRD: 0}]


async def test_a_full_partition_is_not_fetched_until_it_holds_less_than_a_batch(
    broker: _Broker, reading: Reading
) -> None:
    broker.append(BUSY, 25)
    await reading.fetch(10)
    assert broker.paused == {BUSY}
    offsets = [record.offset for record in reading.take(10)]
    assert broker.paused == {BUSY}
    broker.append(BUSY, 3)
    await reading.fetch(10)
    assert len(broker.there[BUSY]) == 3, "left with the broker"
    offsets += [record.offset for record in reading.take(10)]
    assert broker.paused == set(), "5 are left, so that more may come"
    await reading.fetch(10)
    offsets += [record.offset for record in reading.take(10)]
    assert offsets == list(range(28))


async def test_the_operating_system_ends_a_connection_that_nothing_acknowledges(kafka_bootstrap: str) -> None:
    set_up_aiokafka()
    host, _, port = kafka_bootstrap.rpartition(":")
    connection = await create_conn(host, int(port))
    try:
        opened = connection._writer.get_extra_info("socket")
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if sys.platform == "linux":
            limit_ms = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert limit_ms == GONE_S * 1000
            probing_s = [
                opened.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            ]
            assert probing_s[0] + probing_s[1] * probing_s[2] == GONE_S
    finally:
        await connection.close()


async def test_a_peer_that_accepts_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    set_up_aiokafka()
    monkeypatch.setattr(cluster, "GONE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with asyncio.timeout(120):
            with pytest.raises(TimeoutError):
                await create_conn(*silent.getsockname(), request_timeout_ms=60_000)
