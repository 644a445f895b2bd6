"""Contract of every event log: appending, reading, positions. Offsets may have gaps, so none is assumed."""

import asyncio
import random
import secrets
import time
from collections import defaultdict

import pytest

from tests.log.harness import DEADLINE_S, FOREVER_S, LogHarness, read, records
from unstable_stream.errors import (
    EventLogError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UnknownTopicError,
)
from unstable_stream.log.partitioner import partition_for_key
from unstable_stream.log.port import Consumer, EventLog, Record, TopicPartition, TopicSpec
from unstable_stream.log.topics import load_topics

pytestmark = pytest.mark.longer


async def test_what_is_read_equals_what_was_appended(harness: LogHarness, event_log: EventLog) -> None:
    topic = await harness.topic()
    headers = {
        "ce_id": b"8d0b4f6e-0000-4000-8000-000000000000",
        "ce_type": b"unstable_stream.step.v1",
        "binary": bytes(range(256)),
        "ce_source": b"/unstable_stream/runs/r",
        "empty": b"",
    }
    sent = [
        Record(topic, "run/Tic-Tac-Toe ☺", b"\x00\xff{}", headers, timestamp_ms=1_700_000_000_123),
        Record(topic, "", b"", {}, timestamp_ms=1_700_000_000_000),
        Record(topic, "k", b"v", {"ce_type": b"unstable_stream.step.v1"}, timestamp_ms=1_700_000_000_124),
    ]
    places = await event_log.append(sent)

    stored = await read(await event_log.consumer([topic]), 3)

    assert [(r.key, r.value, dict(r.headers), r.timestamp_ms) for r in stored] == [
        (r.key, r.value, r.headers, r.timestamp_ms) for r in sent
    ]
    assert list(stored[0].headers) == list(headers)
    assert [(TopicPartition(r.topic, r.partition), r.offset) for r in stored] == places


async def test_a_key_has_one_partition_and_keeps_its_order(harness: LogHarness, event_log: EventLog) -> None:
    topic = await harness.topic(partitions=3)
    keys = [f"run-{number}/env" for number in range(12)]
    sent = [Record(topic, keys[index % 12], b"%d" % index, timestamp_ms=1) for index in range(120)]
    for first in range(0, 120, 20):
        await event_log.append(sent[first : first + 20])

    stored = await read(await event_log.consumer([topic]), 120)

    values: dict[str, list[int]] = defaultdict(list)
    offsets: dict[int, list[int]] = defaultdict(list)
    for record in stored:
        assert record.partition == partition_for_key(record.key, 3)
        values[record.key].append(int(record.value))
        offsets[record.partition].append(record.offset)
    assert values == {key: list(range(number, 120, 12)) for number, key in enumerate(keys)}
    assert set(offsets) == {0, 1, 2}
    assert all(row == sorted(set(row)) for row in offsets.values())


async def test_a_record_may_name_its_partition(harness: LogHarness, event_log: EventLog) -> None:
    topic = await harness.topic(partitions=3)
    places = await event_log.append([Record(topic, "same", b"", partition=number) for number in (2, 0, 1)])
    assert [at.partition for at, _ in places] == [2, 0, 1]


async def test_appending_nothing_is_allowed(event_log: EventLog) -> None:
    assert await event_log.append([]) == []


async def test_a_batch_is_appended_whole_or_not_at_all(harness: LogHarness, event_log: EventLog) -> None:
    topic = await harness.topic(max_message_bytes=1000)
    with pytest.raises(RecordTooLargeError, match=rf"{topic}.*1000"):
        await event_log.append(
            [*records(topic, ["good"]), Record(topic, "big" * 2000, b"no value is so small")]
        )
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        await event_log.append([*records(topic, ["good"]), *records("no-such-topic", ["lost"])])

    await event_log.append(records(topic, ["after"]))
    assert [r.value for r in await read(await event_log.consumer([topic]), 1)] == [b"after"]


async def test_a_record_of_the_largest_declared_size_is_read_back(
    harness: LogHarness, event_log: EventLog
) -> None:
    largest = load_topics()["trajectories"].max_message_bytes
    assert largest == 64 * 1024 * 1024
    topic = await harness.topic(max_message_bytes=largest)
    value = random.Random(1).randbytes(largest - 10_000)  # does not compress, but grows a little
    small = records(topic, ["before", "after"])
    await event_log.append([small[0], Record(topic, "k", value, timestamp_ms=1000), small[1]])
    found = [record.value for record in await read(await event_log.consumer([topic]), 3)]
    assert found == [b"before", value, b"after"]


