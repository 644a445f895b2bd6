"""Contract of every event log: another producer's open transaction hides records, and does not lose them."""

import asyncio

import pytest

from tests.log.harness import DEADLINE_S, LogHarness, records
from unstable_stream.errors import LogUnavailableError
from unstable_stream.log.port import EventLog, TopicPartition
from unstable_stream.log.reading import read_to_end, settled_ends


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
