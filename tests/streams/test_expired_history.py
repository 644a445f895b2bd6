"""A processor whose first records are gone from the log reads the archive, or says what is missing."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.log.harness import topics_of_one_partition
from tests.model_pool.outcomes import RUN
from tests.streams.hosted_games import OTHER_RUN, events, forget_snapshots, games, read
from tests.streams.test_shared_host import OFTEN, _expected, _of, _start, _steps
from unstable_stream.errors import ServiceError
from unstable_stream.events import Event, GameOutcome, RecordRejected, Trajectory, encode_event
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.runs.recording import finish_run
from unstable_stream.streams.fold_sink import FoldSink, ProcessorSpec
from unstable_stream.streams.processors import (
    RATINGS,
    REWARDS,
    host_processors,
    rating_processor,
    reward_processor,
)
from unstable_stream.streams.run_configs import RunDirectory
from unstable_stream.streams.snapshots import SnapshotPace, load_position
from unstable_stream.streams.tiered_log import with_archive
from unstable_stream.workers.archiver import run_archiver

FINAL = [{"type": "RoleAdvantageFormatter"}]
OUTCOMES = TopicPartition(GameOutcome.TOPIC, 0)
RATINGS_GROUP = {False: f"rating-processor/{RUN}", True: "rating-processor"}


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as opened:
        await opened.create_topics(topics_of_one_partition())
        yield opened


async def _drain(log: EventLog, spec: ProcessorSpec, run_id: str | None, archive: Path | None) -> None:
    stop = asyncio.Event()
    stop.set()
    async with RunDirectory(log) as runs:
        sink = FoldSink(log, spec, runs, run_id, archive=archive, pace=OFTEN)
        await host_processors([sink], stop=stop, max_records=7)


async def _archive(log: EventLog, path: Path) -> Path:
    stop = asyncio.Event()
    stop.set()
    await run_archiver(log, path, stop=stop, flush_interval_s=0.02)
    return path


async def _expire(log: LocalLog, topic: str, but: int) -> None:
    await log.delete_before({at: max(0, end - but) for at, end in (await log.end_offsets(topic)).items()})


async def _forget_positions(tmp_path: Path) -> None:
    """As Kafka does after ``offsets.retention.minutes``."""
    with closing(sqlite3.connect(tmp_path / "log.sqlite", timeout=60)) as file, file:
        file.execute("DELETE FROM positions")


@pytest.mark.parametrize("archived", ["all", "a part", "nothing"])
async def test_a_first_start_after_records_expired(log: LocalLog, tmp_path: Path, archived: str) -> None:
    await _start(log, RUN)
    await log.append(games(0, 20))
    archive = tmp_path / "a.duckdb"
    if archived != "nothing":
        await _archive(log, archive)
    await log.append(games(20, 20))
    if archived == "all":
        await _archive(log, archive)
    expected = {event.event_id for event in await _ratings_of_all(log)}
    await _expire(log, OUTCOMES.topic, 5)
    if archived == "all":
        await _drain(log, RATINGS, RUN, archive)
        ratings = [event.event_id for event in await events(log, "ratings", RUN)]
        assert len(ratings) == len(set(ratings))
        assert set(ratings) == expected
        assert await log.committed_positions(f"rating-processor/{RUN}") == {OUTCOMES: 40}
        return
    gone = "20 to 34" if archived == "a part" else "0 to 34"
    with pytest.raises(ServiceError, match=rf"game-outcomes\[0\]: offsets {gone} are neither in the log nor"):
        await _drain(log, RATINGS, RUN, archive)
    assert await events(log, "ratings") == []


async def _ratings_of_all(log: EventLog) -> list[Event]:
    processor = rating_processor(RUN)
    return [made for event in await events(log, OUTCOMES.topic, RUN) for made in processor.handle(event)]


async def test_without_positions_it_goes_on_from_its_snapshot(log: LocalLog, tmp_path: Path) -> None:
    await _start(log, RUN)
    await log.append(games(0, 20))
    await _drain(log, RATINGS, RUN, None)
    await log.append(games(20, 4))
    expected = {event.event_id for event in await _ratings_of_all(log)}
    await _expire(log, OUTCOMES.topic, 4)
    await _forget_positions(tmp_path)
    with capture_logs() as told:
        await _drain(log, RATINGS, RUN, None)
    assert "goes on from its snapshots" in str(told)
    assert {event.event_id for event in await events(log, "ratings", RUN)} == expected


@pytest.mark.parametrize("archived", [True, False])
async def test_a_state_that_no_snapshot_holds_is_folded_from_the_archive(
    log: LocalLog, tmp_path: Path, archived: bool
) -> None:
    await _start(log, RUN)
    await log.append(games(0, 20))
    await _drain(log, RATINGS, RUN, None)
    archive = await _archive(log, tmp_path / "a.duckdb") if archived else None
    await forget_snapshots(log, RATINGS, RUN)
    await log.append(games(20, 4))
    expected = {event.event_id for event in await _ratings_of_all(log)}
    await _expire(log, OUTCOMES.topic, 4)
    if archived:
        await _drain(log, RATINGS, RUN, archive)
        assert {event.event_id for event in await events(log, "ratings", RUN)} == expected
    else:
        with pytest.raises(ServiceError, match="Records were deleted and are not in the archive"):
            await _drain(log, RATINGS, RUN, None)


async def _ratings(log: EventLog) -> set[str]:
    return {event.event_id for event in await events(log, "ratings", RUN)}


@pytest.mark.parametrize("shared", [False, True])
async def test_what_a_living_host_has_processed_for_a_minute_may_expire_when_it_is_killed(
    log: LocalLog, shared: bool
) -> None:
    """Too few events came for a snapshot, and there is no archive."""
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
        await _drain(log, RATINGS, served, None)
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


@pytest.mark.parametrize("shared", [False, True])
async def test_a_host_killed_behind_its_snapshot_goes_on_from_it_and_the_archive(
    log: LocalLog, tmp_path: Path, shared: bool
) -> None:
    """The archive has what came since the snapshot, and not the first games."""
    served = None if shared else RUN
    await _start(log, RUN)
    await log.append(games(0, 20))
    await _drain(log, RATINGS, served, None)
    await _expire(log, OUTCOMES.topic, 10)
    await log.append(games(20, 10))
    expected = await _ratings(log)
    async with RunDirectory(log) as runs:
        sink = FoldSink(log, RATINGS, runs, served, pace=SnapshotPace())
        opened = await sink.follow({OUTCOMES})
        assert opened == {OUTCOMES: 20}
        await sink.process([one for one in await read(log, OUTCOMES.topic) if one.offset >= 20], {})
        # It is killed: nothing closes it.
        archive = await _archive(log, tmp_path / "a.duckdb")
        before = await _ratings(log)
        assert before > expected
        await log.append(games(30, 4))
        await _archive(log, archive)
        await _expire(log, OUTCOMES.topic, 4)
        with capture_logs() as told:
            await _drain(log, RATINGS, served, archive)
    assert "neither in the log nor" not in str(told)
    assert not await events(log, "dead-letters")
    ratings = [event.event_id for event in await events(log, "ratings", RUN)]
    assert len(ratings) == len(set(ratings)) > len(before)
    assert await log.committed_positions(RATINGS_GROUP[shared]) == {OUTCOMES: 34}


@pytest.mark.parametrize("archived", [True, False])
async def test_a_first_host_of_all_runs_folds_no_half_history(
    log: LocalLog, tmp_path: Path, archived: bool
) -> None:
    """One run lost its first records, the other began behind them."""
    await _start(log, OTHER_RUN, FINAL)
    await log.append(_of(OTHER_RUN, 0, 10))
    if archived:
        await _archive(log, tmp_path / "a.duckdb")
    processor = reward_processor(OTHER_RUN, FINAL)
    # The baseline has learned from these.
    before = [step for e in await events(log, Trajectory.TOPIC, OTHER_RUN) for step in processor.handle(e)]
    await _expire(log, Trajectory.TOPIC, 0)
    await _start(log, RUN)
    await log.append([*_of(RUN, 0, 10), *_of(OTHER_RUN, 10, 10)])
    await _drain(log, REWARDS, None, tmp_path / "a.duckdb")
    assert await _steps(log, RUN) == await _expected(log, RUN) != {}
    after = [step for e in await events(log, Trajectory.TOPIC, OTHER_RUN) for step in processor.handle(e)]
    letters = [e for e in await events(log, "dead-letters") if isinstance(e, RecordRejected)]
    steps = await _steps(log, OTHER_RUN)
    if archived:
        assert letters == []
        assert steps == {step.event_id: encode_event(step) for step in [*before, *after]} != {}
    else:
        assert steps == {}
        assert {letter.record_key for letter in letters} == {f"{OTHER_RUN}/Env-3"}


@pytest.mark.parametrize("dies", [False, True])
async def test_a_first_host_of_all_runs_publishes_what_expired_of_runs_that_go_on(
    log: LocalLog, tmp_path: Path, dies: bool
) -> None:
    """Nothing of a run that is over, until it goes on."""
    for run_id in (OTHER_RUN, RUN):
        await _start(log, run_id, FINAL)
    await log.append([*_of(OTHER_RUN, 0, 10), *_of(RUN, 0, 30)])
    await finish_run(log, OTHER_RUN, "completed", "")
    archive = await _archive(log, tmp_path / "a.duckdb")
    expected = await _expected(log, RUN, FINAL)
    over = await _expected(log, OTHER_RUN, FINAL)
    await _expire(log, Trajectory.TOPIC, 0)
    if dies:
        stop = asyncio.Event()
        async with RunDirectory(log) as runs:
            sink = FoldSink(log, REWARDS, runs, None, archive=archive, pace=OFTEN)
            hosting = asyncio.ensure_future(host_processors([sink], stop=stop))
            async with asyncio.timeout(120):
                while not await _steps(log, RUN):
                    assert not hosting.done()
            hosting.cancel()
            await asyncio.gather(hosting, return_exceptions=True)
    await _drain(log, REWARDS, None, archive)
    assert await _steps(log, RUN) == expected != {}
    assert dies or await _steps(log, OTHER_RUN) == {}
    # It goes on all the same: a worker that was cut off finishes its games.
    await log.append(_of(OTHER_RUN, 10, 10))
    await _drain(log, REWARDS, None, archive)
    async with with_archive(log, archive) as history:
        whole = await _expected(history, OTHER_RUN, FINAL)
    found = await _steps(log, OTHER_RUN)
    assert found.items() <= whole.items()
    assert found.keys() >= whole.keys() - over.keys() != set()
    assert not await events(log, "dead-letters")


@pytest.mark.parametrize("archived", ["all", "a part", "nothing"])
@pytest.mark.parametrize("snapshot", ["kept", "gone"])
@pytest.mark.parametrize("shared", [False, True])
async def test_a_host_that_retention_has_passed_goes_on_from_the_archive(
    log: LocalLog, tmp_path: Path, archived: str, snapshot: str, shared: bool
) -> None:
    """The committed position is before the log's first record, and records from there are unprocessed."""
    await _start(log, RUN)
    await log.append(games(0, 10))
    served = None if shared else RUN
    await _drain(log, RATINGS, served, None)
    if snapshot == "gone":
        await forget_snapshots(log, RATINGS, served)
    await log.append(games(10, 10))
    archive = tmp_path / "a.duckdb"
    if archived != "nothing":
        await _archive(log, archive)
    await log.append(games(20, 20))
    if archived == "all":
        await _archive(log, archive)
    expected = {event.event_id for event in await _ratings_of_all(log)}
    before = len(await events(log, "ratings", RUN))
    await _expire(log, OUTCOMES.topic, 5)
    if archived == "all":
        await _drain(log, RATINGS, served, archive)
        ratings = [event.event_id for event in await events(log, "ratings", RUN)]
        assert len(ratings) == len(set(ratings)) > before
        assert set(ratings) == expected
        assert await log.committed_positions(RATINGS_GROUP[shared]) == {OUTCOMES: 40}
        return
    gone = "20 to 34" if archived == "a part" else "10 to 34"
    for _ in range(2):
        with pytest.raises(ServiceError, match=rf"game-outcomes\[0\]: offsets {gone} are neither in the log"):
            await _drain(log, RATINGS, served, archive)
    assert len(await events(log, "ratings", RUN)) == before
    assert await log.committed_positions(RATINGS_GROUP[shared]) == {OUTCOMES: 10}


