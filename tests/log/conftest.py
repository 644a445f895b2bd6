"""Adapters under contract: ``event_log`` is opened on each of them in turn."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.log.harness import LogHarness
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.local import consumer as local_consumer
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog
from unstable_stream.log.simulated import SimulatedLog, SimulatedStore


@pytest.fixture(params=["local", "simulated", "kafka"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LogHarness]:
    """A store with one open handle."""

    async def open_local() -> EventLog:
        return LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL", busy_timeout_s=20)

    async def open_kafka() -> EventLog:
        return KafkaLog.open(f"kafka://{request.getfixturevalue('kafka_bootstrap')}", environ={})

    store = SimulatedStore(transaction_markers=True)

    async def open_simulated() -> EventLog:
        return SimulatedLog(store)

    adapters = {"local": open_local, "simulated": open_simulated, "kafka": open_kafka}
    harness = LogHarness(adapters[request.param])
    await harness.open()
    yield harness
    await harness.close()


@pytest.fixture
def no_recheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a waiting consumer of a local log nothing but its wake-ups."""
    monkeypatch.setattr(local_consumer, "_RECHECK_S", 1000.0)


@pytest.fixture
def event_log(harness: LogHarness) -> EventLog:
    """The first handle on the store."""
    return harness.opened[0]
