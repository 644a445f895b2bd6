"""A processor recognises by content that its log has lost records it had processed, and begins again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.log.harness import topics_of_one_partition
from tests.log.lost_end import lose_end
from tests.reward_transformations.trajectories import RUN
from tests.streams.doomed_host import RATINGS, REWARDS, make_ratings, make_rewards
from tests.streams.hosted_games import (
    OTHER_RUN,
    events,
    from_scratch,
    games,
    read,
)
from unstable_stream.errors import RecordsLostError
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, TopicPartition
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.recording import start_run
from unstable_stream.streams.fold_sink import FoldSink, ProcessorSpec, group_of
from unstable_stream.streams.processors import host_processors
from unstable_stream.streams.run_configs import RunDirectory
from unstable_stream.streams.snapshots import MARK, SnapshotPace, scope_of

_MAKERS = {"reward-processor": make_rewards, "rating-processor": make_ratings}


@asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await log.create_topics(topics_of_one_partition())
        yield log


async def _drain(log: EventLog, spec: ProcessorSpec, pace: SnapshotPace) -> None:
    stop = asyncio.Event()
    stop.set()
    async with RunDirectory(log) as runs:
        await host_processors([FoldSink(log, spec, runs, RUN, pace=pace)], stop=stop, max_records=7)


@pytest.mark.parametrize("pace", [SnapshotPace(events=5, times_its_size=0), SnapshotPace(events=10**9)])
@pytest.mark.parametrize(("spec", "topic"), [(REWARDS, "trajectories"), (RATINGS, "game-outcomes")])
@pytest.mark.parametrize("instead", [0, 3, 30])
async def test_what_took_the_place_of_lost_records_is_processed_and_the_place_is_named(
    tmp_path: Path, instead: int, spec: ProcessorSpec, topic: str, pace: SnapshotPace
) -> None:
    path = tmp_path / "log.sqlite"
    async with _opened(path) as log:
        for run_id in (RUN, OTHER_RUN):
            config = {"model": "tiny-player", "train_envs": [{"env_id": "Env-0"}]}
            await start_run(log, parse_config(config), run_id)
        await log.append(games(0, 20))
        kept = await log.end_offsets(topic)
        await log.append(games(20, 10))
        await _drain(log, spec, pace)
        positions = await log.committed_positions(group_of(spec.name, RUN))
        at, reached = next((at, one) for at, one in sorted(positions.items()) if one > kept[at] > 0)
    lose_end(path, at, kept[at])
    async with _opened(path) as log:
        if instead:
            await log.append(games(100, instead))
        with capture_logs() as told:
            await _drain(log, spec, pace)
        assert [line["lost"] for line in told if "lost" in line] == [f"{at}@{reached - 1}"]
        output = {"reward-processor": "steps", "rating-processor": "ratings"}[spec.name]
        published = {event.event_id for event in await events(log, output, RUN)}
        assert (await from_scratch(log, _MAKERS[spec.name])).keys() <= published
        # The next start finds nothing.
        with capture_logs() as told:
            await _drain(log, spec, pace)
        assert not [line for line in told if "lost" in line]
        assert published == {event.event_id for event in await events(log, output, RUN)}


async def test_a_position_beyond_the_end_is_recognised_without_a_mark(tmp_path: Path) -> None:
    """States of an earlier version have no mark, nor has a scope whose states were forgotten."""
    path, pace = tmp_path / "log.sqlite", SnapshotPace(events=5, times_its_size=0)
    async with _opened(path) as log:
        config = {"model": "tiny-player", "train_envs": [{"env_id": "Env-0"}]}
        await start_run(log, parse_config(config), RUN)
        await log.append(games(0, 10))
        at = TopicPartition("game-outcomes", 0)
        kept = (await log.end_offsets(at.topic))[at]
        await log.append(games(10, 10))
        await _drain(log, RATINGS, pace)
        group = group_of(RATINGS.name, RUN)
        reached = (await log.committed_positions(group))[at]
        async with (await log.producer("test")).transaction() as transaction:
            await transaction.save(scope_of(group, at), {MARK: b""})
    lose_end(path, at, kept)
    async with _opened(path) as log:
        with capture_logs() as told:
            await _drain(log, RATINGS, pace)
        assert [line["lost"] for line in told if "lost" in line] == [f"{at}@{reached - 1}"]
        assert (await log.committed_positions(group))[at] == kept
        await log.append(games(20, 30))
        with capture_logs() as told:
            await _drain(log, RATINGS, pace)
        assert not [line for line in told if "lost" in line]
        published = {event.event_id for event in await events(log, "ratings", RUN)}
        assert (await from_scratch(log, make_ratings)).keys() <= published


async def test_a_host_at_work_that_is_told_of_the_loss_begins_again_and_names_the_place(
    tmp_path: Path,
) -> None:
    """The log is longer than its position again, and the last record before that is another."""
    at = TopicPartition("game-outcomes", 0)
    path = tmp_path / "log.sqlite"
    log = LocalLog.open(path, synchronous="NORMAL")
    await log.create_topics(topics_of_one_partition())
    config = {"model": "tiny-player", "train_envs": [{"env_id": "Env-0"}]}
    await start_run(log, parse_config(config), RUN)
    await log.append(games(0, 20))
    kept = (await log.end_offsets(at.topic))[at]
    await log.append(games(20, 10))
    async with RunDirectory(log) as runs:
        sink = FoldSink(log, RATINGS, runs, RUN)
        assert await sink.follow({at}) == {at: 0}
        records = await read(log, at.topic)
        await sink.process(records[:25], {})
        lose_end(path, at, kept)
        await log.append(games(100, 30))
        # The host had processed 25 games, and its consumer had returned all 30.
        sink.deleted(RecordsLostError("gone", {(at.topic, at.partition): records[-1].offset}))
        with capture_logs() as told:
            assert await sink.follow({at}) == {at: 0}
        assert [line["lost"] for line in told if "lost" in line] == [f"{at}@{records[-1].offset}"]
        assert await sink.follow({at}) == {}
        await sink.process(await read(log, at.topic), {})
        await sink.close()
    published = {event.event_id for event in await events(log, "ratings", RUN)}
    assert (await from_scratch(log, make_ratings)).keys() <= published
    await log.close()
    await log.close()
