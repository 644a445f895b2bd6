"""Adapters under contract: ``event_log`` is opened on each of them in turn."""

import functools
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.log.harness import LogHarness
from tests.simulation.log import SimulatedLog, Store
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.local import consumer as local_consumer
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, TopicPartition


@pytest.fixture(params=["local", "simulated", "kafka"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LogHarness]:
    """A store with one open handle."""

    async def open_local() -> EventLog:
        return LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL", busy_timeout_s=20)

    async def open_kafka() -> EventLog:
        return KafkaLog.open(f"kafka://{request.getfixturevalue('kafka_bootstrap')}", environ={})

    async def open_simulated() -> EventLog:
        return SimulatedLog(store())

    @functools.cache
    def store() -> Store:
        return Store(tmp_path, transaction_markers=True)

    adapters = {"local": open_local, "simulated": open_simulated, "kafka": open_kafka}

    @asynccontextmanager
    async def hold_back_simulated(topic: str) -> AsyncIterator[None]:
        await store().hold_back(TopicPartition(topic, 0))
        yield
        store().let_go(TopicPartition(topic, 0))

    @asynccontextmanager
    async def hold_back_kafka(topic: str) -> AsyncIterator[None]:
        async with foreign_transaction(request.getfixturevalue("kafka_bootstrap"), topic):
            yield

    holding = {"simulated": hold_back_simulated, "kafka": hold_back_kafka}
    harness = LogHarness(adapters[request.param], holding.get(request.param))
    await harness.open()
    yield harness
    await harness.close()
    if request.param == "simulated":
        await store().local.close()


@asynccontextmanager
async def foreign_transaction(bootstrap: str, topic: str, partition: int = 0) -> AsyncIterator[None]:
    """Another program's transaction with a record in a partition, aborted at the end."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=f"foreign-{secrets.token_hex(4)}"
    )
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"never", key=b"k", partition=partition)
    yield
    await producer.abort_transaction()
    await producer.stop()


@pytest.fixture
def no_recheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a waiting consumer of a local log nothing but its wake-ups."""
    monkeypatch.setattr(local_consumer, "_RECHECK_S", 1000.0)


@pytest.fixture
def event_log(harness: LogHarness) -> EventLog:
    """The first handle on the store."""
    return harness.opened[0]
