"""Contract of every event log: consumer groups, committed positions, transactions, fencing."""

import asyncio
import time

import pytest

from tests.log.harness import DEADLINE_S, LogHarness, read, records, share_out
from unstable_stream.errors import EventLogError, FencedError, RecordTooLargeError, UnknownTopicError
from unstable_stream.log.port import Consumer, EventLog, Producer, Record, TopicPartition

pytestmark = pytest.mark.longer


async def test_a_group_resumes_at_its_committed_positions(harness: LogHarness, event_log: EventLog) -> None:
    topic, group = await harness.topic(), harness.group()
    at = TopicPartition(topic, 0)
    await event_log.append(records(topic, ["a", "b", "c"]))
    first = await event_log.consumer([topic], group=group)
    await read(first, 3)
    assert await first.committed() == {}
    await first.commit()
    committed = (await first.committed())[at]
    assert await event_log.committed_positions(group) == {at: committed}
    await event_log.append(records(topic, ["d", "e"]))
    await read(first, 2)
    await first.close()  # without a commit: d and e come again

    second = await event_log.consumer([topic], group=group, start="end")
    assert [record.value for record in await read(second, 2)] == [b"d", b"e"]


async def test_a_commit_may_name_positions(harness: LogHarness, event_log: EventLog) -> None:
    topic, group = await harness.topic(), harness.group()
    at = TopicPartition(topic, 0)
    places = await event_log.append(records(topic, ["a", "b", "c"]))
    first = await event_log.consumer([topic], group=group)
    await read(first, 3)
    await first.commit({at: places[1][1]})
    assert await first.committed() == {at: places[1][1]}
    await first.close()
    second = await event_log.consumer([topic], group=group)
    assert [record.value for record in await read(second, 2)] == [b"b", b"c"]


async def test_groups_do_not_disturb_each_other(harness: LogHarness, event_log: EventLog) -> None:
    topic, group, other = await harness.topic(), harness.group(), harness.group()
    await event_log.append(records(topic, ["a", "b"]))
    consumer = await event_log.consumer([topic], group=group)
    await read(consumer, 2)
    await consumer.commit()
    assert len(await read(await event_log.consumer([topic], group=other), 2)) == 2
    assert await event_log.committed_positions(other) == {}


async def test_a_member_with_nothing_to_read_waits_and_does_not_spin(
    harness: LogHarness, event_log: EventLog
) -> None:
    topic = await harness.topic()
    await event_log.append(records(topic, ["a"]))
    member = await event_log.consumer([topic], group=harness.group())
    await read(member, 1)  # it has joined, and has its share
    began, worked = time.monotonic(), time.process_time()
    assert await member.poll(timeout_s=2.0) == []
    # One that spins takes all the processor time that it is given; a share, so that any machine will do.
    assert time.process_time() - worked < 0.4 * (time.monotonic() - began)


async def test_without_a_group_there_is_nothing_to_commit(harness: LogHarness, event_log: EventLog) -> None:
    topic = await harness.topic(partitions=2)
    consumer = await event_log.consumer([topic])
    assert consumer.assignment() == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    with pytest.raises(EventLogError, match="group"):
        await consumer.commit({TopicPartition(topic, 0): 0})


async def test_members_share_partitions_and_a_closed_one_leaves_at_once(
    harness: LogHarness, event_log: EventLog
) -> None:
    topic, other_topic, group = await harness.topic(4), await harness.topic(4), harness.group()
    first = await event_log.consumer([topic, other_topic], group=group)
    await share_out([first], [topic, other_topic], 4)
    before = first.assignment()
    second = await (await harness.open()).consumer([topic, other_topic], group=group)
    assert first.assignment() == before  # changes only inside poll
    await share_out([first, second], [topic, other_topic], 4)
    # Topics with as many partitions are cut the same way, so equal keys meet at one member.
    for member in (first, second):
        halves = [{at.partition for at in member.assignment() if at.topic == t} for t in (topic, other_topic)]
        assert halves[0] == halves[1]
        assert len(halves[0]) == 2

    await event_log.append([Record(topic, "k", b"%d" % n, partition=n) for n in range(4)])
    mine = await read(second, 2)
    await second.commit({TopicPartition(topic, mine[0].partition): mine[0].offset + 1})
    await second.close()
    rest = await share_out([first], [topic, other_topic], 4)
    if len(rest) < 3:
        rest += await read(first, 3 - len(rest))
    assert sorted(int(r.value) for r in rest) == sorted({0, 1, 2, 3} - {int(mine[0].value)})


async def _lost_partition(
    harness: LogHarness, event_log: EventLog, topic: str, group: str
) -> tuple[Consumer, Consumer, TopicPartition]:
    """Return a member, the one that took over half of its partitions, and one of those."""
    first = await event_log.consumer([topic], group=group)
    await share_out([first], [topic], 2)
    before = first.assignment()
    second = await (await harness.open()).consumer([topic], group=group)
    await share_out([first, second], [topic], 2)
    (lost,) = before - first.assignment()
    return first, second, lost


async def test_a_member_cannot_commit_a_partition_it_lost(harness: LogHarness, event_log: EventLog) -> None:
    topic, group = await harness.topic(2), harness.group()
    first, second, lost = await _lost_partition(harness, event_log, topic, group)
    await event_log.append(records(topic, ["a"], partition=0) + records(topic, ["b"], partition=1))
    with pytest.raises(FencedError, match=group):
        await first.commit({lost: 1})
    assert await event_log.committed_positions(group) == {}
    await read(second, 1)
    await second.commit()
    assert set(await event_log.committed_positions(group)) == {lost}


