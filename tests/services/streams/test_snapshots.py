"""Snapshots of fold state: what a restart folds again, and that they may be lost, damaged or outdated."""

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.reward_transformations.trajectories import RUN
from tests.services.streams.doomed_host import RATINGS, REWARDS, make_ratings, make_rewards
from tests.services.streams.hosted_games import (
    OTHER_RUN,
    Noting,
    assert_exactly_once,
    drain,
    events,
    from_scratch,
    games,
    start,
)
from tests.services.streams.tapped_log import at_call, tapped
from unstable_stream.events import GameOutcome, Step, Trajectory, encode_event
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, TopicPartition
from unstable_stream.reward_transformations import (
    ComposeFinalRewardTransforms,
    FinalRewardTransform,
    RewardProcessor,
)
from unstable_stream.runs.config import parse_config
from unstable_stream.services.streams.processor import ProcessorSpec
from unstable_stream.services.streams.processors import rating_processor
from unstable_stream.services.streams.snapshots import POSITION, SnapshotPace, run_name, scope_of, unpack

OUTCOMES = TopicPartition(GameOutcome.TOPIC, 0)
SCOPE = scope_of(f"rating-processor/{RUN}", OUTCOMES)
OFTEN = SnapshotPace(events=10, times_its_size=0)
NEVER = SnapshotPace(events=10**9)


@pytest.fixture
async def log(log: LocalLog) -> LocalLog:
    for run_id in (RUN, OTHER_RUN):
        await start(log, run_id)
    return log


async def _drain(
    log: EventLog, spec: ProcessorSpec, *, run_id: str | None = RUN, pace: SnapshotPace = NEVER
) -> None:
    await drain(log, spec, run_id=run_id, pace=pace, max_records=7)


class _KilledError(Exception):
    """Ends a host in the middle of its work."""


def _kill() -> None:
    raise _KilledError


async def _drain_until(log: EventLog, fatal: str, occurrence: int, spec: ProcessorSpec) -> None:
    """Drain until a call is made for the n-th time; then fail before it, as a host that dies."""
    with pytest.raises(_KilledError):
        await _drain(tapped(log, at_call(fatal, occurrence, _kill)), spec, pace=OFTEN)


@pytest.mark.parametrize(("batches", "saved"), [(10, 70), (9, 56)])
async def test_a_restart_folds_only_what_came_after_the_snapshot(
    log: LocalLog, batches: int, saved: int
) -> None:
    """Of every second batch of seven there is a snapshot."""
    await log.append(games(0, 100))
    await _drain_until(log, "before begin", batches + 1, RATINGS)
    assert await log.committed_positions(f"rating-processor/{RUN}") == {OUTCOMES: 7 * batches}
    counter = Noting(RATINGS)
    await _drain(log, counter.spec)
    assert len(counter.made[RUN]) == 1
    assert len(counter.given) == 100 - saved
    await assert_exactly_once(log, [make_ratings])

    # What was closed in order is saved whole.
    await log.append(games(100, 3))
    counter = Noting(RATINGS)
    await _drain(log, counter.spec)
    assert len(counter.given) == 3
    await assert_exactly_once(log, [make_ratings])


async def _save(log: EventLog, states: dict[str, bytes]) -> None:
    async with (await log.producer(SCOPE)).transaction() as transaction:
        await transaction.save(SCOPE, states)


@pytest.mark.parametrize(
    "damage", ["no snapshot", "no position", "position", "run", "not JSON", "another fold"]
)
async def test_without_a_usable_snapshot_all_is_folded_again(log: LocalLog, damage: str) -> None:
    await log.append(games(0, 30))
    await _drain(log, RATINGS)
    saved = dict(await log.saved(SCOPE))
    name = run_name(RUN)
    assert saved.keys() == {POSITION, name}
    tampered: dict[str, dict[str, bytes]] = {
        "no snapshot": dict.fromkeys(saved, b""),
        "no position": {POSITION: b""},
        "position": {POSITION: saved[POSITION][:-2]},
        "run": {name: saved[name][:50] + b"\0" + saved[name][51:]},
        "not JSON": {name: b"\0"},
        "another fold": {},
    }
    await _save(log, tampered[damage])
    await log.append(games(30, 5))
    counter = Noting(RATINGS)
    used = replace(counter.spec, version=2 if damage == "another fold" else 1)
    await _drain(log, used)
    assert len(counter.given) == 35
    await assert_exactly_once(log, [make_ratings])
    # What was folded again is saved again, so the next start is fast.
    config = parse_config({"model": "tiny-player", "train_envs": [{"env_id": "Env-0"}]})
    repaired = unpack((await log.saved(SCOPE))[name], used.digest(config))
    assert (repaired.position, repaired.state["seen"]) == (35, {"train": [[0, 35]]})


