"""Contract of every event log: consumer groups, transactions and what they save, fencing."""

import asyncio
import secrets
import time

import pytest

from tests.log.harness import DEADLINE_S, LogHarness, read, records, share_out
from unstable_stream.errors import (
    EventLogError,
    FencedError,
    LogUnavailableError,
    RecordTooLargeError,
    UnknownTopicError,
)
from unstable_stream.log.port import EventLog, Producer, Record, TopicPartition
from unstable_stream.log.reading import read_to_end, settled_ends

pytestmark = pytest.mark.longer


async def test_a_group_resumes_at_its_committed_positions(harness: LogHarness, event_log: EventLog) -> None:
    topic, group, other = await harness.topic(), harness.group(), harness.group()
    at = TopicPartition(topic, 0)
    places = await event_log.append(records(topic, ["a", "b", "c", "d"]))
    first = await event_log.consumer([topic], group=group)
    await read(first, 4)
    for offset in (places[1][1], places[2][1]):
        await first.commit({at: offset})
        assert await event_log.committed_positions(group) == {at: offset}
    await first.close()  # without a commit of c and d: they come again
    second = await event_log.consumer([topic], group=group, start="end")
    assert [record.value for record in await read(second, 2)] == [b"c", b"d"]
    assert len(await read(await event_log.consumer([topic], group=other), 4)) == 4
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
    assert time.monotonic() - began >= 1.95
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
    topic, source, name = await harness.topic(), await harness.topic(2), harness.group()
    zero, one = TopicPartition(source, 0), TopicPartition(source, 1)
    earlier = await event_log.producer(name)
    taken_over: list[Producer] = []

    async def append_as_zombie() -> None:
        async with earlier.transaction() as tx:
            await tx.append(records(topic, ["zombie"]))
            await tx.commit_positions(name, {one: 2})
            if not taken_over:
                taken_over.append(await (await harness.open()).producer(name))

    async with earlier.transaction() as tx:
        await tx.commit_positions(name, {one: 1})
    assert await event_log.committed_positions(name) == {one: 1}
    assert name in await event_log.groups()
    with pytest.raises(FencedError, match=name):  # notices when it commits
        await append_as_zombie()
    with pytest.raises(FencedError, match=name):  # and from then on when it begins
        await append_as_zombie()
    assert await event_log.committed_positions(name) == {one: 1}
    (later,) = taken_over
    async with later.transaction() as tx:
        await tx.append(records(topic, ["alive"]))
        await tx.commit_positions(name, {zero: 0, one: 2})
    assert [r.value for r in await read(await event_log.consumer([topic]), 1)] == [b"alive"]
    assert await event_log.committed_positions(name) == {zero: 0, one: 2}
    async with (await event_log.producer(harness.group())).transaction() as tx:  # another id is its own
        await tx.append(records(topic, ["other"]))


async def _values(log: EventLog, topic: str) -> list[bytes]:
    ends = await settled_ends(log, (topic,))
    return [record.value async for record in read_to_end(log, (topic,), ends=ends)]


async def test_the_high_watermark_is_behind_every_acknowledged_record(
    harness: LogHarness, event_log: EventLog
) -> None:
    topic = await harness.topic()
    at = TopicPartition(topic, 0)
    assert (await event_log.high_watermarks(topic))[at] == (await event_log.end_offsets(topic))[at]
    async with harness.open_transaction(topic) as held:
        ((_, offset),) = await event_log.append(records(topic, ["behind"]))
        assert (await event_log.high_watermarks(topic))[at] > offset
        assert ((await event_log.end_offsets(topic))[at] <= offset) == held


async def test_who_restores_state_waits_for_what_was_acknowledged(
    harness: LogHarness, event_log: EventLog
) -> None:
    topic, other = await harness.topic(), await harness.open()
    await event_log.append(records(topic, ["before"]))
    async with harness.open_transaction(topic) as held:
        producer = await event_log.producer(harness.group())
        async with producer.transaction() as transaction:
            await transaction.append(records(topic, ["behind"]))
        waiting = asyncio.create_task(_values(other, topic))
        for _ in range(10):
            await other.end_offsets(topic)
        assert not (held and waiting.done())
    async with asyncio.timeout(DEADLINE_S):
        assert await waiting == [b"before", b"behind"]


