"""Pages of a run whose log is a real Kafka: how far consumers are behind, a what-if that reads the log."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.kafka.brokers import KafkaCluster
from tests.conftest import KEEPING, free_port_pair, skip_without_kafka
from tests.history.proofs.recorded_run import record_run
from tests.ui.web.conftest import client_of
from tests.ui.web.test_what_if import ask
from unstable_stream.api.place import Place
from unstable_stream.archive import ArchiveWriter
from unstable_stream.log.reading import read_to_end

RUN = "run-asked"


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    """A broker of its own: these topics have one partition."""
    skip_without_kafka()
    with KafkaCluster(tmp_path / "kafka", 1, free_port_pair(), KEEPING) as cluster:
        yield cluster.bootstrap


@pytest.mark.broker
def test_a_run_on_kafka_is_shown_and_asked(bootstrap: str, tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data", f"kafka://{bootstrap}")

    async def record() -> None:
        async with place.opened_log() as log:
            await record_run(log, RUN, hosted=True)
            with ArchiveWriter(place.data.archive_file, await log.log_id()) as writer:
                writer.write([record async for record in read_to_end(log, tuple(await log.topics()))])

    place.data.archive_file.parent.mkdir()
    asyncio.run(record())
    with client_of(place) as client:
        health = client.get(f"/data/runs/{RUN}/health").text
        assert "Records behind" in health
        assert f"rewards.{RUN}" in health or RUN in health
        page = ask(client, place, "rewards", rewards="final = []")
        assert "differs</b> from the one used" in page
        assert "the reward of 0 steps differs" not in page
