"""A reader that reads nothing any more, though records wait and brokers answer, is replaced; no other is."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from structlog.testing import capture_logs

from unstable_stream.errors import LogUnavailableError
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.kafka.standstill import Standstill
from unstable_stream.log.port import Consumer, Record, TopicPartition, TopicSpec

_DEADLINE_S = 60.0
_AFTER_S = 0.02
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class _Brokers:
    """Tells where partitions end; ``None``: it does not answer."""

    def __init__(self, ends: Mapping[TopicPartition, int] | None) -> None:
        self.ends = ends
        self.asked = 0

    async def __call__(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.asked += 1
        if self.ends is None:
            raise LogUnavailableError("no answer in time")
        return {at: self.ends[at] for at in partitions}


async def _is_certain(
    standstill: Standstill, positions: Iterator[Mapping[TopicPartition, int]], until: Callable[[], bool]
) -> bool:
    """Look with the next positions until it is certain, or until ``until``."""
    async with asyncio.timeout(_DEADLINE_S):
        while not until():
            if standstill.is_certain(next(positions)):
                return True
            await asyncio.sleep(_AFTER_S / 4)
    return False


def _always(positions: Mapping[TopicPartition, int]) -> Iterator[Mapping[TopicPartition, int]]:
    while True:
        yield positions


async def test_one_that_reads_nothing_of_what_waits_stands_still() -> None:
    brokers = _Brokers({A: 5, B: 3})
    assert await _is_certain(Standstill(brokers, _AFTER_S), _always({A: 5, B: 2}), lambda: False)
    assert brokers.asked == 1


async def test_one_partition_is_enough_while_others_are_read() -> None:
    brokers = _Brokers({A: 5, B: 10**9})
    positions = ({A: 4, B: offset} for offset in range(10**9))
    assert await _is_certain(Standstill(brokers, _AFTER_S), positions, lambda: False)


async def test_one_for_which_nothing_waits_does_not() -> None:
    brokers = _Brokers({A: 5, B: 2})
    standstill = Standstill(brokers, _AFTER_S)
    assert not await _is_certain(standstill, _always({A: 5, B: 2}), lambda: brokers.asked == 5)


async def test_one_that_was_only_slow_does_not() -> None:
    brokers = _Brokers({A: 10**9})
    standstill = Standstill(brokers, _AFTER_S)
    positions = ({A: number // 15} for number in range(10**9))  # it reads a record in 15 looks
    assert not await _is_certain(standstill, positions, lambda: brokers.asked == 5)


async def test_nobody_is_blamed_while_no_broker_answers() -> None:
    brokers = _Brokers(None)
    standstill = Standstill(brokers, _AFTER_S)
    assert not await _is_certain(standstill, _always({A: 1}), lambda: brokers.asked == 5)


class _Stubborn:
    """Has the first of aiokafka's consumers stand still once it is told to."""

    def __init__(self) -> None:
        self.stands = False
        self._first: AIOKafkaConsumer | None = None
        self._getmany = AIOKafkaConsumer.getmany

    async def getmany(self, consumer: AIOKafkaConsumer, *partitions: Any, timeout_ms: int) -> Any:
        self._first = self._first or consumer
        if consumer is self._first and self.stands:
            await asyncio.sleep(timeout_ms / 1000)
            return {}
        return await self._getmany(consumer, *partitions, timeout_ms=timeout_ms)


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> _Stubborn:
    made = _Stubborn()

    async def getmany(consumer: AIOKafkaConsumer, *partitions: Any, timeout_ms: int = 0) -> Any:
        return await made.getmany(consumer, *partitions, timeout_ms=timeout_ms)

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", getmany)
    return made


@pytest.fixture
async def log(kafka_bootstrap: str) -> AsyncIterator[KafkaLog]:
    async with KafkaLog.open(f"kafka://{kafka_bootstrap}", environ={}, standstill_s=1.0) as opened:
        yield opened


async def _read(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    async with asyncio.timeout(_DEADLINE_S):
        while len(values) < count:
            values += [record.value for record in await consumer.poll(timeout_s=0.05)]
    return values


@pytest.mark.parametrize("group", ["g", None])
async def test_a_consumer_goes_on_through_other_connections(
    log: KafkaLog, group: str | None, stubborn: _Stubborn
) -> None:
    topic = f"topic-{secrets.token_hex(6)}"
    group = group and f"{group}-{topic}"
    await log.create_topics([TopicSpec(topic, 2)])

    def numbered(numbers: Sequence[int]) -> list[Record]:
        return [Record(topic, "k", b"%d" % number, partition=number % 2) for number in numbers]

    await log.append(numbered(range(4)))
    consumer = await log.consumer([topic], group)
    assert sorted(await _read(consumer, 4)) == [b"0", b"1", b"2", b"3"]
    if group is not None:
        await consumer.commit()
    stubborn.stands = True
    await log.append(numbered(range(4, 8)))
    with capture_logs() as logs:
        assert sorted(await _read(consumer, 4)) == [b"4", b"5", b"6", b"7"]
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == [
        "records wait and are not read: the connection to the brokers is opened anew"
    ]
    assert consumer.assignment() == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    if group is not None:
        await consumer.commit()
        assert await log.committed_positions(group) == consumer.positions()
    await consumer.close()


async def test_it_is_closed_while_it_is_opened_anew(log: KafkaLog, stubborn: _Stubborn) -> None:
    stubborn.stands = True
    topic = f"topic-{secrets.token_hex(6)}"
    await log.create_topics([TopicSpec(topic, 1)])
    await log.append([Record(topic, "k", b"1")])
    consumer = await log.consumer([topic])
    with capture_logs() as logs:
        async with asyncio.timeout(_DEADLINE_S):
            while not logs:
                assert await consumer.poll(timeout_s=0.05) == []
    await consumer.close()
