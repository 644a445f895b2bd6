"""What the Kafka log does with aiokafka: public names alone, shares of a group, polls, fairness, order,
connections.
"""

import ast
import asyncio
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import create_conn
from aiokafka.structs import TopicPartition as KafkaPartition

import unstable_stream
from unstable_stream.errors import EventLogError
from unstable_stream.log.kafka import cluster
from unstable_stream.log.kafka.cluster import GONE_S, Brokers, set_up_aiokafka
from unstable_stream.log.kafka.consumer import KafkaConsumer, KafkaParts
from unstable_stream.log.kafka.location import parse_location
from unstable_stream.log.kafka.reading import Membership, Reading, ShareAssignor
from unstable_stream.log.kafka.records import pack, prepare
from unstable_stream.log.kafka.sending import Sender
from unstable_stream.log.kafka.topics import KafkaTopic, KafkaTopics
from unstable_stream.log.port import Record, StoredRecord, TopicPartition


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


class _Cluster:
    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0}


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
        share = assign(_Cluster(), {named or "": ShareAssignor().metadata(["t"])})[named or ""]
        assignor.on_assignment(share)
        members.on_partitions_assigned([at])
    assert members.owned == {at: 1 if unbroken else 2}


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
    topics = cast(Any, SimpleNamespace(known=lambda name: None))
    cluster = Brokers(parse_location("kafka://host:9092", {}), 1.0, _DEADLINE_S)
    return KafkaConsumer(
        KafkaParts(cluster, topics, topics),
        cast(AIOKafkaConsumer, joining),
        ShareAssignor(),
        ["t"],
        "g",
        "beginning",
        lambda _: None,
        _reopen,
        _DEADLINE_S,
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


class _Topics:
    def known(self, name: str) -> KafkaTopic:
        return KafkaTopic(name, partitions=2, max_message_bytes=10**6)


class _Brokers:
    """Stands where the client of aiokafka is: answers all that is asked, and keeps it in words."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.cluster = SimpleNamespace(leader_for_partition=lambda at: 1)

    async def coordinator_lookup(self, kind: object, key: str) -> int:
        return 1

    async def add_topic(self, topic: str) -> None: ...

    async def send(self, node: int, request: Any, group: object = None) -> Any:
        name = type(request).__name__.removesuffix("Request")
        told = {key.lstrip("_"): value for key, value in vars(request).items()}
        if name == "InitProducerId":
            return SimpleNamespace(error_code=0, producer_id=7, producer_epoch=3)
        if name == "Produce":
            at = [(topic, number) for topic, some in told["topics"] for number, _ in some]
            self.asked += [f"send to {topic}[{number}]" for topic, number in at]
            answers = [(topic, [(number, 0, 0, 0)]) for topic, number in at]
            return SimpleNamespace(topics=answers)
        match name:
            case "AddPartitionsToTxn":
                numbers = [f"{topic}{numbers}" for topic, numbers in told["topics"]]
                self.asked.append(f"add {', '.join(numbers)}")
            case "AddOffsetsToTxn":
                self.asked.append(f"add {told['group_id']}")
            case "TxnOffsetCommit":
                self.asked.append(f"position of {told['group_id']}")
            case "EndTxn":
                self.asked.append("commit" if told["transaction_result"] else "abort")
        return SimpleNamespace(error_code=0, errors=[])


async def test_partitions_and_group_are_added_before_anything_is_sent_to_them() -> None:
    brokers = _Brokers()
    sender = Sender(cast(AIOKafkaClient, brokers), "id", 60.0)
    await sender.begin()
    topics = cast(KafkaTopics, _Topics())
    now_ms = time.time_ns() // 1_000_000
    records = [Record("t", "k", b"v", partition=number, timestamp_ms=now_ms) for number in (0, 1)]
    packed = pack([await prepare(records, topics)], topics, in_transaction=True)
    await sender.fill_transaction(packed, "g", {TopicPartition("t", 0): 1})
    await sender.commit_transaction()
    asked = brokers.asked
    assert asked[0] == "add t[0, 1]"
    assert sorted(asked[1:5]) == ["add g", "position of g", "send to t[0]", "send to t[1]"]
    assert asked.index("add g") < asked.index("position of g")
    assert asked[5:] == ["commit", "commit"]  # the second waits for the markers


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
