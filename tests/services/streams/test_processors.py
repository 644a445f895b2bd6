"""The processors of one run and of all: settings, state and dead letters, on a real local log."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.reward_transformations.trajectories import RUN, make_trajectory
from tests.services.streams.hosted_games import (
    OTHER_RUN,
    events,
    forget_snapshots,
    from_scratch,
    games,
    letters,
    read,
)
from unstable_stream.algorithms.rolling_metrics import MetricsProcessor
from unstable_stream.archive import query
from unstable_stream.errors import ConfigError
from unstable_stream.events import Metrics, Rating, Step, encode_event
from unstable_stream.extensions import confined
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.records import record_from_event
from unstable_stream.reward_transformations import StepRewardTransform, TrajectoryView
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.recording import start_run
from unstable_stream.runs.resume import resume_run
from unstable_stream.services.streams.processors import METRICS, rating_processor, reward_processor
from unstable_stream.services.streams.service import run_processors
from unstable_stream.services.tracking.prometheus import MonitorState, exposition
from unstable_stream.services.workers.archiver import run_archiver


@pytest.fixture
def log(declared_log: LocalLog) -> LocalLog:
    return declared_log


def _config(**changes: object) -> RunConfig:
    settings: dict[str, object] = {
        "model": "tiny-player",
        "train_envs": [{"env_id": "Env-0"}],
        "rewards": {"final": [{"type": "WinDrawLossFormatter"}], "step": [{"type": "RewardForFormat"}]},
        "model_pool": {"draw_probability": {"Env-0": 0.5}},
    }
    return parse_config(settings | changes)


async def _serve(log: LocalLog, run_id: str | None) -> None:
    stop = asyncio.Event()
    stop.set()
    await run_processors(log, run_id, stop)


async def test_a_run_is_served_from_the_configuration_it_began_with(log: LocalLog) -> None:
    await start_run(log, _config(), RUN)
    await resume_run(log, RUN, _config(rewards={"step": [{"type": "RewardForFormat", "reward": 9.0}]}))
    await log.append(games(0, 4))
    await _serve(log, RUN)
    steps = {(s.game_index, s.seat): s for s in await events(log, "steps") if isinstance(s, Step)}
    assert steps[0, 0].reward == 1.0
    assert [event for event in await events(log, "ratings") if isinstance(event, Rating)]


async def test_all_runs_are_served_each_with_its_own_settings_and_state(log: LocalLog) -> None:
    rewards = {RUN: 0.5, OTHER_RUN: 2.0}
    for first in (0, 6):
        for run_id, reward in rewards.items():
            if first == 0 or run_id != RUN:
                config = _config(
                    rewards={"final": [], "step": [{"type": "RewardForFormat", "reward": reward}]}
                )
                await start_run(log, config, run_id)
        await log.append(games(first, 6))
        await _serve(log, None)
    for run_id, reward in rewards.items():
        steps = [s for s in await events(log, "steps", run_id) if isinstance(s, Step)]
        assert {s.reward - s.final_reward for s in steps} == {reward}
        alone = partial(reward_processor, run_id, [], [{"type": "RewardForFormat", "reward": reward}])
        assert {s.event_id: encode_event(s) for s in steps} == await from_scratch(log, alone)
        assert len(steps) == len({s.event_id for s in steps})
    rated = [(r.event_id, encode_event(r)) for r in await events(log, "ratings")]
    assert dict(rated) == await from_scratch(log, partial(rating_processor, RUN, {"Env-0": 0.5}))
    assert await log.committed_positions(f"reward-processor/{RUN}") == {}
    assert await letters(log) == []


async def test_events_of_a_run_nobody_started_are_set_aside(log: LocalLog) -> None:
    await start_run(log, _config(), RUN)
    await log.append(games(0, 4))
    await _serve(log, None)
    rejected = await letters(log)
    assert sorted(e.consumer for e in rejected) == ["metrics-processor"] * 4 + ["reward-processor"] * 4
    assert "EventError: trajectories[" in rejected[0].reason
    assert "run 'run-b' is not in topic runs" in rejected[0].reason
    # A run that starts while the host is up is found, also after a restart.
    await start_run(log, _config(), "run-c")
    await log.append(games(4, 4, other_run="run-c"))
    await _serve(log, None)
    assert len(await letters(log)) == 8
    assert {event.run_id for event in await events(log, "steps")} == {RUN, "run-c"}


async def test_a_bad_transformation_is_known_before_anything_is_read(log: LocalLog) -> None:
    await start_run(log, _config(rewards={"step": [{"type": "Nope"}]}), RUN)
    await log.append(games(0, 4))
    with pytest.raises(ConfigError, match="unknown step transformation 'Nope'"):
        await run_processors(log, RUN, asyncio.Event())
    assert await log.groups() == []


async def test_a_run_that_makes_no_processor_does_not_stop_the_host_of_all(log: LocalLog) -> None:
    """The other runs are served; what is of this one is set aside, once."""
    await start_run(log, _config(), RUN)
    await start_run(log, _config(rewards={"step": [{"type": "Nope"}]}), OTHER_RUN)
    for first in (0, 4):
        await log.append(games(first, 4))
        with capture_logs() as said:
            await _serve(log, None)
        assert [one["event"] for one in said if one["log_level"] == "warning"] == [
            "a run is quarantined: its records go to dead-letters"
        ]
    assert {event.run_id for event in await events(log, "steps")} == {RUN}
    rejected = await letters(log)
    assert len(rejected) == len({e.event_id for e in rejected}) == 8
    assert "run 'run-b' cannot be folded by this host" in rejected[0].reason
    assert "unknown step transformation 'Nope'" in rejected[0].reason
    await log.append(games(0, 4))
    await _serve(log, None)
    assert len(await letters(log)) == 12


class Generous(StepRewardTransform):
    """Code of a run's own."""

    def __call__(self, trajectory: TrajectoryView, step_index: int, base_reward: float) -> float:
        return base_reward + 7.0


