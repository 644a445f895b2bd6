"""The saved states of runs that have ended are forgotten, and a run that is resumed all the same is whole."""

import asyncio
from pathlib import Path

import pytest

from tests.builders import made
from tests.log.harness import topics_of_one_partition
from tests.model_pool.outcomes import RUN
from tests.services.streams.hosted_games import OTHER_RUN, drain, events, games, start
from tests.services.streams.test_shared_host import OFTEN, _of, _steps
from unstable_stream.events import GameStarted, RecordRejected, Trajectory, encode_event
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.history import read_history
from unstable_stream.runs.recording import finish_run
from unstable_stream.runs.resume import resume_run
from unstable_stream.services.streams.finished_states import FinishedState, finished_states, forget_states
from unstable_stream.services.streams.fold_sink import FoldSink
from unstable_stream.services.streams.processors import RATINGS, REWARDS, host_processors, reward_processor
from unstable_stream.services.streams.run_configs import RunDirectory
from unstable_stream.services.streams.snapshots import SnapshotPace, scope_of_topics

LATER_MS = 2**62


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


@pytest.mark.parametrize("own_host", [False, True])
@pytest.mark.parametrize("resumed", [False, True])
async def test_a_run_that_goes_on_is_folded_from_its_start(
    log: LocalLog, own_host: bool, resumed: bool
) -> None:
    """Not resumed: a worker that was cut off finishes a game after the end of the run."""
    config = {"model": "tiny-player", "train_envs": [{"env_id": "Env-0"}]}
    final = [{"type": "RoleAdvantageFormatter"}]
    run_id = RUN if own_host else None
    await start(log, OTHER_RUN)
    await start(log, RUN, final)
    await log.append([*_of(OTHER_RUN, 0, 6), *_of(RUN, 0, 24)])
    await drain(log, REWARDS, RATINGS, run_id=run_id, pace=OFTEN)
    await finish_run(log, RUN, "stopped", "")
    assert await forget_states(log, await finished_states(log, ended_before_ms=LATER_MS))
    if resumed:
        await resume_run(log, RUN, parse_config({**config, "rewards": {"final": final}}))
    await log.append([*_of(OTHER_RUN, 6, 6), *_of(RUN, 24, 24)])
    await drain(log, REWARDS, RATINGS, run_id=run_id, pace=OFTEN)
    ratings = [event.event_id for event in await events(log, "ratings", RUN)]
    assert len(ratings) == len(set(ratings))
    processor = reward_processor(RUN, final)
    folded = [step for event in await events(log, "trajectories", RUN) for step in processor.handle(event)]
    assert await _steps(log, RUN) == {step.event_id: encode_event(step) for step in folded} != {}
    assert not await events(log, "dead-letters")


@pytest.mark.parametrize("own_host", [False, True])
async def test_a_killed_run_is_over_when_it_is_silent_for_long(log: LocalLog, own_host: bool) -> None:
    """It never ended, and may go on without being resumed: a host that was away comes back."""
    final = [{"type": "RoleAdvantageFormatter"}]
    run_id = RUN if own_host else None
    await start(log, OTHER_RUN)
    await start(log, RUN, final)
    await log.append([*_of(OTHER_RUN, 0, 6), *_of(RUN, 0, 24)])
    await drain(log, REWARDS, RATINGS, run_id=run_id, pace=OFTEN)
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
    living = made(
        GameStarted,
        event_id="alive",
        run_id=RUN,
        occurred_at_ms=began + 20 * day_ms,
        game_id="alive",
        game_index=100,
        env_id="Env-0",
        seats=(),
    )
    await log.append([record_from_event(living)])
    assert await found(31, 30) == []
    assert await found(51, 30) == over

    assert await forget_states(log, over) == len(
        [name for each in over for name in each.names if "/" in name]
    )
    assert await found(51, 30) == []
    assert f"run/{RUN}" not in await _names(log)

    await log.append([*_of(OTHER_RUN, 6, 6), *_of(RUN, 24, 24)])
    await drain(log, REWARDS, RATINGS, run_id=run_id, pace=OFTEN)
    processor = reward_processor(RUN, final)
    folded = [step for event in await events(log, "trajectories", RUN) for step in processor.handle(event)]
    assert await _steps(log, RUN) == {step.event_id: encode_event(step) for step in folded} != {}
    assert not await events(log, "dead-letters")


@pytest.mark.parametrize("own_host", [False, True])
async def test_a_live_host_of_a_run_that_was_forgotten_goes_on_as_if_nothing_were(
    tmp_path: Path, own_host: bool
) -> None:
    """It has let the run's fold go, since only other runs had records, and loads it when the run goes on."""
    async with LocalLog.open(tmp_path / "one.sqlite", synchronous="NORMAL") as log:
        await log.create_topics(topics_of_one_partition())
        final = [{"type": "RoleAdvantageFormatter"}]
        await start(log, OTHER_RUN)
        await start(log, RUN, final)
        often, stop = SnapshotPace(events=1, times_its_size=0, passed=1), asyncio.Event()
        async with RunDirectory(log) as runs:
            sink = FoldSink(log, REWARDS, runs, RUN if own_host else None, pace=often)

            async def processed() -> None:
                ends = await log.end_offsets(Trajectory.TOPIC)
                async with asyncio.timeout(60):
                    while {at: end for at, end in sink.positions().items() if end} != {
                        at: end for at, end in ends.items() if end
                    }:
                        assert not hosting.done()
                        await asyncio.sleep(0.01)

            hosting = asyncio.ensure_future(host_processors([sink], stop=stop))
            for run_id, first in ((RUN, 0), (OTHER_RUN, 0), (OTHER_RUN, 12)):
                await log.append(_of(run_id, first, 12))
                await processed()
            began = (await read_history(log)).runs[RUN].started_at_ms
            found = await finished_states(
                log, ended_before_ms=0, named=[RUN], now_ms=began + 3_600_000_000, idle_ms=1
            )
            assert await forget_states(log, found) > 0
            await log.append(_of(OTHER_RUN, 24, 12))
            await processed()
            await log.append(_of(RUN, 12, 12))
            await processed()
            stop.set()
            await hosting
        processor = reward_processor(RUN, final)
        played = await events(log, "trajectories", RUN)
        folded = [step for event in played for step in processor.handle(event)]
        assert await _steps(log, RUN) == {step.event_id: encode_event(step) for step in folded} != {}


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
    letters = [e for e in await events(log, "dead-letters") if isinstance(e, RecordRejected)]
    assert letters
    assert all("Records were deleted" in letter.reason for letter in letters)
