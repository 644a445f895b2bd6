"""A host of all runs: what one run may do to the others, and where a new run begins."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.builders import made
from tests.model_pool.outcomes import RUN
from tests.services.streams.hosted_games import (
    OTHER_RUN,
    drain,
    events,
    forget_snapshots,
    games,
    letters,
    settings,
    start,
)
from unstable_stream.errors import PartitionsChangedError, ServiceError
from unstable_stream.events import GameOutcome, RunStarted, Step, Trajectory, decode_event, encode_event
from unstable_stream.extensions import confined
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Record, TopicPartition
from unstable_stream.log.records import record_from_event
from unstable_stream.services.streams.fold_sink import FoldSink
from unstable_stream.services.streams.processor import ProcessorSpec
from unstable_stream.services.streams.processors import RATINGS, REWARDS, reward_processor
from unstable_stream.services.streams.run_configs import RunDirectory
from unstable_stream.services.streams.snapshots import SnapshotPace

OFTEN = SnapshotPace(events=5, times_its_size=0)
CODE = """
class Fails:
    def __call__(self, x, env_id=None):
        if x[0] == 0.0:
            raise ZeroDivisionError("somebody's mistake")
        return x

class NotMade:
    def __init__(self):
        raise KeyError("nobody knows")
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A module that a run brings along."""
    path = tmp_path / "rewards.py"
    path.write_text(CODE, encoding="utf-8")
    return path


async def drain_all(log: EventLog, *specs: ProcessorSpec) -> None:
    await drain(log, *specs, run_id=None, pace=OFTEN, max_records=7)


def _of(run_id: str, first: int, count: int) -> list[Record]:
    """Games of one run alone, in one environment; those of both runs lie in one partition."""
    made = games(first, count, run_id, "nobody")
    return [record for record in made if record.key in (run_id, f"{run_id}/Env-3")]


async def _steps(log: EventLog, run_id: str) -> dict[str, bytes]:
    return {event.event_id: encode_event(event) for event in await events(log, "steps", run_id)}


async def assert_folded(log: EventLog, run_id: str, final: Sequence[Mapping[str, Any]] = ()) -> None:
    """The steps of a run are those of one fold of its trajectories."""
    processor = reward_processor(run_id, final)
    expected = {
        step.event_id: encode_event(step)
        for event in await events(log, "trajectories", run_id)
        for step in processor.handle(event)
    }
    assert await _steps(log, run_id) == expected != {}


@pytest.mark.parametrize("restarts", [0, 2])
async def test_a_run_whose_own_code_fails_is_set_aside_from_there_on(
    log: LocalLog, code: Path, restarts: int
) -> None:
    await start(log, RUN, [f"{code}:Fails"])
    await start(log, OTHER_RUN)
    parts = 1 + restarts
    for part in range(parts):
        size = 60 // parts
        for run_id in (RUN, OTHER_RUN):
            await log.append(_of(run_id, part * size, size))
        await drain_all(log, REWARDS)
    await assert_folded(log, OTHER_RUN)
    trajectories = [e for e in await events(log, "trajectories", RUN) if isinstance(e, Trajectory)]
    failed = next(place for place, event in enumerate(trajectories) if event.rewards[0] == 0.0)
    assert 0 < failed < len(trajectories) - 2
    rejected = await letters(log)
    assert len(rejected) == len(trajectories) - failed
    assert all("ZeroDivisionError: somebody's mistake" in letter.reason for letter in rejected)
    folded = {e.trajectory_id for e in await events(log, "steps", RUN) if isinstance(e, Step)}
    assert folded == {event.event_id for event in trajectories[:failed]}


@pytest.mark.parametrize("other_code", [False, True])
async def test_a_run_set_aside_is_folded_again_once_its_code_is_mended(
    log: LocalLog, code: Path, tmp_path: Path, other_code: bool
) -> None:
    broken = tmp_path / "broken"
    source = f"from pathlib import Path\n{CODE}".replace("x[0] == 0.0", f"Path({str(broken)!r}).exists()")
    code.write_text(source, encoding="utf-8")
    await start(log, RUN, [f"{code}:Fails"])
    await start(log, OTHER_RUN)
    parts = [[record for run in (RUN, OTHER_RUN) for record in _of(run, 10 * part, 10)] for part in range(3)]
    for part, records in enumerate(parts):
        if part == 1:
            broken.touch()
        await log.append(records)
        await drain_all(log, REWARDS)
        if part == 1:
            broken.unlink()
            if other_code:
                code.write_text(f"{source}\n# mended\n", encoding="utf-8")
    rejected = await letters(log)
    second = [record for record in parts[1] if record.key.startswith(f"{RUN}/")]
    assert [letter.record_value for letter in rejected] == [record.value for record in second] != []
    folded = {e.trajectory_id for e in await events(log, "steps", RUN) if isinstance(e, Step)}
    assert all(decode_event(r.value).event_id in folded for r in parts[2] if r.key.startswith(f"{RUN}/"))


async def test_in_a_host_of_its_own_the_run_stops(log: LocalLog, code: Path) -> None:
    await start(log, RUN, [f"{code}:Fails"])
    await log.append(_of(RUN, 0, 60))
    with pytest.raises(ServiceError, match="ZeroDivisionError: somebody's mistake"):
        await drain(log, REWARDS, run_id=RUN, pace=OFTEN, max_records=7)
    assert await letters(log) == []


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_run_whose_code_cannot_be_made_or_is_not_allowed_is_set_aside(
    log: LocalLog, code: Path, tmp_path: Path, allowed: bool
) -> None:
    code.write_text(CODE + f"open({str(tmp_path / 'loaded')!r}, 'w').close()\n", encoding="utf-8")
    # As somebody may have written it to a log that is not theirs: nothing was loaded here yet.
    config = settings([f"{code}:NotMade"])
    await log.append([record_from_event(made(RunStarted, run_id=RUN, config=config))])
    await start(log, OTHER_RUN)
    await log.append([*_of(RUN, 0, 8), *_of(OTHER_RUN, 0, 8)])
    with confined(["*"] if allowed else []):
        await drain_all(log, REWARDS)
        await drain_all(log, REWARDS)
    rejected = await letters(log)
    assert len(rejected) == len(await events(log, "trajectories", RUN))
    said = "nobody knows" if allowed else "was not allowed"
    assert all(said in letter.reason for letter in rejected)
    await assert_folded(log, OTHER_RUN)
    assert (tmp_path / "loaded").exists() == allowed


# -- the start of a run ---------------------------------------------------------------------------


@pytest.mark.parametrize("forget", [False, True])
async def test_a_new_run_needs_nothing_of_the_runs_before(log: LocalLog, forget: bool) -> None:
    await start(log, OTHER_RUN)
    await log.append(_of(OTHER_RUN, 0, 40))
    await start(log, RUN)
    for topic in (Trajectory.TOPIC, GameOutcome.TOPIC):
        await log.delete_before(await log.end_offsets(topic))
    for first in (0, 10):
        await log.append(_of(RUN, first, 10))
        await drain(log, REWARDS, RATINGS, run_id=RUN, pace=OFTEN, max_records=7)
        if forget:
            for spec in (REWARDS, RATINGS):
                await forget_snapshots(log, spec, RUN)
    await assert_folded(log, RUN)
    committed = await log.committed_positions(f"rating-processor/{RUN}")
    assert committed == await log.end_offsets(GameOutcome.TOPIC)


async def test_without_snapshots_only_runs_that_lost_records_are_set_aside(log: LocalLog) -> None:
    await start(log, OTHER_RUN)
    await log.append(_of(OTHER_RUN, 0, 20))
    await start(log, RUN)
    await log.append([*_of(RUN, 0, 10), *_of(OTHER_RUN, 20, 10)])
    await drain_all(log, REWARDS)
    begun = len(await events(log, "steps", OTHER_RUN))
    await log.delete_before(
        {at: min(end, 5) for at, end in (await log.end_offsets(Trajectory.TOPIC)).items()}
    )
    await forget_snapshots(log, REWARDS, None)
    await log.append([*_of(RUN, 10, 10), *_of(OTHER_RUN, 30, 10)])
    await drain_all(log, REWARDS)
    await assert_folded(log, RUN)
    assert len(await events(log, "steps", OTHER_RUN)) == begun
    rejected = await letters(log)
    assert {letter.record_key for letter in rejected} == {f"{OTHER_RUN}/Env-3"}
    assert all("is a fold from 0, and no snapshot holds it" in letter.reason for letter in rejected)


async def _begun_with(log: LocalLog, run_id: str, partitions: int) -> RunStarted:
    """Return the start of a run when ``trajectories`` had so many partitions."""
    return made(
        RunStarted,
        event_id=f"{run_id} began",
        run_id=run_id,
        name=run_id,
        config=settings(),
        log_id=await log.log_id(),
        start_offsets={Trajectory.TOPIC: (0,) * partitions},
    )


async def test_a_run_whose_input_has_other_partitions_since_is_set_aside_and_the_others_go_on(
    log: LocalLog,
) -> None:
    there = (await log.topics())[Trajectory.TOPIC]
    for run_id, partitions in ((RUN, there + 2), (OTHER_RUN, there)):
        await log.append([record_from_event(await _begun_with(log, run_id, partitions))])
        await log.append(_of(run_id, 0, 10))
    await drain_all(log, REWARDS)
    await assert_folded(log, OTHER_RUN)
    assert await _steps(log, RUN) == {}
    reasons = {letter.reason for letter in await letters(log)}
    told = f"topic 'trajectories' had {there + 2} partitions when run {RUN} began, and has {there} now"
    assert reasons
    assert all(told in reason for reason in reasons)
    with pytest.raises(PartitionsChangedError, match="when run"):
        await drain(log, REWARDS, run_id=RUN, pace=OFTEN, max_records=7)


async def test_a_partition_that_only_the_group_knows_stops_the_host_and_is_named(log: LocalLog) -> None:
    there = (await log.topics())[Trajectory.TOPIC]
    async with RunDirectory(log) as runs:
        sink = FoldSink(log, REWARDS, runs, None)
        with pytest.raises(PartitionsChangedError, match=f"had {there} partitions .* has {there + 3} now"):
            await sink.follow({TopicPartition(Trajectory.TOPIC, place) for place in (0, there + 2)})
        await sink.close()