async def test_a_transaction_that_does_not_end_is_named(harness: LogHarness, event_log: EventLog) -> None:
    topic = await harness.topic()
    async with harness.open_transaction(topic) as held:
        await event_log.append(records(topic, ["behind"]))
        if not held:
            assert await settled_ends(event_log, (topic,), patience_s=0) == await event_log.end_offsets(topic)
            return
        with pytest.raises(LogUnavailableError, match=rf"{topic}\[0\]@0 .*more than 0 s.*find-hanging"):
            await settled_ends(event_log, (topic,), patience_s=0)


def _scope() -> str:
    return f"scope-{secrets.token_hex(6)}"


async def _save(producer: Producer, scope: str, states: dict[str, bytes]) -> None:
    async with asyncio.timeout(DEADLINE_S), producer.transaction() as transaction:
        await transaction.save(scope, states)


async def test_states_are_saved_with_records_and_positions(harness: LogHarness, event_log: EventLog) -> None:
    source, results, group, scope = await harness.topic(), await harness.topic(), harness.group(), _scope()
    await event_log.append(records(source, ["in"]))
    producer, other = await event_log.producer(group), await harness.open()
    at = TopicPartition(source, 0)
    async with producer.transaction() as transaction:
        await transaction.append(records(results, ["out"]))
        await transaction.commit_positions(group, {at: 1})
        await transaction.save(scope, {"a": b"1", "run/b": b"\x00\xff"})
        assert await other.saved(scope) == {}
    assert await other.saved(scope) == {"a": b"1", "run/b": b"\x00\xff"}
    assert await other.committed_positions(group) == {at: 1}
    assert [record.value for record in await read(await other.consumer([results]), 1)] == [b"out"]


async def test_a_state_replaces_the_one_of_its_name(harness: LogHarness, event_log: EventLog) -> None:
    scope, producer = _scope(), await event_log.producer(harness.group())
    await _save(producer, scope, {"a": b"1", "b": b"1", "c": b"1"})
    await _save(producer, scope, {"b": b"2", "d": b"2"})
    await _save(producer, scope, {"c": b"", "d": b"", "never": b""})
    assert await event_log.saved(scope) == {"a": b"1", "b": b"2"}
    assert await event_log.saved(scope, ["b", "c", "unknown"]) == {"b": b"2"}
    assert await event_log.saved(scope, []) == {}
    await _save(producer, scope, {"c": b"3"})
    assert await event_log.saved(scope, ["c"]) == {"c": b"3"}


async def test_scopes_are_apart(harness: LogHarness, event_log: EventLog) -> None:
    scope, producer = _scope(), await event_log.producer(harness.group())
    assert await event_log.saved(scope) == {}
    scopes = [f"{scope}/topic/{number}" for number in range(12)]  # some share a partition on Kafka
    for number, each in enumerate(scopes):
        await _save(producer, each, {"position": b"%d" % number})
    for number, each in enumerate(scopes):
        assert await event_log.saved(each) == {"position": b"%d" % number}
    assert await event_log.saved(f"{scope}/topic") == {}


async def test_what_is_not_committed_is_not_saved(harness: LogHarness, event_log: EventLog) -> None:
    scope, group = _scope(), harness.group()
    producer = await event_log.producer(group)
    await _save(producer, scope, {"a": b"1"})

    async def abort() -> None:
        async with producer.transaction() as transaction:
            await transaction.save(scope, {"a": b"aborted"})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await abort()
    assert await event_log.saved(scope) == {"a": b"1"}
    later = await event_log.producer(group)
    with pytest.raises(FencedError):
        await _save(producer, scope, {"a": b"fenced"})
    assert await event_log.saved(scope) == {"a": b"1"}
    await _save(later, scope, {"a": b"2"})
    assert await event_log.saved(scope) == {"a": b"2"}


async def test_a_state_may_be_large(harness: LogHarness, event_log: EventLog) -> None:
    scope, producer = _scope(), await event_log.producer(harness.group())
    large = secrets.token_bytes(8 * 1024 * 1024)
    await _save(producer, scope, {"large": large, "small": b"1"})
    assert (await event_log.saved(scope))["large"] == large


async def test_the_names_of_all_saved_states_are_told(harness: LogHarness, event_log: EventLog) -> None:
    first, second, third, producer = _scope(), _scope(), _scope(), await event_log.producer(harness.group())
    await _save(producer, first, {"a": b"1", "b": b"1"})
    await _save(producer, second, {"a": b"1"})
    await _save(producer, third, {"c": b"1"})
    await _save(producer, first, {"b": b""})
    await _save(producer, third, {"c": b""})
    names = await event_log.saved_names()  # on a broker also those of other tests
    assert (names[first], names[second]) == (["a"], ["a"])
    assert third not in names
