"""The generic processor host on a real local log: effectively once, restart, rejection, sharing, kill -9."""

import asyncio
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.reward_transformations.trajectories import RUN, make_trajectory
from tests.streams.doomed_host import host_both, make_ratings, make_rewards
from tests.streams.hosted_games import assert_exactly_once, events, games, garbage, read
from unstable_stream.errors import FencedError, ServiceError
from unstable_stream.events import (
    Event,
    GameOutcome,
    Rating,
    RecordRejected,
    Step,
    Trajectory,
    decode_event,
)
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import Record, TopicPartition
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.streams.host import run_processor
from unstable_stream.streams.partition import HostCounters, Hosting, Processor
from unstable_stream.streams.processors import host_processors

STEPS = (
    "polled",
    "folded",
    "begun",
    "outputs-appended",
    "dead-letters-appended",
    "positions-added",
    "committed",
)
MAKERS = (make_rewards, make_ratings)
GARBAGE = garbage()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


@pytest.fixture
async def log(path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(path) as opened:
        await opened.create_topics(list(load_topics().values()))
        yield opened


async def _drain(
    log: LocalLog,
    make: Callable[[], Processor] = make_rewards,
    *,
    run_id: str | None = RUN,
    on_step: Callable[[str, TopicPartition], None] = lambda step, at: None,
) -> HostCounters:
    stop = asyncio.Event()
    stop.set()
    hosting = Hosting(log, make, run_id=run_id, on_step=on_step)
    await run_processor(hosting, stop=stop)
    return hosting.counters


async def test_it_publishes_what_the_fold_gives_and_commits_what_it_read(log: LocalLog) -> None:
    await log.append(games(0, 30))
    counters = await _drain(log)
    await _drain(log, make_ratings)
    await assert_exactly_once(log, MAKERS)
    trajectories = await events(log, "trajectories")
    ours = sum(event.run_id == RUN for event in trajectories)
    steps = await events(log, "steps")
    assert counters == HostCounters(
        processed=ours, produced=len(steps), rejected=0, skipped=len(trajectories) - ours, lag=0
    )
    assert len(steps) == 2 * ours > 0
    assert {type(event) for event in steps} == {Step}
    assert {event.run_id for event in steps} == {RUN}
    assert {type(event) for event in await events(log, "ratings")} == {Rating}


async def test_a_restart_goes_on_with_the_state_of_what_was_committed(log: LocalLog) -> None:
    for first in (0, 10, 20):
        await log.append(games(first, 10))
        await _drain(log)
        await _drain(log, make_ratings)
    await assert_exactly_once(log, MAKERS)


async def test_games_delivered_again_change_nothing(log: LocalLog) -> None:
    await log.append(games(0, 8))
    await _drain(log)
    before = await events(log, "steps")
    await log.append(games(0, 8))
    counters = await _drain(log)
    assert counters.processed > 0
    assert counters.produced == 0
    assert await events(log, "steps") == before


async def test_records_that_are_no_events_are_set_aside_whole(log: LocalLog) -> None:
    impossible = make_trajectory(100, env_id="Env-1", trained_seats=(7,))
    await log.append([*games(0, 4), GARBAGE, record_from_event(impossible), *games(4, 4)])
    counters = await _drain(log)
    assert counters.rejected == 2
    garbage, refused = await events(log, "dead-letters")
    assert isinstance(garbage, RecordRejected)
    assert isinstance(refused, RecordRejected)
    assert garbage.record_value == GARBAGE.value
    assert (garbage.consumer, garbage.topic, garbage.record_key) == (
        f"reward-processor/{RUN}",
        "trajectories",
        f"{RUN}/Env-1",
    )
    assert garbage.occurred_at_ms == 17
    stored = await read(log, "trajectories")
    assert [(r.partition, r.offset) for r in stored if r.value == GARBAGE.value] == [
        (garbage.partition, garbage.offset)
    ]
    assert garbage.reason.startswith("EventDecodeError: trajectories[")
    assert "trained_seats is [7]" in refused.reason
    assert refused.record_headers["ce_id"] == impossible.event_id.encode()
    # The games around them were folded as if they were not there, also after a restart.
    steps = {event.event_id for event in await events(log, "steps")}
    assert len(steps) == 2 * sum(
        isinstance(e, Trajectory) and e.run_id == RUN and e.game_index < 100
        for r in stored
        if r.value != GARBAGE.value
        for e in [decode_event(r.value)]
    )
    assert (await _drain(log)).rejected == 0


async def test_a_bad_record_too_large_for_its_dead_letter_is_cut(log: LocalLog) -> None:
    await log.append([Record(topic="trajectories", key=f"{RUN}/E", value=b"x" * (13 * 1024 * 1024))])
    await _drain(log)
    (rejected,) = await events(log, "dead-letters")
    assert isinstance(rejected, RecordRejected)
    assert rejected.record_value == b"x" * (8 * 1024 * 1024)
    assert "value cut from 13631488 to 8388608 bytes; whole at trajectories[" in rejected.reason


class _Fails:
    """Fails on one game."""

    name = "fails"
    inputs = (GameOutcome.TOPIC,)

    def handle(self, event: Event) -> Sequence[Event]:
        if isinstance(event, GameOutcome) and event.game_index == 5:
            raise ZeroDivisionError("a bug")
        return ()


async def test_a_bug_in_the_fold_stops_the_host_before_anything_is_committed(log: LocalLog) -> None:
    await log.append(games(0, 8))
    with pytest.raises(ServiceError, match=r"fails/run-a: folding game-outcomes\[0\]@5 .*ZeroDivisionError"):
        await _drain(log, _Fails)
    assert await log.committed_positions("fails/run-a") == {}
    assert await events(log, "dead-letters") == []


async def test_one_that_fails_ends_the_others(log: LocalLog) -> None:
    await log.append(games(0, 8))
    hosted = [Hosting(log, make, run_id=RUN) for make in (make_rewards, _Fails)]
    with pytest.raises(ServiceError, match="a bug"):
        await host_processors(hosted, stop=asyncio.Event(), drain=True)


async def _until(condition: Callable[[], bool], deadline_s: float = 30.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_running_host_picks_up_what_arrives_and_measures_its_lag(log: LocalLog) -> None:
    stop, hosting = asyncio.Event(), Hosting(log, make_ratings, run_id=RUN)
    counters = hosting.counters
    host = asyncio.ensure_future(run_processor(hosting, stop=stop, max_records=3))
    for first in (0, 5):
        await log.append(games(first, 5))
        await _until(lambda reached=first + 5: counters.processed == reached)  # type: ignore[misc]
    stop.set()
    await host
    assert counters.lag == 0
    assert counters.produced == len(await events(log, "ratings")) == 40


@dataclass
class _Member:
    """A running host."""

    hosting: Hosting
    stop: asyncio.Event
    task: "asyncio.Task[None]"
    held: set[TopicPartition]
    """Partitions it has processed records of."""

    async def end(self) -> None:
        self.stop.set()
        await self.task


def _start(log: LocalLog, make: Callable[[], Processor]) -> _Member:
    stop, held = asyncio.Event(), set[TopicPartition]()
    hosting = Hosting(log, make, run_id=RUN, on_step=lambda step, at: held.add(at), settle_s=0.1)
    return _Member(hosting, stop, asyncio.ensure_future(run_processor(hosting, stop=stop, drain=False)), held)


async def _all_partitions(log: LocalLog) -> set[TopicPartition]:
    return {TopicPartition(record.topic, record.partition) for record in await read(log, "trajectories")}


async def test_two_hosts_share_the_partitions_and_hand_them_over(path: Path, log: LocalLog) -> None:
    await log.append(games(0, 8))
    whole = await _all_partitions(log)
    first = _start(log, make_rewards)
    await _until(lambda: first.held == whole)
    async with LocalLog.open(path) as other_log:
        second = _start(other_log, make_rewards)
        shared, index = False, 8
        async with asyncio.timeout(30):
            while not shared:  # games come in while the partitions move
                first.held.clear()
                second.held.clear()
                await log.append(games(index, 4))
                index += 4
                await _until(lambda: first.held | second.held == whole)
                shared = bool(second.held) and not first.held & second.held
        assert first.held
        await first.end()
        second.held.clear()
        await log.append(games(index, 4))
        await _until(lambda: second.held == whole)
        await second.end()
    await _drain(log)
    await _drain(log, make_ratings)
    await assert_exactly_once(log, MAKERS)


async def test_a_host_that_was_fenced_on_one_partition_goes_on_with_all(log: LocalLog) -> None:
    await log.append(games(0, 8))
    whole = await _all_partitions(log)
    host = _start(log, make_rewards)
    await _until(lambda: host.held == whole and host.hosting.counters.lag == 0)
    taken = min(whole)
    await log.producer(host.hosting.producer_id(taken))
    await log.append(games(8, 8))
    expected = sum(record.key.startswith(f"{RUN}/") for record in games(0, 16))
    await _until(lambda: host.hosting.counters.processed == expected)
    await host.end()
    await _drain(log)
    await _drain(log, make_ratings)
    await assert_exactly_once(log, MAKERS)


async def test_a_host_whose_partition_is_taken_over_and_over_stops(log: LocalLog) -> None:
    await log.append(games(0, 8))
    host = _start(log, make_ratings)
    at = TopicPartition(GameOutcome.TOPIC, 0)
    await _until(lambda: host.held == {at})
    index = 8
    async with asyncio.timeout(30):
        while not host.task.done():
            await log.producer(host.hosting.producer_id(at))
            await log.append(games(index, 1))
            index += 1
            await asyncio.wait([host.task], timeout=0.05)
    with pytest.raises(FencedError, match=r"^rating-processor/run-a: game-outcomes\[0\] is assigned"):
        await host.task
    await _drain(log)
    await _drain(log, make_ratings)
    await assert_exactly_once(log, MAKERS)


async def test_state_that_cannot_be_restored_is_an_error(log: LocalLog) -> None:
    await log.append(games(0, 8))
    await _drain(log, make_ratings)
    await log.delete_before({TopicPartition("game-outcomes", 0): 3})
    with pytest.raises(ServiceError, match=r"game-outcomes\[0\] holds offsets 3 to 8, but the state up to 8"):
        await _drain(log, make_ratings)


async def test_a_new_processor_begins_at_what_is_retained(log: LocalLog) -> None:
    await log.append(games(0, 8))
    await log.delete_before({TopicPartition("game-outcomes", 0): 3})
    counters = await _drain(log, make_ratings)
    assert counters.processed == 5


class _Counts:
    """Sees all runs."""

    name = "counts"
    inputs = (Trajectory.TOPIC, GameOutcome.TOPIC)
    runs: set[str] = set()  # noqa: RUF012 - shared on purpose: one instance per partition

    def handle(self, event: Event) -> Sequence[Event]:
        self.runs.add(event.run_id)
        return ()


async def test_without_a_run_it_serves_all(log: LocalLog) -> None:
    await log.append(games(0, 4))
    counters = await _drain(log, _Counts, run_id=None)
    assert _Counts.runs == {RUN, "run-b"}
    assert counters.skipped == 0
    ends: dict[TopicPartition, int] = {}
    for topic in _Counts.inputs:
        ends |= {at: end for at, end in (await log.end_offsets(topic)).items() if end}
    assert await log.committed_positions("counts") == ends


async def test_the_commit_steps_come_in_order(log: LocalLog) -> None:
    await log.append(games(0, 4))
    seen: dict[TopicPartition, list[str]] = defaultdict(list)
    await _drain(log, on_step=lambda step, at: seen[at].append(step))
    written = {TopicPartition(r.topic, r.partition) for r in await read(log, "trajectories")}
    assert len(written) > 1
    assert seen == {at: list(STEPS) for at in written}


@pytest.mark.parametrize("step", STEPS)
async def test_kill_between_commit_steps(path: Path, log: LocalLog, step: str) -> None:
    await log.append([*games(0, 12), GARBAGE, *games(12, 12)])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.streams.doomed_host", str(path), step, "3"
    )
    assert await process.wait() == -signal.SIGKILL
    await host_both(path)
    await assert_exactly_once(log, MAKERS)
    assert [e.record_value for e in await events(log, "dead-letters") if isinstance(e, RecordRejected)] == [
        GARBAGE.value
    ]
