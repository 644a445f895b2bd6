"""Every reader of a log that holds poison of each sort ends as it does on a clean one, and names the poison.

Two logs hold the same run. One of them had poison on every topic before the run began, and has more after it.
"""

import asyncio
import shlex
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from tests.fuzz.poison import absurd_events, absurd_starts, no_events, stored_as
from tests.history.proofs.recorded_run import record_run, small_config
from tests.log.harness import topics_of_one_partition
from unstable_stream import Context, consumer
from unstable_stream.archive import query
from unstable_stream.events import Event, RecordRejected, encode_event
from unstable_stream.history.proofs.verify import audit_run, verify_run
from unstable_stream.inference.base_model import resolve_model
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, TopicPartition
from unstable_stream.log.reading import events_to_end, read_to_end
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.history import list_runs
from unstable_stream.services.streams.plugins.host import PluginCounters, run_plugin
from unstable_stream.services.streams.service import run_processors
from unstable_stream.services.tracking.prometheus import run_monitor
from unstable_stream.services.tracking.terminal_interface import watch_run
from unstable_stream.services.workers.archiver import run_archiver
from unstable_stream.services.workers.collector import Collector
from unstable_stream.services.workers.learner import LearnerService
from unstable_stream.ui.cli import app

pytestmark = pytest.mark.longer

RUN, NEW_RUN = "run-read", "run-new"
CONFIG = small_config(learner={"iterations": 1, "batch_size": 8, "mini_batch_size": 4})