async def test_a_transaction_shows_records_and_positions_together(
    harness: LogHarness, event_log: EventLog
) -> None:
    source, one, two, group = *[await harness.topic() for _ in range(3)], harness.group()
    await event_log.append(records(source, ["in-1", "in-2"]))
    consumer = await event_log.consumer([source], group=group)
    await read(consumer, 2)
    reader = await (await harness.open()).consumer([one, two])
    producer = await event_log.producer(group)
    async with producer.transaction() as tx:
        await tx.append(records(one, ["out-1"]))
        await tx.append(records(two, ["out-2"]))
        await tx.commit_positions(group, consumer.positions())
        assert await reader.poll(timeout_s=0.1) == []
        assert await event_log.committed_positions(group) == {}
    assert {r.value for r in await read(reader, 2)} == {b"out-1", b"out-2"}
    assert await event_log.committed_positions(group) == consumer.positions()
    async with producer.transaction() as tx:
        await tx.append(records(one, ["again"]))
    assert [r.value for r in await read(reader, 1)] == [b"again"]


@pytest.mark.parametrize("how", ["exception", "cancellation"])
async def test_an_aborted_transaction_leaves_nothing(
    harness: LogHarness, event_log: EventLog, how: str
) -> None:
    source, results, group = await harness.topic(), await harness.topic(), harness.group()
    await event_log.append(records(source, ["in"]))
    consumer = await event_log.consumer([source], group=group)
    await read(consumer, 1)
    producer = await event_log.producer(group)
    inside = asyncio.Event()

    async def fail() -> None:
        async with producer.transaction() as tx:
            await tx.append(records(results, ["never"]))
            await tx.commit_positions(group, consumer.positions())
            inside.set()
            if how == "exception":
                raise ZeroDivisionError
            await asyncio.Event().wait()

    failing = asyncio.create_task(fail())
    await asyncio.wait_for(inside.wait(), DEADLINE_S)
    if how == "cancellation":
        failing.cancel()
    with pytest.raises(ZeroDivisionError if how == "exception" else asyncio.CancelledError):
        await failing

    async with producer.transaction() as tx:  # the producer goes on
        await tx.append(records(results, ["later"]))
    assert [r.value for r in await read(await event_log.consumer([results]), 1)] == [b"later"]
    assert await event_log.committed_positions(group) == {}


async def test_a_transaction_refuses_bad_records_at_once(harness: LogHarness, event_log: EventLog) -> None:
    topic = await harness.topic(max_message_bytes=1000)
    producer = await event_log.producer(harness.group())
    with pytest.raises(RecordTooLargeError, match=topic):
        async with producer.transaction() as tx:
            await tx.append([Record(topic, "k" * 5000, b"no value is so small")])
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        async with producer.transaction() as tx:
            await tx.append(records("no-such-topic", ["x"]))


async def test_a_later_producer_fences_the_earlier_one(harness: LogHarness, event_log: EventLog) -> None:
    topic, name = await harness.topic(), harness.group()
    earlier = await event_log.producer(name)
    taken_over: list[Producer] = []

    async def append_as_zombie() -> None:
        async with earlier.transaction() as tx:
            await tx.append(records(topic, ["zombie"]))
            if not taken_over:
                taken_over.append(await (await harness.open()).producer(name))

    with pytest.raises(FencedError, match=name):  # notices when it commits
        await append_as_zombie()
    with pytest.raises(FencedError, match=name):  # and from then on when it begins
        await append_as_zombie()
    (later,) = taken_over
    async with later.transaction() as tx:
        await tx.append(records(topic, ["alive"]))
    assert [r.value for r in await read(await event_log.consumer([topic]), 1)] == [b"alive"]
    async with (await event_log.producer(harness.group())).transaction() as tx:  # another id is its own
        await tx.append(records(topic, ["other"]))


async def test_a_fenced_producer_commits_no_positions(harness: LogHarness, event_log: EventLog) -> None:
    source, results, group = await harness.topic(2), await harness.topic(), harness.group()
    await event_log.append(records(source, ["a", "b"], partition=1))
    producer = await event_log.producer(f"{group}/1")
    async with producer.transaction() as tx:
        await tx.append(records(results, ["out"]))
        await tx.commit_positions(group, {TopicPartition(source, 1): 1})
    assert await event_log.committed_positions(group) == {TopicPartition(source, 1): 1}
    assert group in await event_log.groups()
    later = await event_log.producer(f"{group}/1")
    with pytest.raises(FencedError):
        async with producer.transaction() as tx:
            await tx.commit_positions(group, {TopicPartition(source, 1): 2})
    async with later.transaction() as tx:
        await tx.commit_positions(group, {TopicPartition(source, 0): 0, TopicPartition(source, 1): 2})
    assert await event_log.committed_positions(group) == {
        TopicPartition(source, 0): 0,
        TopicPartition(source, 1): 2,
    }


async def test_positions_of_an_unknown_group_are_empty(harness: LogHarness, event_log: EventLog) -> None:
    assert await event_log.committed_positions(harness.group()) == {}
