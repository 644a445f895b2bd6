"""What a reader says and does when the only broker has gone under it, and when it comes back."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.kafka.brokers import KafkaCluster
from tests.conftest import free_port_pair, skip_without_kafka
from unstable_stream.errors import LogUnavailableError
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.port import Record, TopicSpec

DEADLINE_S = 60.0
pytestmark = [pytest.mark.slow, pytest.mark.broker]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    skip_without_kafka()
    with KafkaCluster(tmp_path / "kafka", port=free_port_pair()) as cluster:
        yield cluster


async def test_a_reader_waits_for_the_broker_and_closes_without_it(cluster: KafkaCluster) -> None:
    log = KafkaLog.open(f"kafka://{cluster.bootstrap}", delivery_timeout_s=3.0)
    await log.create_topics([TopicSpec("games", 2)])
    consumer = await log.consumer(["games"])
    member = await log.consumer(["games"], "group")
    await member.poll(timeout_s=5)
    cluster.stop(1)
    for reader in (consumer, member):
        assert await reader.poll(timeout_s=1.0) == [], "nothing there is no error: the broker may come back"
    with pytest.raises(LogUnavailableError, match="could not look up offsets"):
        await log.end_offsets("games")

    await asyncio.to_thread(cluster.start, 1)
    async with asyncio.timeout(DEADLINE_S):
        while not (found := await consumer.poll(timeout_s=1.0)):
            # A broker that has just started may need longer than this log waits.
            with contextlib.suppress(LogUnavailableError):
                await log.append([Record("games", "key", b"{}")])
    assert {record.value for record in found} == {b"{}"}

    cluster.stop(1)
    await consumer.poll(timeout_s=1.0)  # a fetch is under way that will never be answered
    async with asyncio.timeout(DEADLINE_S):  # they wait for no broker
        await consumer.close()
        await member.close()
        await log.close()