@dataclass(frozen=True)
class Recorded:
    clean: Path
    """A data directory: a log and its archive."""
    poisoned: Path
    poison: list[tuple[TopicPartition, int]]
    """The places of records that are no events."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    directory = tmp_path_factory.mktemp("readers")
    places: list[tuple[TopicPartition, int]] = []

    async def record(data: Path, *, with_poison: bool) -> None:
        data.mkdir()
        async with LocalLog.open(data / "log.sqlite", synchronous="NORMAL") as log:
            await log.create_topics(topics_of_one_partition())
            if with_poison:
                absurd = absurd_events("run-absurd", every=11)
                absurd += absurd_starts("run-absurd", CONFIG, await log.log_id())
                await log.append([stored_as(event) for event in absurd])
                places.extend(await log.append(no_events(RUN)))
            await record_run(log, RUN, CONFIG, games=8, reads=(500,))
            await record_run(log, NEW_RUN, CONFIG, updates=False, finish=False)
            if with_poison:
                places.extend(await log.append(no_events(RUN)[::3]))
            await run_processors(log, None, stopped())
            await run_archiver(log, data / "archive.duckdb", stop=stopped(), flush_interval_s=0.02)

    with structlog.testing.capture_logs():  # a warning for each
        asyncio.run(record(directory / "clean", with_poison=False))
        asyncio.run(record(directory / "poisoned", with_poison=True))
    return Recorded(directory / "clean", directory / "poisoned", places)


def stopped() -> asyncio.Event:
    stop = asyncio.Event()
    stop.set()
    return stop


async def _bodies(data: Path, topic: str) -> list[bytes]:
    async with LocalLog.open(data / "log.sqlite") as log:
        return [encode_event(event) async for _, event in events_to_end(log, (topic,), run_id=RUN)]


@pytest.mark.parametrize("topic", ["steps", "ratings"])
async def test_processors_make_the_same_of_a_run_beside_poison(recorded: Recorded, topic: str) -> None:
    expected = await _bodies(recorded.clean, topic)
    assert sorted(await _bodies(recorded.poisoned, topic)) == sorted(expected) != []


@pytest.mark.parametrize("table", ["seats", "trajectories", "turns", "steps", "ratings", "update_steps"])
def test_the_archiver_makes_the_same_tables_of_a_run_beside_poison(recorded: Recorded, table: str) -> None:
    columns = "COLUMNS(lambda name: name <> 'record_number')"
    sql = f"SELECT {columns} FROM {table} WHERE run_id = '{RUN}' ORDER BY ALL"
    clean = list(query(recorded.clean / "archive.duckdb", sql).rows)
    assert list(query(recorded.poisoned / "archive.duckdb", sql).rows) == clean != []


async def test_every_record_that_is_no_event_is_on_dead_letters_by_its_place(recorded: Recorded) -> None:
    letters: dict[str, list[RecordRejected]] = {}
    async with LocalLog.open(recorded.poisoned / "log.sqlite") as log:
        async for _, event in events_to_end(log, (RecordRejected.TOPIC,)):
            if isinstance(event, RecordRejected):
                where = f"{event.topic}[{event.partition}]@{event.offset}"
                letters.setdefault(where, []).append(event)
        values = {str(each): each.value async for each in read_to_end(log, tuple(await log.topics()))}
    for at, offset in recorded.poison:
        where = f"{at}@{offset}"
        if at.topic == RecordRejected.TOPIC:
            assert where not in letters, "no letter is written about a letter"
            continue
        groups = {"archiver", *({"reward-processor"} if at.topic == "trajectories" else ())}
        assert {letter.consumer.partition("/")[0] for letter in letters[where]} >= groups
        assert all(letter.record_value == values[where] for letter in letters[where])


# -- readers that change nothing ------------------------------------------------------------------


async def _audit_and_verify(log: EventLog, data: Path) -> None:
    for report in (await audit_run(log, RUN), await verify_run(log, RUN)):
        assert report.ok, str(report)


async def _list(log: EventLog, data: Path) -> None:
    assert {RUN, NEW_RUN} <= {run.run_id for run in await list_runs(log)}


async def _watch(log: EventLog, data: Path) -> None:
    await run_monitor(log, port=0, stop=stopped())
    await watch_run(log, RUN, CONFIG)


async def _collector(log: EventLog, data: Path) -> None:
    await Collector(CONFIG, NEW_RUN, [], []).collect(log, stopped())


async def _learner(log: EventLog, data: Path) -> None:
    service = LearnerService(CONFIG, NEW_RUN, DataDir(data), resolve_model("tiny-player"))
    try:
        assert await service.train(log, stopped()) == 0
    finally:
        service.close()


async def _plugin(log: EventLog, data: Path) -> None:
    runs: list[str] = []

    @consumer(topics=sorted(await log.topics()), name=f"reads-{data.name}")
    def read(event: Event, context: Context) -> None:
        runs.append(event.run_id)

    counters = PluginCounters()
    await run_plugin(log, read, DataDir(data), stop=asyncio.Event(), until_end=True, counters=counters)
    assert runs.count(RUN) > 50


@pytest.mark.parametrize("read", [_audit_and_verify, _list, _watch, _collector, _learner, _plugin])
async def test_services_read_past_poison(
    recorded: Recorded, read: Callable[[EventLog, Path], Coroutine[Any, Any, None]]
) -> None:
    with structlog.testing.capture_logs():
        async with asyncio.timeout(60), LocalLog.open(recorded.poisoned / "log.sqlite") as log:
            await read(log, recorded.poisoned)


@pytest.mark.parametrize(
    "command",
    [
        *(f"log tail {spec.name} -n 1000" for spec in topics_of_one_partition()),
        "log tail runs -n 1000 --json",
        f"log tail steps --run {RUN}",
        "replay",
        f"replay {RUN}",
        "replay --source archive",
        "replay --where split=train",
        "runs",
        "topics lag",
        f"games --run {RUN}",
        f"rerate {RUN}",
        "sql 'SELECT count(*) FROM events' --csv",
        f"why --update 1 --run {RUN}",
        f"collapse {RUN}",
    ],
)
def test_commands_read_past_poison(recorded: Recorded, command: str) -> None:
    result = CliRunner().invoke(app, [*shlex.split(command), "--data", str(recorded.poisoned)])
    assert result.exit_code == 0, (result.output[-2000:], result.exception)
