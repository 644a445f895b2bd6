"""A processor whose next records were deleted, or whose log lost its end, stops and names the offsets."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.log.harness import topics_of_one_partition
from tests.log.lost_end import lose_end
from tests.model_pool.outcomes import RUN
from tests.services.streams.hosted_games import OTHER_RUN, drain, events, games, letters, read, start
from tests.services.streams.test_shared_host import OFTEN, _of, _steps, assert_folded
from unstable_stream.errors import OffsetOutOfRangeError
from unstable_stream.events import Event, GameOutcome, Trajectory
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.services.streams.fold_sink import FoldSink
from unstable_stream.services.streams.processor import group_of
from unstable_stream.services.streams.processors import (
    RATINGS,
    REWARDS,
    host_processors,
    rating_processor,
)
from unstable_stream.services.streams.run_configs import RunDirectory
from unstable_stream.services.streams.snapshots import SnapshotPace

FINAL = [{"type": "RoleAdvantageFormatter"}]
OUTCOMES = TopicPartition(GameOutcome.TOPIC, 0)


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


async def test_a_first_host_of_all_runs_folds_no_half_history(log: LocalLog) -> None:
    """One run lost its first records, the other began behind them."""
    await start(log, OTHER_RUN, FINAL)
    await log.append(_of(OTHER_RUN, 0, 10))
    await _expire(log, Trajectory.TOPIC, 0)
    await start(log, RUN)
    await log.append([*_of(RUN, 0, 10), *_of(OTHER_RUN, 10, 10)])
    await drain(log, REWARDS, run_id=None, pace=OFTEN, max_records=7)
    await assert_folded(log, RUN)
    assert await _steps(log, OTHER_RUN) == {}
    assert {letter.record_key for letter in await letters(log)} == {f"{OTHER_RUN}/Env-3"}


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
