"""What was deleted: records, the end of a log, the saved states of runs that have ended.

A processor whose next records are gone stops and names the offsets. States of ended runs are forgotten,
and a run that is resumed all the same is whole.
"""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.builders import made
from tests.log.harness import topics_of_one_partition
from tests.log.lost_end import lose_end
from tests.model_pool.outcomes import RUN
from tests.processes import until
from tests.services.streams.hosted_games import (
    OTHER_RUN,
    drain,
    events,
    games,
    letters,
    read,
    settings,
    start,
)
from tests.services.streams.test_shared_host import OFTEN, _of, _steps, assert_folded
from unstable_stream.errors import OffsetOutOfRangeError
from unstable_stream.events import Event, GameOutcome, GameStarted, Trajectory
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.history import read_history
from unstable_stream.runs.recording import finish_run
from unstable_stream.runs.resume import resume_run
from unstable_stream.services.streams.finished_states import FinishedState, finished_states, forget_states
from unstable_stream.services.streams.fold_sink import FoldSink
from unstable_stream.services.streams.processor import group_of
from unstable_stream.services.streams.processors import RATINGS, REWARDS, host_processors, rating_processor
from unstable_stream.services.streams.run_configs import RunDirectory
from unstable_stream.services.streams.snapshots import SnapshotPace, scope_of_topics

FINAL = [{"type": "RoleAdvantageFormatter"}]
OUTCOMES = TopicPartition(GameOutcome.TOPIC, 0)
LATER_MS = 2**62


async def _expire(log: LocalLog, topic: str, but: int) -> None:
    await log.delete_before({at: max(0, end - but) for at, end in (await log.end_offsets(topic)).items()})


async def _drain(log: EventLog, run_id: str | None) -> None:
    await drain(log, RATINGS, run_id=run_id, pace=OFTEN, max_records=7)


async def _ratings_of_all(log: EventLog) -> list[Event]:
    processor = rating_processor(RUN)
    return [made for event in await events(log, OUTCOMES.topic, RUN) for made in processor.handle(event)]


async def _ratings(log: EventLog) -> set[str]:
    return {event.event_id for event in await events(log, "ratings", RUN)}


@pytest.mark.parametrize("served", [RUN, None])
async def test_what_a_living_host_has_processed_for_a_minute_may_expire_when_it_is_killed(
    log: LocalLog, served: str | None
) -> None:
    """Too few events came for a snapshot."""
    await start(log, RUN)
    await log.append(games(0, 20))
    async with RunDirectory(log) as runs:
        sink = FoldSink(log, RATINGS, runs, served, pace=SnapshotPace(seconds=0))
        await sink.follow({OUTCOMES})
        await sink.process(await read(log, OUTCOMES.topic), {})
        await sink.flush({})
        # It is killed: nothing closes it.
        await log.append(games(20, 4))
        expected = {event.event_id for event in await _ratings_of_all(log)}
        await _expire(log, OUTCOMES.topic, 4)
        await _drain(log, served)
    assert await _ratings(log) == expected


@pytest.mark.parametrize("served", [RUN, None])
async def test_a_host_whose_next_records_were_deleted_names_their_offsets(
    log: LocalLog, served: str | None
) -> None:
    await start(log, RUN)
    await log.append(games(0, 10))
    await _drain(log, served)
    await log.append(games(10, 30))
    before = await _ratings(log)
    await _expire(log, OUTCOMES.topic, 5)
    for _ in range(2):
        with pytest.raises(
            OffsetOutOfRangeError, match=r"game-outcomes\[0\]@10 is out of .* has offsets 35 up"
        ):
            await _drain(log, served)
    assert await _ratings(log) == before
    assert await log.committed_positions(group_of(RATINGS.name, served)) == {OUTCOMES: 10}


async def test_a_host_at_work_whose_next_records_are_deleted_stops(log: LocalLog) -> None:
    await start(log, RUN)
    await log.append(games(0, 10))
    async with RunDirectory(log) as runs:
        sink = FoldSink(log, RATINGS, runs, RUN, pace=OFTEN)
        process = sink.process

        async def delete_first(records: Sequence[StoredRecord], read_up_to: Positions) -> None:
            await process(records, read_up_to)
            if records:
                await log.append(games(10, 20))
                await _expire(log, OUTCOMES.topic, 5)

        sink.process = delete_first  # type: ignore[method-assign]
        with pytest.raises(OffsetOutOfRangeError, match=r"game-outcomes\[0\]"):
            await host_processors([sink], stop=asyncio.Event(), max_records=4)


@pytest.mark.parametrize("run_id", [RUN, None])
async def test_a_processor_whose_log_is_shorter_than_its_position_stops_and_changes_nothing(
    tmp_path: Path, run_id: str | None
) -> None:
    path, group = tmp_path / "short.sqlite", group_of(RATINGS.name, run_id)
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await log.create_topics(topics_of_one_partition())
        await start(log, RUN)
        await log.append(games(0, 20))
        await drain(log, RATINGS, run_id=run_id)
        ((at, reached),) = (await log.committed_positions(group)).items()
    lose_end(path, at, reached - 5)
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        named = re.escape(f"{at}@{reached} is out of range: this log has offsets 0 up to (not including)")
        with pytest.raises(OffsetOutOfRangeError, match=f"{named}.*Restore a copy of the log"):
            await drain(log, RATINGS, run_id=run_id)
        assert await log.committed_positions(group) == {at: reached}


# -- saved states of runs that have ended -----------------------------------------------------------------


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
    await start(log, OTHER_RUN)
    await start(log, RUN, FINAL)
    await _played(log, run_id, 0)
    await finish_run(log, RUN, "stopped", "")
    assert await forget_states(log, await finished_states(log, ended_before_ms=LATER_MS))
    if resumed:
        await resume_run(log, RUN, parse_config(settings(FINAL)))
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
                await until(lambda: hosting.done() or ends.items() <= sink.positions().items())
                assert not hosting.done()

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