async def test_a_run_whose_code_was_not_allowed_is_made_up_for_by_serving_it_alone(log: LocalLog) -> None:
    await start_run(log, _config(), RUN)
    own = {"final": [], "step": [{"type": f"{__name__}:Generous"}]}
    await start_run(log, _config(rewards=own), OTHER_RUN)
    await log.append(games(0, 6))
    with confined():
        await _serve(log, None)
    (reason, *_) = [letter.reason for letter in await letters(log)]
    assert f"give --allow-code '{__name__}:Generous'" in reason
    assert {event.run_id for event in await events(log, "steps")} == {RUN}
    with confined(), pytest.raises(ConfigError, match="was not allowed to load it"):
        await _serve(log, OTHER_RUN)
    with confined([f"{__name__}:Generous"]):
        await _serve(log, OTHER_RUN)
        await log.append(games(6, 6))
        await _serve(log, None)
    steps = [s for s in await events(log, "steps", OTHER_RUN) if isinstance(s, Step)]
    assert {s.reward - s.final_reward for s in steps} == {7.0}
    alone = partial(reward_processor, OTHER_RUN, [], own["step"])
    with confined([f"{__name__}:Generous"]):
        assert {s.event_id: encode_event(s) for s in steps} == await from_scratch(log, alone)


@pytest.mark.parametrize(
    ("system", "start"),
    [("elo", 1500.0), ({"type": "elo", "mu": 100.0}, 100.0), ({"type": "trueskill", "mu": 9.0}, 9.0)],
)
async def test_a_run_is_rated_by_the_system_that_it_names(
    log: LocalLog, system: object, start: float
) -> None:
    config = _config(model_pool={"rating_system": system, "draw_probability": {"Env-0": 0.5}})
    await start_run(log, config, RUN)
    await log.append(games(0, 8))
    await _serve(log, RUN)
    ratings = {r.event_id: r for r in await events(log, "ratings") if isinstance(r, Rating)}
    first = [r for r in ratings.values() if r.games == 1]
    # The winner of a first game between equals gains what the loser gives up.
    assert max(r.mu for r in first) > start > min(r.mu for r in first)
    assert {r.sigma == 0.0 for r in ratings.values()} == {"elo" in str(system)}
    alone = partial(rating_processor, RUN, {"Env-0": 0.5}, config.model_pool.rating_system)
    assert {uid: encode_event(r) for uid, r in ratings.items()} == await from_scratch(log, alone)


def test_modes_that_compare_in_points_of_trueskill_need_it() -> None:
    with pytest.raises(ConfigError, match=r'sample_mode="ts-dist" compares .*rating_system="elo"'):
        _config(model_pool={"sample_mode": "ts-dist", "rating_system": "elo"})
    with pytest.raises(ConfigError, match=r"model_pool\.rating_system: .*trueskill.* cannot take"):
        rating_processor(RUN, system={"type": "trueskill", "nope": 1})


# -- the rolling metrics: on topic ``metrics``, once, the same after a restart -----------------------------


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
    await start_run(log, _config(), RUN)
    await log.append(games(0, 12))
    await _serve(log, RUN)
    published = await _published(log)
    assert _newest(published) == await _folded(log)
    assert _newest(published)["collection-Env-0/games"] == 3
    await _serve(log, RUN)
    assert await _published(log) == published


async def test_sql_and_prometheus_see_them(log: LocalLog, tmp_path: Path) -> None:
    await start_run(log, _config(), RUN)
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
    await start_run(log, _config(), RUN)
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