async def test_with_a_snapshot_the_history_need_not_be_kept(log: LocalLog) -> None:
    await log.append(games(0, 20))
    await log.append(games(20, 12))
    expected = await from_scratch(log, make_rewards) | await from_scratch(log, make_ratings)
    stored = games(20, 12)
    await _drain(log, REWARDS)
    await _drain(log, RATINGS)
    for topic in (Trajectory.TOPIC, GameOutcome.TOPIC):
        await log.delete_before(await log.end_offsets(topic))
    await log.append(stored)  # delivered again
    await log.append(games(32, 5))
    await _drain(log, REWARDS)
    await _drain(log, RATINGS)
    published = [*await events(log, "steps", RUN), *await events(log, "ratings", RUN)]
    bodies = {event.event_id: encode_event(event) for event in published}
    assert len(bodies) == len(published)
    assert bodies.items() >= expected.items()
    assert max(event.game_index for event in published if isinstance(event, Step)) == 36


async def test_a_host_of_all_runs_holds_only_those_at_work(log: LocalLog) -> None:
    def some(run_id: str, first: int, count: int) -> None:
        made.extend(r for r in games(first, count, run_id, "run-x") if r.topic == GameOutcome.TOPIC)

    made: list[Any] = []
    some(RUN, 0, 10)
    some(OTHER_RUN, 0, 60)
    some(RUN, 10, 2)
    await log.append(made)
    counter = Noting(RATINGS, rating_processor)
    await _drain(log, counter.spec, run_id=None, pace=OFTEN)
    assert [len(given) for given in counter.made[RUN]] == [10, 2]  # let go meanwhile, and loaded again
    assert [len(given) for given in counter.made[OTHER_RUN]] == [60]
    for run_id in (RUN, OTHER_RUN):
        ratings = [encode_event(event) for event in await events(log, "ratings", run_id)]
        whole = rating_processor(run_id)
        assert sorted(ratings) == sorted(
            encode_event(rating)
            for event in await events(log, "game-outcomes", run_id)
            for rating in whole.handle(event)
        )


class _Untold(FinalRewardTransform):
    """Somebody's own, which learns and does not tell: its past cannot be saved."""

    def __init__(self) -> None:
        self.games = 0

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        self.games += 1
        return {seat: reward / self.games for seat, reward in x.items()}


async def test_a_processor_that_cannot_be_saved_is_folded_from_its_beginning(log: LocalLog) -> None:
    def make() -> RewardProcessor:
        return RewardProcessor(RUN, lambda: ComposeFinalRewardTransforms([_Untold()]))

    await log.append(games(0, 12))
    counter = Noting(REWARDS, lambda run_id: make())
    with capture_logs() as said:
        await _drain(log, counter.spec, pace=OFTEN)
    ours = len([e for e in await events(log, "trajectories") if e.run_id == RUN])
    assert len(counter.given) == ours
    reasons = [str(line["reason"]) for line in said if line["log_level"] == "warning"]
    assert any("_Untold changes its attributes and has no state()" in reason for reason in reasons)
    await log.append(games(12, 12))
    counter = Noting(REWARDS, lambda run_id: make())
    await _drain(log, counter.spec, pace=OFTEN)
    assert len(counter.given) == len([e for e in await events(log, "trajectories") if e.run_id == RUN]) > ours
    await assert_exactly_once(log, [make])
