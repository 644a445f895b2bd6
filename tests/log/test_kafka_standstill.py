"""A reader that reads nothing any more, though records wait and brokers answer, is replaced; no other is."""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from structlog.testing import capture_logs

from tests.log.harness import read
from unstable_stream.errors import LogUnavailableError
from unstable_stream.log.kafka.consumer import Standstill
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.port import Positions, Record, TopicPartition, TopicSpec

_DEADLINE_S = 60.0
_AFTER_S = 0.02
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def _always(positions: Positions) -> Iterator[Positions]:
    return itertools.repeat(positions)


@pytest.mark.parametrize(
    ("ends", "positions", "certain"),
    [
        pytest.param({A: 5, B: 3}, _always({A: 5, B: 2}), True, id="it reads nothing of what waits"),
        pytest.param(
            {A: 5, B: 10**9}, ({A: 4, B: offset} for offset in itertools.count()), True, id="others are read"
        ),
        pytest.param({A: 5, B: 2}, _always({A: 5, B: 2}), False, id="nothing waits"),
        pytest.param({A: 10**9}, ({A: look // 15} for look in itertools.count()), False, id="only slow"),
        pytest.param(None, _always({A: 1}), False, id="no broker answers"),
    ],
)
async def test_one_that_reads_nothing_of_what_waits_stands_still_and_no_other(
    ends: Positions | None, positions: Iterator[Positions], certain: bool
) -> None:
    asked = 0

    async def find_ends(partitions: Collection[TopicPartition]) -> Positions:
        nonlocal asked
        asked += 1
        if ends is None:
            raise LogUnavailableError("no answer in time")
        return {at: ends[at] for at in partitions}

    standstill = Standstill(find_ends, _AFTER_S)
    async with asyncio.timeout(_DEADLINE_S):
        while not (found := standstill.is_certain(next(positions))) and asked < 5:
            await asyncio.sleep(_AFTER_S / 4)
    assert found == certain


@pytest.fixture
def stands_still(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Once it is set, the first of aiokafka's consumers reads nothing any more."""
    told, readers, getmany = asyncio.Event(), list[AIOKafkaConsumer](), AIOKafkaConsumer.getmany

    async def get(consumer: AIOKafkaConsumer, *partitions: Any, timeout_ms: int = 0) -> Any:
        readers.append(consumer)
        if consumer is readers[0] and told.is_set():
            await asyncio.sleep(timeout_ms / 1000)
            return {}
        return await getmany(consumer, *partitions, timeout_ms=timeout_ms)

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", get)
    return told


@pytest.fixture
async def log(kafka_bootstrap: str) -> AsyncIterator[KafkaLog]:
    async with KafkaLog.open(f"kafka://{kafka_bootstrap}", environ={}, standstill_s=1.0) as opened:
        yield opened


@pytest.mark.parametrize("group", ["g", None])
async def test_a_consumer_goes_on_through_other_connections(
    log: KafkaLog, group: str | None, stands_still: asyncio.Event
) -> None:
    topic = f"topic-{secrets.token_hex(6)}"
    group = group and f"{group}-{topic}"
    await log.create_topics([TopicSpec(topic, 2)])

    def numbered(numbers: Sequence[int]) -> list[Record]:
        return [Record(topic, "k", b"%d" % number, partition=number % 2) for number in numbers]

    async def read_four() -> list[int]:
        return sorted(int(each.value) for each in await read(consumer, 4, timeout_s=0.05))

    await log.append(numbered(range(4)))
    consumer = await log.consumer([topic], group)
    assert await read_four() == [0, 1, 2, 3]
    if group is not None:
        await consumer.commit(consumer.positions())
    stands_still.set()
    await log.append(numbered(range(4, 8)))
    with capture_logs() as logs:
        assert await read_four() == [4, 5, 6, 7]
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == [
        "records wait and are not read: the connection to the brokers is opened anew"
    ]
    assert consumer.assignment() == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    if group is not None:
        await consumer.commit(consumer.positions())
        assert await log.committed_positions(group) == consumer.positions()
    await consumer.close()
