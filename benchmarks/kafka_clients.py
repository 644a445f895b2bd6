"""The Kafka log against librdkafka, the other client that could carry it: docs/decisions/0006.

Run ``python -m benchmarks.kafka_clients``: it starts a broker of its own, or uses the one that
``UNSTABLE_STREAM_TEST_KAFKA=host:port`` names. librdkafka is used bare, through confluent-kafka's blocking
calls in one thread: no event loop, no check of topics and sizes, and no waiting until others can see what it
committed. Both sides write the same records with ``acks=all``, idempotence and zstd; both read committed
records with the same fetch sizes.
"""

import secrets
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import confluent_kafka

from benchmarks.harness import Comparison, compare, parser, report
from benchmarks.kafka_log import (
    broker,
    fill,
    log_append,
    log_read,
    log_transactions,
    make_batches,
    make_records,
    new_topic,
)
from unstable_stream.log.port import Record

_MEGABYTE = 1024 * 1024
_RETRY_MS = 5  # by default it waits 100 ms when its next transaction meets the markers of its last one


def _producer(bootstrap: str, **settings: Any) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 0,
            "batch.size": _MEGABYTE,
            "message.max.bytes": 16 * _MEGABYTE,
            **settings,
        }
    )


def _produce(producer: confluent_kafka.Producer, batch: list[Record]) -> None:
    for record in batch:
        producer.produce(
            record.topic,
            record.value,
            key=record.key,
            headers=list(record.headers.items()),
            timestamp=record.timestamp_ms,
        )


def _rate(records: list[Record], size: int, write: Callable[[list[Record]], Any]) -> float:
    write(records[:size])  # connects
    began = time.perf_counter()
    for batch in make_batches(records, size):
        write(batch)
    return len(records) / (time.perf_counter() - began)


def librdkafka_append(bootstrap: str, count: int, value_bytes: int, partitions: int) -> float:
    """Records per second, one after another."""
    producer = _producer(bootstrap)

    def write(batch: list[Record]) -> None:
        _produce(producer, batch)
        producer.flush()

    return _rate(make_records(new_topic(bootstrap, partitions), count, value_bytes), 1, write)


def librdkafka_transactions(
    bootstrap: str, count: int, value_bytes: int, size: int, partitions: int, retry_ms: int
) -> float:
    """Records per second in transactions that commit a position too."""
    group = f"benchmark-{secrets.token_hex(6)}"
    producer = _producer(
        bootstrap,
        **{"transactional.id": group, "retry.backoff.ms": retry_ms, "retry.backoff.max.ms": 10 * retry_ms},
    )
    producer.init_transactions()
    member = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    membership = member.consumer_group_metadata()
    member.close()

    def write(batch: list[Record]) -> None:
        producer.begin_transaction()
        _produce(producer, batch)
        position = confluent_kafka.TopicPartition(batch[0].topic, 0, 1)
        producer.send_offsets_to_transaction([position], membership)
        producer.commit_transaction()

    return _rate(make_records(new_topic(bootstrap, partitions), count, value_bytes), size, write)


def librdkafka_read(bootstrap: str, topic: str, count: int, page: int, partitions: int) -> float:
    """Records per second, taken apart as the log takes them apart."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.max.bytes": 16 * _MEGABYTE,
            "max.partition.fetch.bytes": 2 * _MEGABYTE,
            "fetch.wait.max.ms": 200,
            "queued.max.messages.kbytes": 32 * 1024,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
    consumer.consume(page, 10)  # connects
    began = time.perf_counter()
    seen = 0
    while seen < count - 2 * page:
        found = [
            (m.topic(), m.partition(), m.offset(), m.key(), m.value(), dict(m.headers() or ()), m.timestamp())
            for m in consumer.consume(page, 1)
        ]
        seen += len(found)
    rate = seen / (time.perf_counter() - began)
    consumer.close()
    return rate


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--partitions", type=int, default=4, help="partitions of the topic")
    arguments.add_argument("--value-bytes", type=int, default=1024, help="bytes of each value")
    arguments.add_argument("--scale", type=float, default=1.0, help="multiplies the number of records")
    options = arguments.parse_args()
    size_of, parts = options.value_bytes, options.partitions
    results: list[Comparison] = []

    def race(name: str, ours: Callable[[], float], theirs: Callable[[], float]) -> None:
        results.append(compare(name, ours, theirs, unit="records/s", rounds=options.rounds))

    with broker() as bootstrap:
        count = int(500 * options.scale)
        race(
            "append, one by one",
            partial(log_append, bootstrap, count, size_of, 1, 1, parts),
            partial(librdkafka_append, bootstrap, count, size_of, parts),
        )
        for size, number in ((10, 500), (500, 20_000)):
            count = int(number * options.scale)
            for retry_ms in (100, _RETRY_MS):
                race(
                    f"transaction with positions, batch {size}, it retries after {retry_ms} ms",
                    partial(log_transactions, bootstrap, count, size_of, size, parts),
                    partial(librdkafka_transactions, bootstrap, count, size_of, size, parts, retry_ms),
                )
        count = int(50_000 * options.scale)
        topic = fill(bootstrap, count, size_of, parts)
        for page in (500, 5000):
            race(
                f"read, {page} at once",
                partial(log_read, bootstrap, topic, count, page),
                partial(librdkafka_read, bootstrap, topic, count, page, parts),
            )
    report(
        f"Kafka log against bare librdkafka, values of {size_of} bytes",
        results,
        options.json,
        versions={"aiokafka": version("aiokafka"), "librdkafka": confluent_kafka.libversion()[0]},
    )


if __name__ == "__main__":
    main()
