"""Append to and read from the Kafka log, against a bare aiokafka producer and consumer doing the same.

Run ``python -m benchmarks.kafka_log``: it starts a broker of its own, or uses the one that
``UNSTABLE_STREAM_TEST_KAFKA=host:port`` names. Both sides write the same records to as many partitions with
``acks=all``, idempotence and zstd, and a transaction around what we write in one; both read committed records
with the same fetch sizes. The bare side sends record by record, as one does, without checking topics and
sizes, and its transactions may still be invisible when it goes on; ours are not.
"""

import asyncio
import os
import random
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as KafkaPartition

from benchmarks.harness import Comparison, compare, parser, report
from infra.kafka.brokers import KafkaCluster
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.port import Record, TopicPartition, TopicSpec

EXISTING_BROKER = "UNSTABLE_STREAM_TEST_KAFKA"
_PORT = 19492


def make_records(topic: str, count: int, value_bytes: int, keys: int = 40) -> list[Record]:
    """Records with the headers of real events; the values compress to about half, as base64 in JSON does."""
    generator = random.Random(1)
    values = [generator.randbytes(value_bytes // 2).hex().encode() for _ in range(1000)]
    now_ms = time.time_ns() // 1_000_000
    return [
        Record(
            topic=topic,
            key=f"run-{index % keys}/TicTacToe-v0-train",
            value=values[index % len(values)],
            headers={
                "ce_specversion": b"1.0",
                "ce_id": b"%08d-0000-4000-8000-000000000000" % index,
                "ce_type": b"unstable_stream.trajectory.v1",
                "ce_source": b"/unstable_stream/runs/run-%d" % (index % keys),
                "ce_time": b"2025-01-01T00:00:00.000+00:00",
                "ce_dataschema": b"urn:unstable-stream:schema:trajectory.v1",
                "content-type": b"application/json",
            },
            timestamp_ms=now_ms,
        )
        for index in range(count)
    ]


@contextmanager
def broker() -> Iterator[str]:
    existing = os.environ.get(EXISTING_BROKER)
    if existing:
        yield existing
        return
    with (
        tempfile.TemporaryDirectory(prefix="kafka-log-") as directory,
        KafkaCluster(Path(directory), port=_PORT) as cluster,
    ):
        yield cluster.bootstrap


async def _make_topic(log: KafkaLog, partitions: int) -> str:
    topic = f"benchmark-{secrets.token_hex(6)}"
    await log.create_topics([TopicSpec(topic, partitions)])
    return topic


async def _share(
    batches: list[list[Record]], tasks: int, write: Callable[[list[Record]], Awaitable[Any]]
) -> float:
    """Write all batches by some tasks; return the seconds it took."""
    left = iter(batches)

    async def work() -> None:
        for batch in left:
            await write(batch)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(tasks)))
    return time.perf_counter() - began


def make_batches(records: list[Record], size: int) -> list[list[Record]]:
    return [records[first : first + size] for first in range(0, len(records), size)]


# -- bare aiokafka --------------------------------------------------------------------------------


def _bare_producer(bootstrap: str, transactional: bool) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        compression_type="zstd",
        max_batch_size=1024 * 1024,
        max_request_size=16 * 1024 * 1024,
        transactional_id=f"bare-{secrets.token_hex(6)}" if transactional else None,
    )


async def _send(producer: AIOKafkaProducer, batch: list[Record]) -> None:
    sent = [
        await producer.send(
            record.topic,
            record.value,
            key=record.key.encode(),
            timestamp_ms=record.timestamp_ms,
            headers=list(record.headers.items()),
        )
        for record in batch
    ]
    await asyncio.gather(*sent)


def bare_append(
    bootstrap: str, count: int, value_bytes: int, size: int, tasks: int, partitions: int
) -> float:
    async def measure() -> float:
        async with KafkaLog.open(f"kafka://{bootstrap}") as log:
            records = make_records(await _make_topic(log, partitions), count, value_bytes)
        async with _bare_producer(bootstrap, transactional=size > 1) as producer:

            async def write(batch: list[Record]) -> None:
                if size == 1:
                    await _send(producer, batch)
                else:
                    async with producer.transaction():
                        await _send(producer, batch)

            await write(records[:size])  # connects
            return len(records) / await _share(make_batches(records, size), tasks, write)

    return asyncio.run(measure())


def bare_transactions(bootstrap: str, count: int, value_bytes: int, size: int, partitions: int) -> float:
    async def measure() -> float:
        async with KafkaLog.open(f"kafka://{bootstrap}") as log:
            records = make_records(await _make_topic(log, partitions), count, value_bytes)
        group = f"benchmark-{secrets.token_hex(6)}"
        async with _bare_producer(bootstrap, transactional=True) as producer:

            async def write(batch: list[Record]) -> None:
                async with producer.transaction():
                    await _send(producer, batch)
                    await producer.send_offsets_to_transaction({KafkaPartition(batch[0].topic, 0): 1}, group)

            await write(records[:size])
            return len(records) / await _share(make_batches(records, size), 1, write)

    return asyncio.run(measure())


