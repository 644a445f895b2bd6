"""A processor whose records were deleted before they were processed stops, and names their offsets."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.log.harness import topics_of_one_partition
from tests.model_pool.outcomes import RUN
from tests.streams.hosted_games import OTHER_RUN, events, forget_snapshots, games, read
from tests.streams.test_shared_host import OFTEN, _expected, _of, _start, _steps
from unstable_stream.errors import OffsetOutOfRangeError
from unstable_stream.events import Event, GameOutcome, RecordRejected, Trajectory
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.streams.fold_sink import FoldSink, ProcessorSpec
from unstable_stream.streams.processors import (
    RATINGS,
    REWARDS,
    host_processors,
    rating_processor,
)
from unstable_stream.streams.run_configs import RunDirectory
from unstable_stream.streams.snapshots import SnapshotPace, load_position

FINAL = [{"type": "RoleAdvantageFormatter"}]
OUTCOMES = TopicPartition(GameOutcome.TOPIC, 0)
RATINGS_GROUP = {False: f"rating-processor/{RUN}", True: "rating-processor"}


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as opened:
        await opened.create_topics(topics_of_one_partition())
        yield opened


async def _drain(log: EventLog, spec: ProcessorSpec, run_id: str | None) -> None:
    stop = asyncio.Event()
    stop.set()
    async with RunDirectory(log) as runs:
        sink = FoldSink(log, spec, runs, run_id, pace=OFTEN)
        await host_processors([sink], stop=stop, max_records=7)


async def _expire(log: LocalLog, topic: str, but: int) -> None:
    await log.delete_before({at: max(0, end - but) for at, end in (await log.end_offsets(topic)).items()})


async def _ratings_of_all(log: EventLog) -> list[Event]:
    processor = rating_processor(RUN)
    return [made for event in await events(log, OUTCOMES.topic, RUN) for made in processor.handle(event)]


async def _ratings(log: EventLog) -> set[str]:
    return {event.event_id for event in await events(log, "ratings", RUN)}


@pytest.mark.parametrize("shared", [False, True])
async def test_what_a_living_host_has_processed_for_a_minute_may_expire_when_it_is_killed(
    log: LocalLog, shared: bool
) -> None:
    """Too few events came for a snapshot."""
    served = None if shared else RUN
    await _start(log, RUN)
    await log.append(games(0, 20))
    async with RunDirectory(log) as runs:
        sink = FoldSink(log, RATINGS, runs, served, pace=SnapshotPace(seconds=0))
        await sink.follow({OUTCOMES})
        await sink.process(await read(log, OUTCOMES.topic), {})
        await sink.settle({})
        # It is killed: nothing closes it.
        await log.append(games(20, 4))
        expected = {event.event_id for event in await _ratings_of_all(log)}
        await _expire(log, OUTCOMES.topic, 4)
        await _drain(log, RATINGS, served)
    assert await _ratings(log) == expected


async def test_a_snapshot_is_not_saved_at_every_pause(log: LocalLog) -> None:
    await _start(log, RUN)
    await log.append(games(0, 20))
    async with RunDirectory(log) as runs:
        sink = FoldSink(log, RATINGS, runs, RUN)
        await sink.follow({OUTCOMES})
        await sink.process(await read(log, OUTCOMES.topic), {})
        await sink.settle({})
        assert await load_position(log, sink.producer_id(OUTCOMES)) is None
        await sink.close()
        assert await load_position(log, sink.producer_id(OUTCOMES)) == 20


async def test_a_first_start_after_records_were_deleted_names_their_offsets(log: LocalLog) -> None:
    await _start(log, RUN)
    await log.append(games(0, 40))
    await _expire(log, OUTCOMES.topic, 5)
    with pytest.raises(OffsetOutOfRangeError, match=r"game-outcomes\[0\]@0 is out of .* has offsets 35 up"):
        await _drain(log, RATINGS, RUN)
    assert await events(log, "ratings") == []


@pytest.mark.parametrize("snapshot", ["kept", "gone"])
@pytest.mark.parametrize("shared", [False, True])
async def test_a_host_whose_next_records_were_deleted_names_their_offsets(
    log: LocalLog, snapshot: str, shared: bool
) -> None:
    served = None if shared else RUN
    await _start(log, RUN)
    await log.append(games(0, 10))
    await _drain(log, RATINGS, served)
    if snapshot == "gone":
        await forget_snapshots(log, RATINGS, served)
    await log.append(games(10, 30))
    before = await _ratings(log)
    await _expire(log, OUTCOMES.topic, 5)
    for _ in range(2):
        with pytest.raises(
            OffsetOutOfRangeError, match=r"game-outcomes\[0\]@10 is out of .* has offsets 35 up"
        ):
            await _drain(log, RATINGS, served)
    assert await _ratings(log) == before
    assert await log.committed_positions(RATINGS_GROUP[shared]) == {OUTCOMES: 10}


async def test_a_host_at_work_whose_next_records_are_deleted_stops(log: LocalLog) -> None:
    await _start(log, RUN)
    await log.append(games(0, 10))
    async with RunDirectory(log) as runs:
        sink = FoldSink(log, RATINGS, runs, RUN, pace=OFTEN)
        process = sink.process

        async def delete_first(records: Sequence[StoredRecord], read_up_to: Positions) -> Positions:
            done = await process(records, read_up_to)
            if records:
                await log.append(games(10, 20))
                await _expire(log, OUTCOMES.topic, 5)
            return done

        sink.process = delete_first  # type: ignore[method-assign]
        with pytest.raises(OffsetOutOfRangeError, match=r"game-outcomes\[0\]"):
            await host_processors([sink], stop=asyncio.Event(), max_records=4)


async def test_a_first_host_of_all_runs_folds_no_half_history(log: LocalLog) -> None:
    """One run lost its first records, the other began behind them."""
    await _start(log, OTHER_RUN, FINAL)
    await log.append(_of(OTHER_RUN, 0, 10))
    await _expire(log, Trajectory.TOPIC, 0)
    await _start(log, RUN)
    await log.append([*_of(RUN, 0, 10), *_of(OTHER_RUN, 10, 10)])
    await _drain(log, REWARDS, None)
    assert await _steps(log, RUN) == await _expected(log, RUN) != {}
    letters = [e for e in await events(log, "dead-letters") if isinstance(e, RecordRejected)]
    assert await _steps(log, OTHER_RUN) == {}
    assert {letter.record_key for letter in letters} == {f"{OTHER_RUN}/Env-3"}
