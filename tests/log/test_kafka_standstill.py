"""A reader that reads nothing any more, though records wait and brokers answer, says so; no other does."""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from aiokafka import AIOKafkaConsumer

from tests.log.harness import read
from unstable_stream.errors import LogUnavailableError
from unstable_stream.log.kafka.consumer import KafkaConsumer, KafkaParts
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.kafka.reading import ShareAssignor
from unstable_stream.log.port import Positions, Record, TopicPartition, TopicSpec

_DEADLINE_S = 60.0
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def _always(positions: Positions) -> Iterator[Positions]:
    return itertools.repeat(positions)


@pytest.mark.parametrize(
    ("ends", "positions", "stands"),
    [
        pytest.param({A: 5, B: 3}, _always({A: 5, B: 2}), True, id="it reads nothing of what waits"),
        pytest.param(
            {A: 5, B: 10**9}, ({A: 4, B: offset} for offset in itertools.count()), True, id="others are read"
        ),
        pytest.param({A: 5, B: 2}, _always({A: 5, B: 2}), False, id="nothing waits"),
        pytest.param({A: 10**9}, ({A: poll // 15} for poll in itertools.count()), False, id="only slow"),
        pytest.param(None, _always({A: 1}), False, id="no broker answers"),
    ],
)
async def test_one_that_reads_nothing_of_what_waits_stands_still_and_no_other(
    ends: Positions | None, positions: Iterator[Positions], stands: bool
) -> None:
    async def find_ends(partitions: Collection[TopicPartition]) -> Positions:
        if ends is None:
            raise LogUnavailableError("no answer in time")
        return {at: ends[at] for at in partitions}

    offsets: Any = SimpleNamespace(end=find_ends)
    client, nothing = MagicMock(AIOKafkaConsumer), cast(Any, None)
    whose = (ShareAssignor(), ["t"], None)
    consumer = KafkaConsumer(
        KafkaParts(nothing, nothing, offsets), client, *whose, "end", lambda _: None, standstill_s=0.0
    )
    with pytest.raises(LogUnavailableError) if stands else contextlib.nullcontext():
        for _ in range(100):
            consumer._reading.positions = dict(next(positions))
            await consumer._check_standstill()


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
async def test_a_consumer_says_that_it_reads_no_more_and_another_one_goes_on(
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
    with pytest.raises(LogUnavailableError, match=f"records of {topic} wait, the brokers answer"):
        await read_four()
    positions = consumer.positions()
    await consumer.close()
    consumer = await log.consumer([topic], group)
    if group is None:
        await consumer.seek(positions)
    assert await read_four() == [4, 5, 6, 7]
    await consumer.close()
