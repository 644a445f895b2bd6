"""Partitions take turns once their records were fetched, and full ones pause: exact, whatever the speed."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as KafkaPartition

from unstable_stream.log.kafka.reading import Reading
from unstable_stream.log.port import StoredRecord, TopicPartition

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


async def test_a_quiet_partition_is_returned_in_the_first_turn_after_it_was_fetched(
    broker: _Broker, reading: Reading
) -> None:
    broker.append(BUSY, 2000)
    await reading.fetch(10)
    assert _topics(reading.take(10)) == {"busy": 10, "quiet": 0, "third": 0}
    broker.append(QUIET, 1)
    await reading.fetch(10)
    assert _topics(reading.take(10)) == {"busy": 9, "quiet": 1, "third": 0}


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
