"""The saved states of runs that have ended are forgotten, and a run that is resumed all the same is whole."""

import asyncio
from pathlib import Path

import pytest

from tests.builders import made
from tests.log.harness import topics_of_one_partition
from tests.model_pool.outcomes import RUN
from tests.services.streams.hosted_games import OTHER_RUN, drain, events, games, letters, start
from tests.services.streams.test_shared_host import OFTEN, _of, _steps, assert_folded
from unstable_stream.events import GameStarted, Trajectory
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.history import read_history
from unstable_stream.runs.recording import finish_run
from unstable_stream.runs.resume import resume_run
from unstable_stream.services.streams.finished_states import FinishedState, finished_states, forget_states
from unstable_stream.services.streams.fold_sink import FoldSink
from unstable_stream.services.streams.processors import RATINGS, REWARDS, host_processors
from unstable_stream.services.streams.run_configs import RunDirectory
from unstable_stream.services.streams.snapshots import SnapshotPace, scope_of_topics

LATER_MS = 2**62
FINAL = [{"type": "RoleAdvantageFormatter"}]


async def _names(log: EventLog) -> set[str]:
    return {name for names in (await log.saved_names()).values() for name in names}


async def test_what_is_forgotten(log: LocalLog) -> None:
    for run_id in (RUN, OTHER_RUN):
        await start(log, run_id)
    await log.append([*games(0, 12), *_of(OTHER_RUN, 0, 12)])
    await drain(log, REWARDS, RATINGS, run_id=None, pace=OFTEN)  # a host of all runs
    await drain(log, REWARDS, RATINGS, run_id=RUN, pace=OFTEN)
    assert await finished_states(log, ended_before_ms=LATER_MS) == []
    await finish_run(log, RUN, "completed", "")
    assert await finished_states(log, ended_before_ms=0) == []  # it ended later than that

    found = await finished_states(log, ended_before_ms=LATER_MS)
    assert {each.run_id for each in found} == {RUN}
    assert await _names(log) == {"position", f"run/{RUN}", f"run/{OTHER_RUN}"}
    await forget_states(log, found)
    assert await _names(log) == {"position", f"run/{OTHER_RUN}"}
    assert not any(scope.split("/")[1] == RUN for scope in await log.saved_names())
    assert await finished_states(log, ended_before_ms=LATER_MS) == []


async def test_what_a_collector_saved_is_forgotten(log: LocalLog) -> None:
    await start(log, RUN)
    scope = scope_of_topics(f"collector/{RUN}", ("games", "game-outcomes"))
    async with (await log.producer("test")).transaction() as transaction:
        await transaction.save(scope, {"state": b"1", "checkpoint/ckpt-000000": b"2"})
    await finish_run(log, RUN, "completed", "")
    (found,) = await finished_states(log, ended_before_ms=LATER_MS)
    assert (found.run_id, found.scope) == (RUN, scope)
    assert await forget_states(log, [found]) == 2
    assert await log.saved_names() == {}