def bare_read(bootstrap: str, topic: str, count: int, page: int, partitions: int) -> float:
    async def measure() -> float:
        async with AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            enable_auto_commit=False,
            fetch_max_bytes=16 * 1024 * 1024,
            max_partition_fetch_bytes=2 * 1024 * 1024,
            fetch_max_wait_ms=200,
        ) as consumer:
            consumer.assign([KafkaPartition(topic, number) for number in range(partitions)])
            await consumer.seek_to_beginning()
            await consumer.getmany(timeout_ms=1000, max_records=page)  # connects
            began = time.perf_counter()
            seen = 0
            while seen < count - 2 * page:
                found = await consumer.getmany(timeout_ms=1000, max_records=page)
                seen += sum(len(records) for records in found.values())
            return seen / (time.perf_counter() - began)

    return asyncio.run(measure())


# -- ours -----------------------------------------------------------------------------------------


def log_append(bootstrap: str, count: int, value_bytes: int, size: int, tasks: int, partitions: int) -> float:
    async def measure() -> float:
        async with KafkaLog.open(f"kafka://{bootstrap}") as log:
            records = make_records(await _make_topic(log, partitions), count, value_bytes)
            await log.append(records[:size])
            return len(records) / await _share(make_batches(records, size), tasks, log.append)

    return asyncio.run(measure())


def log_transactions(bootstrap: str, count: int, value_bytes: int, size: int, partitions: int) -> float:
    async def measure() -> float:
        async with KafkaLog.open(f"kafka://{bootstrap}") as log:
            records = make_records(await _make_topic(log, partitions), count, value_bytes)
            group = f"benchmark-{secrets.token_hex(6)}"
            producer = await log.producer(group)

            async def write(batch: list[Record]) -> None:
                async with producer.transaction() as transaction:
                    await transaction.append(batch)
                    await transaction.commit_positions(group, {TopicPartition(batch[0].topic, 0): 1})

            await write(records[:size])
            return len(records) / await _share(make_batches(records, size), 1, write)

    return asyncio.run(measure())


def log_read(bootstrap: str, topic: str, count: int, page: int) -> float:
    async def measure() -> float:
        async with KafkaLog.open(f"kafka://{bootstrap}") as log:
            consumer = await log.consumer([topic])
            await consumer.poll(max_records=page)  # connects
            began = time.perf_counter()
            seen = 0
            while seen < count - 2 * page:
                seen += len(await consumer.poll(max_records=page))
            return seen / (time.perf_counter() - began)

    return asyncio.run(measure())


def fill(bootstrap: str, count: int, value_bytes: int, partitions: int) -> str:
    """Return a new topic with so many records, appended 500 at a time."""

    async def append() -> str:
        async with KafkaLog.open(f"kafka://{bootstrap}") as log:
            topic = await _make_topic(log, partitions)
            for batch in make_batches(make_records(topic, count, value_bytes), 500):
                await log.append(batch)
            return topic

    return asyncio.run(append())


def new_topic(bootstrap: str, partitions: int) -> str:
    """Return a new topic without records."""

    async def make() -> str:
        async with KafkaLog.open(f"kafka://{bootstrap}") as log:
            return await _make_topic(log, partitions)

    return asyncio.run(make())


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--partitions", type=int, default=4, help="partitions of the topic")
    arguments.add_argument("--appenders", type=int, default=32, help="tasks in the concurrent rows")
    arguments.add_argument("--value-bytes", type=int, default=4096, help="bytes of each value")
    arguments.add_argument("--scale", type=float, default=1.0, help="multiplies the number of records")
    options = arguments.parse_args()
    results: list[Comparison] = []
    with broker() as bootstrap:
        for size, count, tasks in (
            (1, 300, 1),
            (1, 3_000, options.appenders),
            (10, 500, 1),
            (1000, 10_000, 1),
        ):
            shared = (
                bootstrap,
                int(count * options.scale),
                options.value_bytes,
                size,
                tasks,
                options.partitions,
            )
            results.append(
                compare(
                    f"append, batch {size}" + (f", {tasks} tasks" if tasks > 1 else ""),
                    partial(log_append, *shared),
                    partial(bare_append, *shared),
                    unit="records/s",
                    rounds=options.rounds,
                )
            )
        for size, count in ((10, 500), (500, 10_000)):
            each = (bootstrap, int(count * options.scale), options.value_bytes, size, options.partitions)
            results.append(
                compare(
                    f"transaction with positions, batch {size}",
                    partial(log_transactions, *each),
                    partial(bare_transactions, *each),
                    unit="records/s",
                    rounds=options.rounds,
                )
            )
        count = int(50_000 * options.scale)
        topic = fill(bootstrap, count, options.value_bytes, options.partitions)
        results += [
            compare(
                f"read, {page} at once",
                partial(log_read, bootstrap, topic, count, page),
                partial(bare_read, bootstrap, topic, count, page, options.partitions),
                unit="records/s",
                rounds=options.rounds,
            )
            for page in (500, 5000)
        ]
    report(
        f"Kafka log against bare aiokafka, values of {options.value_bytes} bytes",
        results,
        options.json,
        versions={"aiokafka": version("aiokafka")},
    )


if __name__ == "__main__":
    main()
