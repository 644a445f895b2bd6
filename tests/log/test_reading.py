"""History is read once to its present end, whatever else takes offsets; the tail is the last of it."""

import contextlib
import secrets

import pytest
import structlog

from tests.builders import made
from tests.log.harness import read
from unstable_stream.errors import EventLogError, UnknownTopicError
from unstable_stream.events import RunStarted
from unstable_stream.log.port import EventLog, Record, StoredRecord, TopicPartition, TopicSpec
from unstable_stream.log.reading import (
    TopicReader,
    ends_of,
    events_to_end,
    read_on,
    read_record,
    read_tail,
    read_to_end,
)
from unstable_stream.log.records import record_from_event

pytestmark = pytest.mark.longer


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


@pytest.fixture
async def by_two_runs(any_log: EventLog) -> str:
    """Five events each of the runs a and b on one partition, and three records that are no events."""
    name = f"runs-{secrets.token_hex(6)}"
    await any_log.create_topics([TopicSpec(name, 1)])
    events = [made(RunStarted, run_id=run, seed=number) for number in range(5) for run in ("a", "b")]
    written = [record_from_event(event) for event in events]
    strange = [Record(name, "k", b"{}", headers=each.headers) for each in written[:2]]
    strange.append(Record(name, "k", b"no json"))
    for batch in (written[:4], strange, written[4:]):
        await any_log.append([Record(name, "k", each.value, each.headers) for each in batch])
    return name


def numbers(records: list[StoredRecord]) -> list[int]:
    return [int(each.value) for each in records]


@pytest.mark.parametrize("count", [0, 1, 7, 33, 40, 100])
async def test_the_last_records_come_oldest_first_and_then_what_follows(
    any_log: EventLog, topic: str, count: int
) -> None:
    tail, consumer = await read_tail(any_log, topic, count)
    assert numbers(tail) == list(range(max(0, 40 - count), 40))
    await any_log.append([record(topic, 40, 1), record(topic, 41, 1)])
    assert numbers(await read(consumer, 2)) == [40, 41]
    await consumer.close()


async def test_what_is_not_wanted_does_not_count(any_log: EventLog, topic: str) -> None:
    tail, consumer = await read_tail(any_log, topic, 3, lambda each: int(each.value) % 10 == 0)
    await consumer.close()
    assert numbers(tail) == [10, 20, 30]


async def test_an_empty_topic_has_been_read_at_once_and_has_no_tail(any_log: EventLog) -> None:
    name = f"tail-{secrets.token_hex(6)}"
    await any_log.create_topics([TopicSpec(name, 3)])
    tail, consumer = await read_tail(any_log, name, 10)
    await consumer.close()
    assert tail == [record async for record in read_to_end(any_log, (name,))] == []
    with pytest.raises(UnknownTopicError, match="nowhere"):
        await anext(read_to_end(any_log, ("nowhere",)))


async def test_all_that_was_committed_comes_once_and_in_order(any_log: EventLog, topic: str) -> None:
    found = [record async for record in read_to_end(any_log, (topic,))]
    assert sorted(numbers(found)) == list(range(40))
    for partition in (0, 1):
        offsets = [record.offset for record in found if record.partition == partition]
        assert offsets == sorted(offsets)


async def test_what_is_written_while_history_is_read_is_not_part_of_it(any_log: EventLog, topic: str) -> None:
    found = []
    async for each in read_to_end(any_log, (topic,)):
        found.append(each)
        if len(found) < 5:
            await any_log.append([record(topic, 100 + len(found), partition) for partition in (0, 1)])
    assert sorted(numbers(found)) == list(range(40))


async def test_reading_may_begin_and_stop_anywhere(any_log: EventLog, topic: str) -> None:
    first = [each async for each in read_to_end(any_log, (topic,)) if each.partition == 0]
    zero, one = (TopicPartition(topic, number) for number in (0, 1))
    starts, ends = {zero: first[10].offset}, {zero: first[20].offset, one: 0}
    found = read_to_end(any_log, (topic,), starts=starts, ends=ends)
    assert numbers([each async for each in found]) == numbers(first[10:20])


async def test_a_stretch_after_a_stretch_is_the_whole(any_log: EventLog, topic: str) -> None:
    async with await TopicReader.open(any_log, (topic,)) as reader:
        stretches = []
        for share in (0, 0.3, 0.3, 0.7, 1):
            target = {at: int(end * share) for at, end in reader.ends.items()}
            stretches.append([each async for each in reader.read_to(target)])
    assert stretches[0] == stretches[2] == []
    assert sorted(number for stretch in stretches for number in numbers(stretch)) == list(range(40))


async def test_a_consumer_that_reads_on_keeps_what_came_beyond(any_log: EventLog, topic: str) -> None:
    consumer = await any_log.consumer([topic])
    ends = await ends_of(any_log, (topic,))
    await any_log.append([record(topic, 40, 0)])
    found: list[StoredRecord] = []
    async for records in read_on(consumer, ends):
        found += records
    while 40 not in numbers(found):  # it came with the others, or comes now
        found += await consumer.poll(timeout_s=5.0)
    await consumer.close()
    assert sorted(numbers(found)) == list(range(41))


@pytest.mark.parametrize(("run", "left_out"), [("a", 2), (None, 3)])
async def test_the_events_of_one_run_or_of_all_come(
    any_log: EventLog, by_two_runs: str, run: str | None, left_out: int
) -> None:
    with structlog.testing.capture_logs() as said:
        found = [event async for _, event in events_to_end(any_log, (by_two_runs,), run_id=run)]
    assert [(event.run_id, event.seed) for event in found if isinstance(event, RunStarted)] == [
        (each, number) for number in range(5) for each in (run or "ab")
    ]
    # What says that it is of another run is not looked at; what says nothing is.
    assert [each["event"] for each in said] == ["record left out"] * left_out
    assert all(each["reason"].startswith(f"{by_two_runs}[0]@") for each in said)


async def test_one_record_is_found_by_its_offset_or_is_not_there(any_log: EventLog, topic: str) -> None:
    at = TopicPartition(topic, 1)
    there = {each.offset: each async for each in read_to_end(any_log, (topic,)) if each.partition == 1}
    for offset in range((await any_log.end_offsets(topic))[at] + 1):
        if offset in there:
            assert await read_record(any_log, at, offset) == there[offset]
        else:
            with pytest.raises(EventLogError, match=rf"{topic}\[1\]@{offset} is no longer"):
                await read_record(any_log, at, offset)