async def test_an_unknown_topic_is_named(event_log: EventLog) -> None:
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        await event_log.consumer(["no-such-topic"])
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        await event_log.end_offsets("no-such-topic")


async def test_creating_topics_is_idempotent_but_partitions_stay(event_log: EventLog) -> None:
    once, too = (f"topic-{secrets.token_hex(6)}" for _ in range(2))
    await event_log.create_topics([TopicSpec(once, 2), TopicSpec(too, 1)])
    await event_log.append(records(once, ["kept"]))
    await event_log.create_topics([TopicSpec(once, 2)])
    topics = await event_log.topics()
    assert (topics[once], topics[too]) == (2, 1)
    assert len(await read(await event_log.consumer([once]), 1)) == 1
    with pytest.raises(EventLogError, match=rf"{once}.*2 partitions.*3 "):
        await event_log.create_topics([TopicSpec(once, 3)])


async def test_settings_stay_until_they_are_altered(event_log: EventLog) -> None:
    name = f"topic-{secrets.token_hex(6)}"
    first = TopicSpec(name, 2, retention_ms=86_400_000, max_message_bytes=2_000_000)
    second = TopicSpec(name, 2, cleanup_policy="compact", max_message_bytes=3_000_000)
    await event_log.create_topics([first])
    assert (await event_log.topic_settings())[name] == first
    await event_log.create_topics([second])
    assert (await event_log.topic_settings())[name] == first
    await event_log.alter_topics([second])
    assert (await event_log.topic_settings())[name] == second
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        await event_log.alter_topics([TopicSpec("no-such-topic", 1)])


async def test_a_log_knows_itself_from_others(harness: LogHarness, event_log: EventLog) -> None:
    log_id = await event_log.log_id()
    assert log_id
    assert await (await harness.open()).log_id() == log_id


async def test_a_topic_created_by_another_handle_is_found(harness: LogHarness, event_log: EventLog) -> None:
    other = await harness.open()
    await other.topics()
    topic = await harness.topic()
    await other.append(records(topic, ["hello"]))
    assert [r.value for r in await read(await event_log.consumer([topic]), 1)] == [b"hello"]


async def test_reading_starts_at_the_beginning_the_end_or_a_time(
    harness: LogHarness, event_log: EventLog
) -> None:
    topic = await harness.topic()
    await event_log.append(records(topic, ["a", "b", "c"]))  # at 1000, 1001, 1002 ms
    for group in (None, harness.group()):
        suffix = "" if group is None else group
        names = [f"{suffix}-{which}" if group else None for which in ("beginning", "end", "time")]
        beginning = await event_log.consumer([topic], group=names[0], start="beginning")
        end = await event_log.consumer([topic], group=names[1], start="end")
        moment = await event_log.consumer([topic], group=names[2], start=1001)
        while not end.assignment():
            assert await end.poll(timeout_s=0.1) == []
        await event_log.append(records(topic, ["new"]))
        assert [r.value for r in await read(beginning, 4)][:3] == [b"a", b"b", b"c"]
        assert [r.value for r in await read(end, 1)] == [b"new"]
        assert [r.value for r in await read(moment, 3)][:2] == [b"b", b"c"]
        for consumer in (beginning, end, moment):
            await consumer.close()
        topic = await harness.topic()
        await event_log.append(records(topic, ["a", "b", "c"]))


async def test_offsets_for_time_find_the_first_record_so_late(
    harness: LogHarness, event_log: EventLog
) -> None:
    topic = await harness.topic(partitions=2)
    moments = [10, 30, 20, 40, 40, 35, 50]
    places = await event_log.append(
        [Record(topic, "k", b"", timestamp_ms=moment, partition=0) for moment in moments]
    )
    offsets = [offset for _, offset in places]
    ends = await event_log.end_offsets(topic)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    expected = {0: 0, 10: 0, 11: 1, 20: 1, 30: 1, 31: 3, 40: 3, 41: 6, 50: 6}
    for moment, index in expected.items():
        found = await event_log.offsets_for_time(topic, moment)
        assert found[zero] == offsets[index], moment
        assert found[one] == ends[one]
    assert (await event_log.offsets_for_time(topic, 51))[zero] == ends[zero]


async def test_beginning_and_end_bound_what_is_there(harness: LogHarness, event_log: EventLog) -> None:
    topic = await harness.topic(partitions=2)
    beginning = await event_log.beginning_offsets(topic)
    assert beginning == await event_log.end_offsets(topic)
    assert set(beginning) == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    places = await event_log.append(records(topic, ["a", "b"], partition=1))
    ends = await event_log.end_offsets(topic)
    assert ends[TopicPartition(topic, 0)] == beginning[TopicPartition(topic, 0)]
    assert ends[TopicPartition(topic, 1)] > places[-1][1]
    assert await event_log.beginning_offsets(topic) == beginning


