"""The rolling metrics on a real log: on topic ``metrics``, once, the same after a restart."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.reward_transformations.trajectories import RUN, make_trajectory
from tests.services.streams.hosted_games import events, forget_snapshots, games, read
from tests.services.streams.test_processors import _config, _serve
from unstable_stream.algorithms.rolling_metrics import MetricsProcessor
from unstable_stream.archive import query
from unstable_stream.events import Metrics
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.recording import start_run
from unstable_stream.services.streams.processors import METRICS
from unstable_stream.services.tracking.prometheus import MonitorState, exposition
from unstable_stream.services.workers.archiver import run_archiver


@pytest.fixture
async def log(declared_log: LocalLog) -> LocalLog:
    await start_run(declared_log, _config(), RUN)
    return declared_log


async def _published(log: LocalLog) -> list[Metrics]:
    found = [event for event in await events(log, "metrics", RUN) if isinstance(event, Metrics)]
    return [event for event in found if event.source == "tracker"]


def _newest(published: Sequence[Metrics]) -> dict[str, float]:
    """The value of every name that is of the most events."""
    values: dict[str, float] = {}
    for event in sorted(published, key=lambda one: one.occurred_at_ms):
        values |= event.values
    return values


async def _folded(log: LocalLog) -> dict[str, float]:
    """What one fold of everything tells at the end."""
    due, rest = await _fold(log)
    return _newest([*due, *rest])


async def _fold(log: LocalLog) -> tuple[list[Metrics], Sequence[Metrics]]:
    """What becomes due on the way, and what waits at the end."""
    processor = MetricsProcessor(RUN)
    stored = [event for topic in METRICS.inputs for event in await events(log, topic, RUN)]
    return [metrics for event in stored for metrics in processor.handle(event)], processor.rest()


async def test_what_waits_is_published_when_the_host_ends(log: LocalLog) -> None:
    await log.append(games(0, 12))
    await _serve(log, RUN)
    published = await _published(log)
    assert _newest(published) == await _folded(log)
    assert _newest(published)["collection-Env-0/games"] == 3
    await _serve(log, RUN)
    assert await _published(log) == published


async def test_sql_and_prometheus_see_them(log: LocalLog, tmp_path: Path) -> None:
    await log.append(games(0, 12))
    await _serve(log, RUN)
    stop = asyncio.Event()
    stop.set()
    await run_archiver(log, tmp_path / "archive.duckdb", stop=stop)
    rows = query(
        tmp_path / "archive.duckdb",
        "SELECT name, value, \"update\" FROM metrics WHERE source = 'tracker' AND run_id = 'run-a'",
    ).rows
    folded = await _folded(log)
    assert {name: value for name, value, _ in rows} == folded
    assert {update for _, _, update in rows} == {3}

    monitor = MonitorState()
    for topic in ("runs", "metrics"):
        for record in await read(log, topic):
            monitor.apply(record)
    values = {
        sample.labels["name"]: sample.value
        for family in exposition(monitor, [], {}, log_up=True)
        for sample in family.samples
        if sample.name == "unstable_stream_value" and sample.labels["source"] == "tracker"
    }
    assert values == folded


@pytest.mark.parametrize(("run_id", "with_snapshot"), [(RUN, True), (None, False)])
async def test_a_restarted_host_publishes_what_an_uninterrupted_one_does(
    log: LocalLog, run_id: str | None, with_snapshot: bool
) -> None:
    rises = [make_trajectory(100 + i, env_id="Env-0", policy_version=4 + i) for i in range(3)]
    await log.append(games(0, 12))
    await _serve(log, run_id)
    if not with_snapshot:
        await forget_snapshots(log, METRICS, run_id)
    await log.append([*games(12, 12), *map(record_from_event, rises)])
    await _serve(log, run_id)
    published = await _published(log)
    contents = {event.event_id: event for event in published}
    assert all(contents[event.event_id] == event for event in published)  # again only with the same content
    assert _newest(published) == await _folded(log)
    # What becomes due on the way is there too: it does not depend on where a host ended.
    due, _ = await _fold(log)
    assert len(due) >= 3
    assert all(contents[metrics.event_id] == metrics for metrics in due)
