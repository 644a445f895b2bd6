"""Topics of our own making on the real Kafka, and a client that shares no code with ours."""

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import confluent_kafka
import pytest

from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir

DEADLINE_S = 120.0

MakeTopics: TypeAlias = Callable[..., Awaitable[dict[str, str]]]
ReadMessages: TypeAlias = Callable[[Sequence[str], int], list[confluent_kafka.Message]]


@pytest.fixture
async def log(kafka_bootstrap: str, tmp_path: Path) -> AsyncIterator[EventLog]:
    """Our log on the real Kafka."""
    async with opened_log(f"kafka://{kafka_bootstrap}", DataDir(tmp_path).log) as opened:
        yield opened


@pytest.fixture
async def fresh_topics(log: EventLog) -> MakeTopics:
    """Make topics with the settings of the declared ones; return declared name to fresh name."""

    async def make(*declared: str) -> dict[str, str]:
        names = {name: f"{name}-{uuid.uuid4().hex[:12]}" for name in declared}
        await log.create_topics([replace(load_topics()[name], name=fresh) for name, fresh in names.items()])
        return names

    return make


@pytest.fixture
def read_independently(kafka_bootstrap: str) -> Iterator[ReadMessages]:
    """Read topics with librdkafka, committed records only, until there are so many messages."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka_bootstrap,
            "group.id": f"interoperability-{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )

    def read(topics: Sequence[str], count: int) -> list[confluent_kafka.Message]:
        partitions = [
            confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)
            for topic in topics
            for partition in consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        ]
        consumer.assign(partitions)
        messages: list[confluent_kafka.Message] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(messages) < count:
            assert time.monotonic() < deadline, f"{len(messages)} of {count} messages in {topics}"
            message = consumer.poll(0.5)
            if message is not None:
                assert message.error() is None, message.error()
                messages.append(message)
        # One more look: what an aborted transaction left must not follow.
        extra = consumer.poll(0.5)
        assert extra is None or extra.error() is not None, f"more than {count} messages in {topics}"
        return messages

    yield read
    consumer.close()