async def test_seek_goes_on_from_an_offset(harness: LogHarness, event_log: EventLog) -> None:
    topic = await harness.topic()
    places = await event_log.append(records(topic, ["a", "b", "c"]))
    at = TopicPartition(topic, 0)
    consumer = await event_log.consumer([topic])
    await read(consumer, 3)
    await consumer.seek({at: places[1][1]})
    assert consumer.positions() == {at: places[1][1]}
    assert [r.value for r in await read(consumer, 2)] == [b"b", b"c"]
    assert consumer.positions()[at] > places[2][1]


async def test_seeking_beyond_the_end_is_an_error(harness: LogHarness, event_log: EventLog) -> None:
    topic = await harness.topic()
    await event_log.append(records(topic, ["a"]))
    consumer = await event_log.consumer([topic])
    with pytest.raises(OffsetOutOfRangeError, match=topic):
        await _seek_and_poll(consumer, TopicPartition(topic, 0))


async def _seek_and_poll(consumer: Consumer, at: TopicPartition) -> None:
    await consumer.seek({at: 1_000_000})  # an adapter may notice here, or when it fetches
    await consumer.poll(timeout_s=5)


async def test_poll_is_bounded_and_goes_on_where_it_was(harness: LogHarness, event_log: EventLog) -> None:
    topic = await harness.topic()
    await event_log.append(records(topic, [str(number) for number in range(25)]))
    consumer = await event_log.consumer([topic])
    sizes: list[int] = []
    values: list[int] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(values) < 25:
            found = await consumer.poll(max_records=10)
            sizes.append(len(found))
            values += [int(record.value) for record in found]
    assert values == list(range(25))
    assert max(sizes) <= 10


async def test_a_busy_topic_does_not_starve_a_quiet_one(harness: LogHarness, event_log: EventLog) -> None:
    """The busy one never runs dry, so the quiet one's record comes between its records or never."""
    busy, quiet = await harness.topic(), await harness.topic()
    await event_log.append(records(busy, ["x"] * 2000))
    waiting = 2000
    consumer = await event_log.consumer([busy, quiet])
    waiting -= len(await consumer.poll(max_records=10))
    await event_log.append(records(quiet, ["heard"]))
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await consumer.poll(max_records=10)
            if any(record.topic == quiet for record in found):
                break
            waiting -= len(found)
            if waiting < 1000:
                await event_log.append(records(busy, ["x"] * 1000))
                waiting += 1000


async def test_poll_returns_nothing_after_its_timeout(harness: LogHarness, event_log: EventLog) -> None:
    consumer = await event_log.consumer([await harness.topic()])
    began = time.monotonic()
    async with asyncio.timeout(DEADLINE_S):
        assert await consumer.poll(timeout_s=0.3) == []
    assert time.monotonic() - began >= 0.25


async def test_poll_wakes_up_when_another_task_appends(harness: LogHarness, event_log: EventLog) -> None:
    topic = await harness.topic()
    other = await harness.open()
    consumer = await event_log.consumer([topic])
    for _ in range(3):
        waiting = asyncio.create_task(consumer.poll(timeout_s=FOREVER_S))
        done, _pending = await asyncio.wait([waiting], timeout=0.1)  # long enough to be asleep
        assert not done
        await other.append(records(topic, ["wake"]))
        assert [record.value for record in await asyncio.wait_for(waiting, DEADLINE_S)] == [b"wake"]


async def test_a_cancelled_poll_loses_nothing(harness: LogHarness, event_log: EventLog) -> None:
    topic = await harness.topic()
    await event_log.append(records(topic, [str(number) for number in range(40)]))
    consumer = await event_log.consumer([topic])
    seen: list[int] = []
    async with asyncio.timeout(DEADLINE_S):
        turn = 0
        while len(seen) < 40:
            turn += 1
            polling = asyncio.create_task(consumer.poll(max_records=1))
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            if turn % 2:
                polling.cancel()
            (result,) = await asyncio.gather(polling, return_exceptions=True)
            if isinstance(result, list):
                seen += [int(record.value) for record in result]
    assert seen == list(range(40))


async def test_a_closed_consumer_says_so(harness: LogHarness, event_log: EventLog) -> None:
    consumer = await event_log.consumer([await harness.topic()])
    await consumer.close()
    await consumer.close()
    with pytest.raises(EventLogError, match="closed"):
        await consumer.poll()
