"""A transaction is committed while one of its partitions has no leader: nothing of it is lost."""

import asyncio
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from aiokafka.structs import TopicPartition as KafkaPartition

from infra.kafka.brokers import KafkaCluster
from tests.conftest import free_port_pair, skip_without_kafka
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.kafka.records import pack, prepare
from unstable_stream.log.kafka.sending import Sender, open_sender
from unstable_stream.log.port import Record, TopicSpec

pytestmark = [pytest.mark.broker, pytest.mark.slow]

_DEADLINE_S = 200.0
_PARTITIONS = 6


async def test_what_was_committed_without_a_leader_is_there_once_the_next_producer_writes(
    tmp_path: Path,
) -> None:
    """The broker leaves out the marker in that partition, and answers that all is committed."""
    skip_without_kafka()
    settings = {"default.replication.factor": "1", "min.insync.replicas": "1"}
    with KafkaCluster(tmp_path, port=free_port_pair(), brokers=3, settings=settings) as cluster:
        async with (
            asyncio.timeout(_DEADLINE_S),
            KafkaLog.open(f"kafka://{cluster.bootstrap}", environ={}) as log,
        ):
            await log.create_topics([TopicSpec("six", _PARTITIONS)])
            parts = log._use()

            async def write(word: str) -> Sender:
                sender = await open_sender(parts.cluster, "write", "id", 300.0)
                now_ms = time.time_ns() // 1_000_000
                batch = await prepare(
                    [
                        Record("six", "k", word.encode(), timestamp_ms=now_ms, partition=number)
                        for number in range(_PARTITIONS)
                    ],
                    parts.topics,
                )
                await sender.fill_transaction(pack([batch], parts.topics, in_transaction=True), {})
                return sender

            first = await write("first")
            leader = first._client.cluster.leader_for_partition(KafkaPartition("six", 0))
            await asyncio.to_thread(cluster.stop, leader, signal.SIGKILL)
            while first._client.cluster.leader_for_partition(KafkaPartition("six", 0)) not in (None, -1):
                await first._client.force_metadata_update()
                await asyncio.sleep(0.1)
            await first.commit_transaction()
            await first.close()
            await asyncio.to_thread(cluster.start, leader)
            again = await write("again")
            await again.commit_transaction()
            await again.close()
            ends = await log.end_offsets("six")
            reader = await log.consumer(["six"])
            seen: list[bytes] = []
            while reader.positions() != ends:
                seen += [record.value for record in await reader.poll(timeout_s=0.2)]
    assert Counter(seen) == {b"first": _PARTITIONS, b"again": _PARTITIONS}
