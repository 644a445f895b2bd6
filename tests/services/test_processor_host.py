"""The processor host on a real local log: effectively once, restart, rejection, fencing, kill -9."""

import asyncio
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.model_pool.outcomes import make_outcome
from tests.reward_transformations.trajectories import RUN, make_trajectory
from tests.services.doomed_host import host_both, make_ratings, make_rewards
from unstable_stream.config import parse_config
from unstable_stream.errors import ConfigError, FencedError, ServiceError
from unstable_stream.eventlog.local import LocalLog
from unstable_stream.eventlog.port import Record, StoredRecord, TopicPartition
from unstable_stream.eventlog.records import event_from_record, record_from_event
from unstable_stream.eventlog.topics import load_topics
from unstable_stream.events import (
    Event,
    GameOutcome,
    Rating,
    RecordRejected,
    Step,
    Trajectory,
    decode_event,
    encode_event,
)
from unstable_stream.services.data_dir import DataDir, open_log
from unstable_stream.services.processor_host import (
    HostCounters,
    Processor,
    group_of,
    run_processor,
)
from unstable_stream.services.processors import host_processors, run_processors

STEPS = (
    "polled",
    "folded",
    "begun",
    "outputs-appended",
    "dead-letters-appended",
    "positions-added",
    "committed",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


@pytest.fixture
async def log(path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(path) as opened:
        await opened.create_topics(list(load_topics().values()))
        yield opened


def _games(first: int, count: int) -> list[Record]:
    """Mirror games and games against a fixed opponent, over four environments, another run in between."""
    events: list[Event] = []
    for index in range(first, first + count):
        env_id = f"Env-{index % 4}"
        rewards = {0: 1.0 - index % 3, 1: index % 3 - 1.0}
        trained = (0, 1) if index % 2 else (index % 4 // 2,)
        events += [
            make_trajectory(index, seat, env_id=env_id, rewards=rewards, trained_seats=trained)
            for seat in trained
        ]
        opponent = "ckpt-000002" if index % 2 else "fixed"
        events.append(
            make_outcome(index, {0: ("ckpt-000003", rewards[0]), 1: (opponent, rewards[1])}, env_id=env_id)
        )
        events.append(make_trajectory(index, run_id="run-b", env_id=env_id))
    return [record_from_event(event) for event in events]


_GARBAGE = Record(topic="trajectories", key=f"{RUN}/Env-1", value=b'{"type": "trajectory"', timestamp_ms=17)


async def _read(log: LocalLog, topic: str) -> list[StoredRecord]:
    reader = await log.consumer([topic])
    try:
        records: list[StoredRecord] = []
        while batch := await reader.poll(timeout_s=0.0):
            records += batch
        return records
    finally:
        await reader.close()


async def _events(log: LocalLog, topic: str) -> list[Event]:
    return [event_from_record(record) for record in await _read(log, topic)]


async def _from_scratch(log: LocalLog, make: Callable[[], Processor]) -> dict[str, bytes]:
    """Every output of folding each input partition on its own, by event id."""
    processors: dict[TopicPartition, Processor] = defaultdict(make)
    expected: dict[str, bytes] = {}
    for topic in make().inputs:
        for record in await _read(log, topic):
            if record.value == _GARBAGE.value:
                continue
            processor = processors[TopicPartition(topic, record.partition)]
            for event in processor.handle(decode_event(record.value)):
                assert event.event_id not in expected
                expected[event.event_id] = encode_event(event)
    return expected


async def _drain(
    log: LocalLog,
    make: Callable[[], Processor] = make_rewards,
    *,
    run_id: str | None = RUN,
    on_step: Callable[[str], None] = lambda step: None,
) -> HostCounters:
    stop, counters = asyncio.Event(), HostCounters()
    stop.set()
    await run_processor(log, make, run_id=run_id, stop=stop, counters=counters, on_step=on_step)
    return counters


async def _assert_exactly_once(log: LocalLog) -> None:
    for topic, make in (("steps", make_rewards), ("ratings", make_ratings)):
        published = [(event.event_id, encode_event(event)) for event in await _events(log, topic)]
        assert len(published) == len({identity for identity, _ in published})
        assert dict(published) == await _from_scratch(log, make)
        for input_topic in make().inputs:
            ends = {at: end for at, end in (await log.end_offsets(input_topic)).items() if end > 0}
            assert await log.committed_positions(group_of(make().name, RUN)) == ends


async def test_it_publishes_what_the_fold_gives_and_commits_what_it_read(log: LocalLog) -> None:
    await log.append(_games(0, 30))
    counters = await _drain(log)
    await _drain(log, make_ratings)
    await _assert_exactly_once(log)
    trajectories = await _events(log, "trajectories")
    ours = sum(event.run_id == RUN for event in trajectories)
    steps = await _events(log, "steps")
    assert counters == HostCounters(
        processed=ours, produced=len(steps), rejected=0, skipped=len(trajectories) - ours, lag=0
    )
    assert len(steps) == 2 * ours > 0
    assert {type(event) for event in steps} == {Step}
    assert {event.run_id for event in steps} == {RUN}
    assert {type(event) for event in await _events(log, "ratings")} == {Rating}


async def test_a_restart_goes_on_with_the_state_of_what_was_committed(log: LocalLog) -> None:
    for first in (0, 10, 20):
        await log.append(_games(first, 10))
        await _drain(log)
        await _drain(log, make_ratings)
    await _assert_exactly_once(log)


async def test_games_delivered_again_change_nothing(log: LocalLog) -> None:
    await log.append(_games(0, 8))
    await _drain(log)
    before = await _events(log, "steps")
    await log.append(_games(0, 8))
    counters = await _drain(log)
    assert counters.processed > 0
    assert counters.produced == 0
    assert await _events(log, "steps") == before


async def test_records_that_are_no_events_are_set_aside_whole(log: LocalLog) -> None:
    impossible = make_trajectory(100, env_id="Env-1", trained_seats=(7,))
    await log.append([*_games(0, 4), _GARBAGE, record_from_event(impossible), *_games(4, 4)])
    counters = await _drain(log)
    assert counters.rejected == 2
    garbage, refused = await _events(log, "dead-letters")
    assert isinstance(garbage, RecordRejected)
    assert isinstance(refused, RecordRejected)
    assert garbage.record_value == _GARBAGE.value
    assert (garbage.consumer, garbage.topic, garbage.record_key) == (
        f"reward-processor/{RUN}",
        "trajectories",
        f"{RUN}/Env-1",
    )
    assert garbage.occurred_at_ms == 17
    stored = await _read(log, "trajectories")
    assert [(r.partition, r.offset) for r in stored if r.value == _GARBAGE.value] == [
        (garbage.partition, garbage.offset)
    ]
    assert garbage.reason.startswith("EventDecodeError: trajectories[")
    assert "trained_seats is [7]" in refused.reason
    assert refused.record_headers["ce_id"] == impossible.event_id.encode()
    # The games around them were folded as if they were not there, also after a restart.
    steps = {event.event_id for event in await _events(log, "steps")}
    assert len(steps) == 2 * sum(
        isinstance(e, Trajectory) and e.run_id == RUN and e.game_index < 100
        for r in stored
        if r.value != _GARBAGE.value
        for e in [decode_event(r.value)]
    )
    assert (await _drain(log)).rejected == 0


async def test_a_bad_record_too_large_for_its_dead_letter_is_cut(log: LocalLog) -> None:
    await log.append([Record(topic="trajectories", key=f"{RUN}/E", value=b"x" * (13 * 1024 * 1024))])
    await _drain(log)
    (rejected,) = await _events(log, "dead-letters")
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
    await log.append(_games(0, 8))
    with pytest.raises(ServiceError, match=r"fails/run-a: folding game-outcomes\[0\]@5 .*ZeroDivisionError"):
        await _drain(log, _Fails)
    assert await log.committed_positions("fails/run-a") == {}
    assert await _events(log, "dead-letters") == []


async def test_one_that_fails_ends_the_others(log: LocalLog) -> None:
    await log.append(_games(0, 8))
    with pytest.raises(ServiceError, match="a bug"):
        await host_processors(log, [make_rewards, _Fails], run_id=RUN, stop=asyncio.Event())


async def _until(condition: Callable[[], bool], deadline_s: float = 30.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_running_host_picks_up_what_arrives_and_measures_its_lag(log: LocalLog) -> None:
    stop, counters = asyncio.Event(), HostCounters()
    host = asyncio.ensure_future(
        run_processor(log, make_ratings, run_id=RUN, stop=stop, counters=counters, max_records=3)
    )
    for first in (0, 5):
        await log.append(_games(first, 5))
        await _until(lambda reached=first + 5: counters.processed == reached)  # type: ignore[misc]
    stop.set()
    await host
    assert counters.lag == 0
    assert counters.produced == len(await _events(log, "ratings")) == 40


async def test_a_second_host_fences_the_first(log: LocalLog) -> None:
    await log.append(_games(0, 4))
    first_counters = HostCounters()
    first = asyncio.ensure_future(
        run_processor(log, make_ratings, run_id=RUN, stop=asyncio.Event(), counters=first_counters)
    )
    await _until(lambda: first_counters.processed == 4)
    stop, second_counters = asyncio.Event(), HostCounters()
    second = asyncio.ensure_future(
        run_processor(log, make_ratings, run_id=RUN, stop=stop, counters=second_counters)
    )
    index = 4
    async with asyncio.timeout(30):
        while not first.done():  # until the second has opened its producer the first is in its rights
            await log.append(_games(index, 1))
            index += 1
            await asyncio.wait([first], timeout=0.05)
    error = first.exception()
    assert isinstance(error, FencedError)
    assert "rating-processor/run-a: another host has taken over" in str(error)
    await _until(lambda: first_counters.processed + second_counters.processed == index)
    stop.set()
    await second
    published = [event.event_id for event in await _events(log, "ratings")]
    assert len(published) == len(set(published)) == 4 * index


async def test_state_that_cannot_be_restored_is_an_error(log: LocalLog) -> None:
    await log.append(_games(0, 8))
    await _drain(log, make_ratings)
    await log.delete_before({TopicPartition("game-outcomes", 0): 3})
    with pytest.raises(ServiceError, match=r"game-outcomes\[0\] holds offsets 3 to 8, but the state up to 8"):
        await _drain(log, make_ratings)


class _Counts:
    """Sees all runs."""

    name = "counts"
    inputs = (Trajectory.TOPIC, GameOutcome.TOPIC)
    runs: set[str] = set()  # noqa: RUF012 - shared on purpose: one instance per partition

    def handle(self, event: Event) -> Sequence[Event]:
        self.runs.add(event.run_id)
        return ()


async def test_without_a_run_it_serves_all(log: LocalLog) -> None:
    await log.append(_games(0, 4))
    counters = await _drain(log, _Counts, run_id=None)
    assert _Counts.runs == {RUN, "run-b"}
    assert counters.skipped == 0
    ends: dict[TopicPartition, int] = {}
    for topic in _Counts.inputs:
        ends |= {at: end for at, end in (await log.end_offsets(topic)).items() if end}
    assert await log.committed_positions("counts") == ends


async def test_the_commit_steps_come_in_order(log: LocalLog) -> None:
    await log.append(_games(0, 4))
    seen: list[str] = []
    await _drain(log, on_step=seen.append)
    assert seen == list(STEPS)


@pytest.mark.parametrize("step", STEPS)
async def test_kill_between_commit_steps(path: Path, log: LocalLog, step: str) -> None:
    await log.append([*_games(0, 12), _GARBAGE, *_games(12, 12)])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.services.doomed_host", str(path), step, "3"
    )
    assert await process.wait() == -signal.SIGKILL
    await host_both(path)
    await _assert_exactly_once(log)
    assert [e.record_value for e in await _events(log, "dead-letters") if isinstance(e, RecordRejected)] == [
        _GARBAGE.value
    ]


_CONFIG: Mapping[str, object] = {
    "model": "tiny-player",
    "train_envs": [{"env_id": "Env-0"}],
    "rewards": {"final": [{"type": "WinDrawLossFormatter"}], "step": [{"type": "RewardForFormat"}]},
    "model_pool": {"draw_probability": {"Env-0": 0.5}},
}


async def test_a_run_is_served_from_its_configuration(tmp_path: Path) -> None:
    config, data = parse_config(_CONFIG), DataDir(tmp_path)
    log = open_log(config, data)
    try:
        await log.create_topics(list(load_topics().values()))
        await log.append(_games(0, 4))
        stop = asyncio.Event()
        stop.set()
        await run_processors(config, RUN, data, stop)
        assert isinstance(log, LocalLog)
        steps = [event for event in await _events(log, "steps") if isinstance(event, Step)]
        assert {(s.game_index, s.seat): s.reward for s in steps}[0, 0] == 1.0
        ratings = [event for event in await _events(log, "ratings") if isinstance(event, Rating)]
        assert ratings
    finally:
        await log.close()


async def test_a_bad_transformation_is_known_before_anything_is_read(tmp_path: Path) -> None:
    config = parse_config({**_CONFIG, "rewards": {"step": [{"type": "Nope"}]}})
    data = DataDir(tmp_path)
    log = open_log(config, data)
    try:
        await log.create_topics(list(load_topics().values()))
    finally:
        await log.close()
    with pytest.raises(ConfigError, match="unknown type 'Nope'"):
        await run_processors(config, RUN, data, asyncio.Event())
