"""Processors go on where all that they have processed was deleted: on logs whose transactions end with an
offset without a record.
"""

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from infra.kafka.brokers import KafkaCluster
from tests.conftest import KEEPING, free_port_pair, skip_without_kafka
from tests.log.harness import topics_of_one_partition
from tests.processes import until
from tests.services.streams.hosted_games import drain, events, games, settings
from tests.services.streams.plugin_bench import delete_on_kafka
from tests.services.streams.test_faust_host import OURS, Run, worker
from tests.simulation.log import SimulatedLog, Store
from unstable_stream.events import Event, GameOutcome
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.port import EventLog, TopicPartition
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.recording import start_run
from unstable_stream.services.streams.processors import RATINGS, rating_processor
from unstable_stream.services.streams.snapshots import SnapshotPace

pytestmark = pytest.mark.longer

CONFIG = parse_config(settings())
OUTCOMES = TopicPartition(GameOutcome.TOPIC, 0)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Kafka of its own: other tests would miss what expires."""
    skip_without_kafka()
    with KafkaCluster(tmp_path_factory.mktemp("expired"), 1, free_port_pair(), KEEPING) as cluster:
        yield cluster.bootstrap


@pytest.fixture(params=["simulated", pytest.param("kafka", marks=pytest.mark.broker)])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventLog]:
    if request.param == "simulated":
        store = Store(tmp_path, transaction_markers=True)
        log: EventLog = SimulatedLog(store)
    else:
        log = KafkaLog.open(f"kafka://{request.getfixturevalue('broker')}")
    await log.create_topics(topics_of_one_partition())
    yield log
    await log.close()
    if request.param == "simulated":
        await store.local.close()


async def _expire(log: EventLog, request: pytest.FixtureRequest) -> None:
    """All outcomes that there are."""
    ends = await log.end_offsets(OUTCOMES.topic)
    if isinstance(log, SimulatedLog):
        await log.delete_before(ends)
    else:
        await asyncio.to_thread(delete_on_kafka, f"kafka://{request.getfixturevalue('broker')}", ends)
    assert await log.beginning_offsets(OUTCOMES.topic) == ends


@pytest.mark.parametrize("often", [False, True])
async def test_what_ends_with_a_marker_may_expire_whole(
    log: EventLog, request: pytest.FixtureRequest, often: bool
) -> None:
    """``often``: a snapshot after every batch, so that none is due at the end."""
    pace = SnapshotPace(events=1, times_its_size=0) if often else SnapshotPace()
    run_id = f"run-{secrets.token_hex(4)}"
    await start_run(log, CONFIG, run_id)
    processor, expected = rating_processor(run_id), list[Event]()
    for first in (0, 20):
        producer = await log.producer(run_id)
        async with producer.transaction() as transaction:
            await transaction.append(games(first, 20, run_id, f"{run_id}-other"))
        await producer.close()
        for event in await events(log, OUTCOMES.topic, run_id):
            expected += processor.handle(event)
        await drain(log, RATINGS, run_id=run_id, pace=pace, max_records=7)
        ends = await log.end_offsets(OUTCOMES.topic)
        assert await log.committed_positions(f"{RATINGS.name}/{run_id}") == ends
        await _expire(log, request)
    ratings = await events(log, "ratings", run_id)
    assert {one.event_id: one for one in ratings} == {one.event_id: one for one in expected}
    assert len(ratings) == len(expected)


@pytest.mark.broker
async def test_faust_is_overtaken_by_retention(broker: str, tmp_path: Path) -> None:
    """Its worker stands still while records come and go that it has not read."""
    location = f"kafka://{broker}"
    async with KafkaLog.open(location) as log:
        await log.create_topics(topics_of_one_partition())
        run = await Run.start(log, location, tmp_path, CONFIG)
        data = DataDir(tmp_path / "data")

        arguments = [*OURS, "--run", run.run_id, "--runtime", "faust", "--data", str(data.root)]
        with worker(run, arguments) as hosting:
            await run.play(0, 10)
            await until(run.processed, hosting)
            hosting.process.send_signal(signal.SIGSTOP)
            # The first goes into the answer that its pending request gets; it has asked for nothing else.
            await run.play(10, 10)
            await run.play(20, 30)
            end = (await log.end_offsets(OUTCOMES.topic))[OUTCOMES]
            await asyncio.to_thread(delete_on_kafka, location, {OUTCOMES: end})
            await run.play(50, 5)
            hosting.process.send_signal(signal.SIGCONT)
            assert await hosting.end(None) == 1, hosting.printed
            assert "deleted by retention" in hosting.printed
