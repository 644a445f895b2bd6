"""The generic processor host on a real local log: effectively once, restart, rejection, sharing, kill -9."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.forks import assert_killed
from tests.log.harness import share_out, topics_of_one_partition
from tests.processes import until
from tests.reward_transformations.trajectories import RUN, make_trajectory
from tests.services.streams.doomed_host import RATINGS, REWARDS, die_at, host_both, make_ratings, make_rewards
from tests.services.streams.hosted_games import (
    OTHER_RUN,
    Noting,
    assert_exactly_once,
    drain,
    events,
    games,
    garbage,
    letters,
    read,
    start,
)
from tests.services.streams.tapped_log import tapped
from unstable_stream.errors import FencedError, ServiceError
from unstable_stream.events import Event, GameOutcome, Trajectory, decode_event
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import TopicPartition
from unstable_stream.log.records import record_from_event
from unstable_stream.services.streams.fold_sink import FoldSink
from unstable_stream.services.streams.processor import ProcessorSpec, group_of
from unstable_stream.services.streams.processors import host_processors
from unstable_stream.services.streams.run_configs import RunDirectory

pytestmark = pytest.mark.longer

MAKERS = (make_rewards, make_ratings)
GARBAGE = garbage()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


@pytest.fixture
async def log(log: LocalLog) -> LocalLog:
    for run_id in (RUN, OTHER_RUN):
        await start(log, run_id)
    return log


async def test_a_drain_waits_for_the_partitions_of_a_dead_host(tmp_path: Path) -> None:
    """The log takes them from it only after a while; until then, they are assigned to nobody who works."""
    log = LocalLog.open(tmp_path / "dead.sqlite", max_poll_interval_s=1.0)
    await log.create_topics(topics_of_one_partition())
    await start(log, RUN)
    await start(log, OTHER_RUN)
    await log.append(games(0, 30))
    (topic,) = REWARDS.inputs
    leaving, dead = [await log.consumer([topic], group_of(REWARDS.name, RUN)) for _ in range(2)]
    await share_out([leaving, dead], [topic], (await log.topics())[topic])
    await leaving.close()  # the drain begins with its share, and the dead one's comes later
    await drain(log, REWARDS, RATINGS)
    await assert_exactly_once(log, MAKERS)
    await log.close()


async def test_a_restart_goes_on_with_the_state_of_what_was_committed(log: LocalLog) -> None:
    noting = Noting(REWARDS)
    for first in (0, 10, 20):
        await log.append(games(first, 10))
        await drain(log, noting.spec, RATINGS)
    await assert_exactly_once(log, MAKERS)
    ours = await events(log, "trajectories", RUN)
    assert len(noting.given) == len(ours) < len(await events(log, "trajectories"))
    assert {event.run_id for event in noting.given} == {RUN}
    assert len(await events(log, "steps")) == 2 * len(ours) > 0


async def test_records_that_are_no_events_are_set_aside_whole(log: LocalLog) -> None:
    impossible = make_trajectory(100, env_id="Env-1", trained_seats=(7,))
    await log.append([*games(0, 4), GARBAGE, record_from_event(impossible), *games(4, 4)])
    await drain(log, REWARDS)
    garbage, refused = await letters(log)
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
    await drain(log, REWARDS)
    assert len(await letters(log)) == 2


@dataclass
class _Fails:
    """Makes nothing, and fails on one game, if any."""

    game: int | None

    def handle(self, event: Event) -> Sequence[Event]:
        if isinstance(event, GameOutcome) and event.game_index == self.game:
            raise ZeroDivisionError("a bug")
        return ()


FAILS = ProcessorSpec("fails", (GameOutcome.TOPIC,), lambda run_id, config: _Fails(5))


@pytest.mark.parametrize("run_id", [RUN, None])
async def test_a_bug_in_a_fold_stops_all_before_anything_of_its_batch_is_committed(
    log: LocalLog, run_id: str | None
) -> None:
    await log.append(games(0, 8))
    async with RunDirectory(log) as runs:
        sinks = [FoldSink(log, spec, runs, run_id) for spec in (REWARDS, FAILS)]
        with pytest.raises(ServiceError, match=r"fails.*: folding game-outcomes\[0\]@5 .*Error: a bug"):
            await host_processors(sinks, stop=asyncio.Event())
    assert await log.committed_positions(sinks[1].group) == {}
    assert await letters(log) == []


@dataclass
class _Member:
    """A running host."""

    sink: FoldSink
    stop: asyncio.Event
    task: "asyncio.Task[None]"
    held: set[TopicPartition]
    """Partitions it has committed batches of."""

    async def end(self) -> None:
        self.stop.set()
        await self.task


def _start(log: LocalLog, spec: ProcessorSpec) -> _Member:
    stop, held = asyncio.Event(), set[TopicPartition]()

    def note(call: str, about: frozenset[TopicPartition]) -> None:
        if call == "after commit":
            held.update(about)

    through = tapped(log, note)
    sink = FoldSink(through, spec, RunDirectory(through), RUN, reopen_after_s=0.1)
    hosting = host_processors([sink], stop=stop, drain=False)
    return _Member(sink, stop, asyncio.ensure_future(hosting), held)


async def _all_partitions(log: LocalLog) -> set[TopicPartition]:
    return {TopicPartition(record.topic, record.partition) for record in await read(log, "trajectories")}


async def test_two_hosts_share_the_partitions_and_hand_them_over(path: Path, log: LocalLog) -> None:
    await log.append(games(0, 8))
    whole = await _all_partitions(log)
    first = _start(log, REWARDS)
    await until(lambda: first.held == whole)
    async with LocalLog.open(path) as other_log:
        second = _start(other_log, REWARDS)
        shared, index = False, 8
        async with asyncio.timeout(120):
            while not shared:  # games come in while the partitions move
                first.held.clear()
                second.held.clear()
                await log.append(games(index, 4))
                index += 4
                await until(lambda: first.held | second.held == whole)
                shared = bool(second.held) and not first.held & second.held
        assert first.held
        await first.end()
        second.held.clear()
        await log.append(games(index, 4))
        await until(lambda: second.held == whole)
        await second.end()
    await drain(log, REWARDS, RATINGS)
    await assert_exactly_once(log, MAKERS)


async def test_a_host_that_was_fenced_on_one_partition_goes_on_with_all(log: LocalLog) -> None:
    await log.append(games(0, 8))
    whole = await _all_partitions(log)
    host = _start(log, REWARDS)
    await until(lambda: host.held == whole)
    taken = min(whole)
    await log.producer(host.sink.producer_id(taken))
    await log.append(games(8, 8))
    ends = {at: end for at, end in (await log.end_offsets("trajectories")).items() if end}
    await until(lambda: host.sink.positions().items() >= ends.items())
    await host.end()
    await drain(log, REWARDS, RATINGS)
    await assert_exactly_once(log, MAKERS)


async def test_a_host_whose_partition_is_taken_over_and_over_stops(log: LocalLog) -> None:
    await log.append(games(0, 8))
    host = _start(log, RATINGS)
    at = TopicPartition(GameOutcome.TOPIC, 0)
    await until(lambda: host.held == {at})
    index = 8
    async with asyncio.timeout(120):
        while not host.task.done():
            await log.producer(host.sink.producer_id(at))
            await log.append(games(index, 1))
            index += 1
            await asyncio.wait([host.task], timeout=0.05)
    with pytest.raises(FencedError, match=r"^rating-processor/run-a: game-outcomes\[0\] is assigned"):
        await host.task
    await drain(log, REWARDS, RATINGS)
    await assert_exactly_once(log, MAKERS)


async def test_without_a_run_it_serves_all(log: LocalLog) -> None:
    await log.append(games(0, 4))
    inputs = (Trajectory.TOPIC, GameOutcome.TOPIC)
    noting = Noting(ProcessorSpec("counts", inputs, lambda run_id, config: _Fails(None)))
    await drain(log, noting.spec, run_id=None)
    given = noting.given
    assert {event.run_id for event in given} == {RUN, OTHER_RUN}
    ends: dict[TopicPartition, int] = {}
    for topic in inputs:
        assert sum(topic == event.TOPIC for event in given) == len(await read(log, topic))
        ends |= {at: end for at, end in (await log.end_offsets(topic)).items() if end}
    assert await log.committed_positions("counts") == ends


async def test_each_partition_commits_results_and_position_in_one_transaction(log: LocalLog) -> None:
    await log.append(games(0, 4))
    calls: dict[TopicPartition, list[str]] = defaultdict(list)

    def note(call: str, about: frozenset[TopicPartition]) -> None:
        for at in about if call != "after poll" else ():
            calls[at].append(call)

    await drain(tapped(log, note), REWARDS)
    stored = await read(log, "trajectories")
    ours = {TopicPartition(r.topic, r.partition) for r in stored if r.key.startswith(f"{RUN}/")}
    others = {TopicPartition(r.topic, r.partition) for r in stored} - ours
    assert len(ours) > 1
    assert others
    # What was folded is saved when the partition is closed.
    processed = ("begin", "append steps", "commit_positions", "commit")
    made = (*processed, "begin", "save", "commit")
    assert calls == {
        at: [
            f"{when} {call}"
            for call in made
            if at in ours or "append" not in call
            for when in ("before", "after")
        ]
        for at in ours | others
    }


KILLS = (
    ("after poll", 3),
    ("before begin", 3),
    ("after begin", 3),
    ("after append steps", 3),
    ("after append ratings", 2),
    ("after append dead-letters", 1),
    ("before commit_positions", 3),
    ("after commit_positions", 3),
    ("before save", 2),
    ("after save", 2),
    ("before commit", 3),
    ("after commit", 3),
)


@pytest.mark.parametrize(("call", "occurrence"), KILLS)
async def test_kill_between_commit_steps(path: Path, log: LocalLog, call: str, occurrence: int) -> None:
    await log.append([*games(0, 12), GARBAGE, *games(12, 12)])
    await asyncio.to_thread(assert_killed, die_at, path, call, occurrence)
    await host_both(path)
    await assert_exactly_once(log, MAKERS)
    assert [letter.record_value for letter in await letters(log)] == [GARBAGE.value]
