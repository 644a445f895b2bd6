"""Contract of every event log: where a consumer is, and that it arrives at the end."""

import asyncio

import pytest

from tests.log.harness import DEADLINE_S, FOREVER_S, LogHarness, read, records, share_out
from unstable_stream.errors import EventLogError, FencedError, UnknownTopicError
from unstable_stream.log.port import Consumer, EventLog, Record, TopicPartition


async def _to_the_end(consumer: Consumer, log: EventLog, topic: str) -> list[bytes]:
    """Poll until the positions are those of the end."""
    ends = await log.end_offsets(topic)
    values: list[bytes] = []
    async with asyncio.timeout(DEADLINE_S):
        while any(consumer.positions().get(at, -1) < end for at, end in ends.items()):
            values += [record.value for record in await consumer.poll(timeout_s=0.2)]
    assert consumer.positions() == ends
    return values


async def _write_in_many_ways(log: EventLog, harness: LogHarness, topic: str) -> list[bytes]:
    """Leave what an adapter keeps between records: batches, transactions, one aborted, one empty."""
    await log.append([Record(topic, "k", b"%d" % n, partition=n % 2, timestamp_ms=n) for n in range(6)])
    producer = await log.producer(harness.group())
    for n in (6, 7):
        async with producer.transaction() as tx:
            await tx.append([Record(topic, "k", b"%d" % n, partition=p, timestamp_ms=n) for p in (0, 1)])
    with pytest.raises(UnknownTopicError):
        async with producer.transaction() as tx:
            await tx.append([*records(topic, ["never"], partition=1), *records("no-such-topic", [""])])
    async with producer.transaction():
        pass
    return [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"6", b"7", b"7"]


@pytest.mark.parametrize("member", [False, True])
async def test_polling_on_arrives_at_the_end(harness: LogHarness, event_log: EventLog, member: bool) -> None:
    topic = await harness.topic(partitions=3)  # the third stays empty
    written = await _write_in_many_ways(event_log, harness, topic)
    consumer = await event_log.consumer([topic], group=harness.group() if member else None)
    assert sorted(await _to_the_end(consumer, event_log, topic)) == written
    await event_log.append(records(topic, ["a", "b"], partition=0))
    assert await _to_the_end(consumer, event_log, topic) == [b"a", b"b"]


async def test_positions_of_empty_partitions_are_known(harness: LogHarness, event_log: EventLog) -> None:
    topic, group = await harness.topic(partitions=3), harness.group()
    beginning = await event_log.beginning_offsets(topic)
    assert (await event_log.consumer([topic])).positions() == beginning
    member = await event_log.consumer([topic], group=group, start="end")
    assert member.positions() == {}  # it has no partitions yet
    await share_out([member], [topic], 3)
    assert member.positions() == beginning


async def test_several_partitions_are_read_in_turns(harness: LogHarness, event_log: EventLog) -> None:
    topic = await harness.topic(partitions=4)
    for number in range(4):
        await event_log.append(records(topic, ["x"] * 40, partition=number))
    consumer = await event_log.consumer([topic])
    got: list[int] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(got) < 160:
            got += [record.partition for record in await consumer.poll(max_records=8)]
    # No partition is finished long before another one begins: each has its turn in the first half.
    assert set(got[:80]) == {0, 1, 2, 3}


async def test_a_member_goes_on_where_it_was_when_another_joins(
    harness: LogHarness, event_log: EventLog
) -> None:
    topic, group = await harness.topic(partitions=2), harness.group()
    await event_log.append(records(topic, ["a"], partition=0) + records(topic, ["b"], partition=1))
    first = await event_log.consumer([topic], group=group)
    await read(first, 2)  # and commits nothing
    second = await (await harness.open()).consumer([topic], group=group)
    again = await share_out([first, second], [topic], 2)
    kept, taken = first.assignment(), second.assignment()
    with pytest.raises(FencedError, match=group):
        await first.commit(dict.fromkeys(taken, 1))
    assert await event_log.committed_positions(group) == {}
    if not again:
        again = await read(second, 1)
    # What its new owner has got comes again, since nothing is committed; what first kept does not.
    assert {TopicPartition(record.topic, record.partition) for record in again} == taken
    ends = await event_log.end_offsets(topic)
    assert first.positions() == {at: ends[at] for at in kept}
    await second.commit(second.positions())
    assert set(await event_log.committed_positions(group)) == taken


async def test_seeking_and_committing_what_is_not_assigned_is_an_error(
    harness: LogHarness, event_log: EventLog
) -> None:
    topic, group = await harness.topic(), harness.group()
    at = TopicPartition(topic, 0)
    member = await event_log.consumer([topic], group=group)
    with pytest.raises(EventLogError, match=r"no partitions yet"):
        await member.seek({at: 0})
    with pytest.raises(FencedError, match=group):
        await member.commit({at: 0})
    await member.commit({})  # nothing to commit is no error


async def test_closing_ends_a_poll_that_waits(harness: LogHarness, event_log: EventLog) -> None:
    consumer = await event_log.consumer([await harness.topic()], group=harness.group())
    waiting = asyncio.create_task(consumer.poll(timeout_s=FOREVER_S))
    done, _ = await asyncio.wait([waiting], timeout=0.1)  # long enough to be asleep
    assert not done
    for _ in range(2):
        await consumer.close()
    for polling in (waiting, consumer.poll()):
        with pytest.raises(EventLogError, match="closed"):
            await asyncio.wait_for(polling, DEADLINE_S)
