"""A member that asks for no records for long, as while an archive is away: aiokafka leaves its group."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from tests.log.harness import DEADLINE_S, read
from unstable_stream.errors import FencedError
from unstable_stream.log.kafka.consumer import KafkaConsumer
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.port import Consumer, Record, StoredRecord, TopicSpec

_COMMITTED_WITHIN_S = 30.0


@pytest.fixture
async def log(kafka_bootstrap: str) -> AsyncIterator[KafkaLog]:
    location = f"kafka://{kafka_bootstrap}"
    async with KafkaLog.open(location, environ={}, delivery_timeout_s=_COMMITTED_WITHIN_S) as opened:
        yield opened


def _values(records: Sequence[StoredRecord]) -> list[bytes]:
    return [record.value for record in records]


async def _fall_silent(consumer: Consumer) -> None:
    """Return in the moment in which aiokafka has left the group, before it tells that it has; it leaves after
    a second instead of the five minutes that it allows.
    """
    coordinator: Any = cast(KafkaConsumer, consumer)._consumer._coordinator
    coordinator._max_poll_interval = 1.0
    async with asyncio.timeout(DEADLINE_S):
        while coordinator.member_id:
            await asyncio.sleep(0)


async def test_its_commit_joins_the_group_again_and_is_refused_and_it_goes_on(log: KafkaLog) -> None:
    topic = f"topic-{secrets.token_hex(6)}"
    group = f"g-{topic}"
    await log.create_topics([TopicSpec(topic, 1)])
    consumer = await log.consumer([topic], group)
    await log.append([Record(topic, "k", b"committed")])
    assert _values(await read(consumer, 1)) == [b"committed"]
    await consumer.commit(consumer.positions())
    await log.append([Record(topic, "k", b"in hand")])
    assert _values(await read(consumer, 1)) == [b"in hand"]
    await _fall_silent(consumer)
    # Another member may have had it in between.
    with pytest.raises(FencedError, match="nothing was committed"):
        await consumer.commit(consumer.positions())
    assert _values(await read(consumer, 1)) == [b"in hand"]
    await consumer.commit(consumer.positions())
    assert await log.committed_positions(group) == consumer.positions()
    await consumer.close()
