"""Contract of every event log: appending, reading, positions. Offsets may have gaps, so none is assumed."""

import asyncio
import random
import secrets
from collections import defaultdict

import pytest

from tests.log.harness import DEADLINE_S, FOREVER_S, LogHarness, read, records
from unstable_stream.errors import (
    EventLogError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UnknownTopicError,
)
from unstable_stream.log.port import (
    EventLog,
    Record,
    Start,
    TopicPartition,
    TopicSpec,
    murmur2,
    partition_for_key,
)
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
    assert await event_log.append([]) == []
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


async def test_another_handle_knows_the_log_and_finds_its_new_topics(
    harness: LogHarness, event_log: EventLog
) -> None:
    other = await harness.open()
    assert await other.log_id() == await event_log.log_id() != ""
    topic = await harness.topic()
    await other.append(records(topic, ["hello"]))
    assert [r.value for r in await read(await event_log.consumer([topic]), 1)] == [b"hello"]


@pytest.mark.parametrize("member", [False, True])
async def test_reading_starts_at_the_beginning_the_end_or_a_time(
    harness: LogHarness, event_log: EventLog, member: bool
) -> None:
    topic = await harness.topic()
    await event_log.append(records(topic, ["a", "b", "c"]))  # at 1000, 1001, 1002 ms
    starts: list[Start] = ["beginning", "end", 1001]
    beginning, end, moment = [
        await event_log.consumer([topic], group=harness.group() if member else None, start=start)
        for start in starts
    ]
    while not end.assignment():
        assert await end.poll(timeout_s=0.1) == []
    await event_log.append(records(topic, ["new"]))
    assert [r.value for r in await read(beginning, 4)][:3] == [b"a", b"b", b"c"]
    assert [r.value for r in await read(end, 1)] == [b"new"]
    assert [r.value for r in await read(moment, 3)][:2] == [b"b", b"c"]


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
    # Behind the records, on Kafka also at the end of their transaction, which is of today.
    assert offsets[-1] < (await event_log.offsets_for_time(topic, 51))[zero] <= ends[zero]


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
    with pytest.raises(OffsetOutOfRangeError, match=topic):  # noqa: PT012 - noticed here, or by the fetch
        await consumer.seek({TopicPartition(topic, 0): 1_000_000})
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


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # the cases of Kafka's own UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_kafkas(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected & 0xFFFFFFFF