async def test_a_host_at_work_goes_on_from_the_archive(log: LocalLog, tmp_path: Path) -> None:
    """Its partition is open when retention passes it."""
    await _start(log, RUN)
    await log.append(games(0, 10))
    archive = tmp_path / "a.duckdb"
    stop = asyncio.Event()
    async with RunDirectory(log) as runs:
        sink = FoldSink(log, RATINGS, runs, RUN, archive=archive, pace=OFTEN)
        process = sink.process
        expired = asyncio.Event()

        async def expire_first(records: Sequence[StoredRecord], read_up_to: Positions) -> Positions:
            done = await process(records, read_up_to)
            if records and not expired.is_set():
                expired.set()
                await log.append(games(10, 20))
                await _archive(log, archive)
                await _expire(log, OUTCOMES.topic, 5)
                stop.set()
            return done

        sink.process = expire_first  # type: ignore[method-assign]
        async with asyncio.timeout(120):
            await host_processors([sink], stop=stop, max_records=4)
    assert await log.committed_positions(RATINGS_GROUP[False]) == {OUTCOMES: 30}
    ratings = [event.event_id for event in await events(log, "ratings", RUN)]
    processor = rating_processor(RUN)
    async with with_archive(log, archive) as history:
        outcomes = await events(history, OUTCOMES.topic, RUN)
    assert len(ratings) == len(set(ratings))
    assert set(ratings) == {made.event_id for event in outcomes for made in processor.handle(event)}