async def _played(log: LocalLog, run_id: str | None, first: int) -> None:
    """Play games of two runs, and fold them on a host of one run, or of all."""
    await log.append([*_of(OTHER_RUN, first // 4, 6), *_of(RUN, first, 24)])
    await drain(log, REWARDS, RATINGS, run_id=run_id, pace=OFTEN)


async def _assert_whole(log: LocalLog) -> None:
    ratings = [event.event_id for event in await events(log, "ratings", RUN)]
    assert len(ratings) == len(set(ratings))
    await assert_folded(log, RUN, FINAL)
    assert not await letters(log)


@pytest.mark.parametrize("run_id", [RUN, None])
@pytest.mark.parametrize("resumed", [False, True])
async def test_a_run_that_goes_on_is_folded_from_its_start(
    log: LocalLog, run_id: str | None, resumed: bool
) -> None:
    """Not resumed: a worker that was cut off finishes a game after the end of the run."""
    config = {"model": "tiny-player", "train_envs": [{"env_id": "Env-0"}], "rewards": {"final": FINAL}}
    await start(log, OTHER_RUN)
    await start(log, RUN, FINAL)
    await _played(log, run_id, 0)
    await finish_run(log, RUN, "stopped", "")
    assert await forget_states(log, await finished_states(log, ended_before_ms=LATER_MS))
    if resumed:
        await resume_run(log, RUN, parse_config(config))
    await _played(log, run_id, 24)
    await _assert_whole(log)


@pytest.mark.parametrize("run_id", [RUN, None])
async def test_a_killed_run_is_over_when_it_is_silent_for_long(log: LocalLog, run_id: str | None) -> None:
    """It never ended, and may go on without being resumed: a host that was away comes back."""
    await start(log, OTHER_RUN)
    await start(log, RUN, FINAL)
    await _played(log, run_id, 0)
    began = (await read_history(log)).runs[RUN].started_at_ms
    day_ms = 24 * 3600 * 1000

    async def found(days: int, idle_days: int) -> list[FinishedState]:
        return await finished_states(
            log,
            ended_before_ms=LATER_MS,
            now_ms=began + days * day_ms,
            idle_ms=idle_days * day_ms,
            named=[RUN],
        )

    assert await found(29, 30) == []
    assert await found(31, 32) == []
    over = await found(31, 30)
    assert {each.run_id for each in over} == {RUN}
    # A game is started: the run lives.
    living = made(GameStarted, run_id=RUN, occurred_at_ms=began + 20 * day_ms, game_index=100, seats=())
    await log.append([record_from_event(living)])
    assert await found(31, 30) == []
    assert await found(51, 30) == over

    assert await forget_states(log, over) == sum("/" in name for each in over for name in each.names)
    assert await found(51, 30) == []
    assert f"run/{RUN}" not in await _names(log)
    await _played(log, run_id, 24)
    await _assert_whole(log)


@pytest.mark.parametrize("run_id", [RUN, None])
async def test_a_live_host_of_a_run_that_was_forgotten_goes_on_as_if_nothing_were(
    tmp_path: Path, run_id: str | None
) -> None:
    """It has let the run's fold go, since only other runs had records, and loads it when the run goes on."""
    async with LocalLog.open(tmp_path / "one.sqlite", synchronous="NORMAL") as log:
        await log.create_topics(topics_of_one_partition())
        await start(log, OTHER_RUN)
        await start(log, RUN, FINAL)
        often, stop = SnapshotPace(events=1, times_its_size=0, passed=1), asyncio.Event()
        async with RunDirectory(log) as runs:
            sink = FoldSink(log, REWARDS, runs, run_id, pace=often)

            async def played(of: str, first: int) -> None:
                await log.append(_of(of, first, 12))
                ends = {at: end for at, end in (await log.end_offsets(Trajectory.TOPIC)).items() if end}
                async with asyncio.timeout(60):
                    while {at: end for at, end in sink.positions().items() if end} != ends:
                        assert not hosting.done()
                        await asyncio.sleep(0.01)

            hosting = asyncio.ensure_future(host_processors([sink], stop=stop))
            for of, first in ((RUN, 0), (OTHER_RUN, 0), (OTHER_RUN, 12)):
                await played(of, first)
            began = (await read_history(log)).runs[RUN].started_at_ms
            found = await finished_states(
                log, ended_before_ms=0, named=[RUN], now_ms=began + 3_600_000_000, idle_ms=1
            )
            assert await forget_states(log, found) > 0
            await played(OTHER_RUN, 24)
            await played(RUN, 12)
            stop.set()
            await hosting
        await assert_folded(log, RUN, FINAL)


async def test_a_forgotten_run_whose_records_are_gone_is_set_aside(log: LocalLog) -> None:
    await start(log, RUN)
    await log.append(_of(RUN, 0, 12))
    await drain(log, REWARDS, run_id=None, pace=OFTEN)
    await finish_run(log, RUN, "stopped", "")
    await log.delete_before(await log.end_offsets(Trajectory.TOPIC))
    await forget_states(log, await finished_states(log, ended_before_ms=LATER_MS))
    before = await _steps(log, RUN)
    await log.append(_of(RUN, 12, 4))
    await drain(log, REWARDS, run_id=None, pace=OFTEN)
    assert await _steps(log, RUN) == before
    rejected = await letters(log)
    assert rejected
    assert all("Records were deleted" in letter.reason for letter in rejected)
