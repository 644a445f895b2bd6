"""The last records of a topic are the last records, whatever else takes offsets."""

import contextlib
import secrets

import pytest

from unstable_stream.log.port import EventLog, Record, StoredRecord, TopicSpec
from unstable_stream.log.tail import read_tail


def record(topic: str, number: int, partition: int) -> Record:
    return Record(topic, "k", f"{number}".encode(), timestamp_ms=1000 + number, partition=partition)


@pytest.fixture
async def topic(any_log: EventLog) -> str:
    """Forty records over two partitions, each in a transaction of its own, every third one aborted."""
    name = f"tail-{secrets.token_hex(6)}"
    await any_log.create_topics([TopicSpec(name, 2)])
    producer = await any_log.producer(f"producer-{name}")
    for number in range(40):
        if number % 3 == 2:
            with contextlib.suppress(InterruptedError):
                async with producer.transaction() as transaction:
                    await transaction.append([record(name, -number, number % 2)])
                    raise InterruptedError
        async with producer.transaction() as transaction:
            # The first thirty on one partition, so that neither alone has the last of all.
            await transaction.append([record(name, number, 0 if number < 30 else number % 2)])
    await producer.close()
    return name


def numbers(records: list[StoredRecord]) -> list[int]:
    return [int(each.value) for each in records]


@pytest.mark.parametrize("count", [0, 1, 7, 33, 40, 100])
async def test_the_last_records_come_oldest_first(any_log: EventLog, topic: str, count: int) -> None:
    tail, consumer = await read_tail(any_log, topic, count)
    await consumer.close()
    assert numbers(tail) == list(range(max(0, 40 - count), 40))


async def test_what_is_not_wanted_does_not_count(any_log: EventLog, topic: str) -> None:
    tail, consumer = await read_tail(any_log, topic, 3, lambda each: int(each.value) % 10 == 0)
    await consumer.close()
    assert numbers(tail) == [10, 20, 30]


async def test_the_consumer_goes_on_behind_the_tail(any_log: EventLog, topic: str) -> None:
    _, consumer = await read_tail(any_log, topic, 5)
    await any_log.append([record(topic, 40, 1), record(topic, 41, 1)])
    found: list[StoredRecord] = []
    while len(found) < 2:
        found += await consumer.poll(timeout_s=5.0)
    await consumer.close()
    assert numbers(found) == [40, 41]


async def test_an_empty_topic_has_no_tail(any_log: EventLog) -> None:
    name = f"tail-{secrets.token_hex(6)}"
    await any_log.create_topics([TopicSpec(name, 3)])
    tail, consumer = await read_tail(any_log, name, 10)
    await consumer.close()
    assert tail == []
