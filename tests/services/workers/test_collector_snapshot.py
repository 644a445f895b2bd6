"""A collector that starts from a snapshot knows what one knows that has read its run from the beginning."""

import asyncio
import random
import re
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from tests.builders import made
from tests.log.harness import topics_of_one_partition
from tests.log.lost_end import lose_end
from tests.services.workers import test_game_schedule as schedules
from tests.services.workers.pretend_engine import PretendEngine
from tests.services.workers.test_rollout import (
    DEADLINE_S,
    RUN,
    UPDATES,
    checkpoint,
    config,
    games_of,
    publish,
    read,
    update,
    worker,
)
from unstable_stream.errors import OffsetOutOfRangeError
from unstable_stream.events import Event, GameOutcome, GameStarted, Rating
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.reading import ends_of
from unstable_stream.log.saved_state import UnusableStateError
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.services.streams.snapshots import SnapshotPace
from unstable_stream.services.workers.collector import Collector, topics_of_collector
from unstable_stream.services.workers.collector_snapshot import CollectorSnapshots, read_snapshot
from unstable_stream.services.workers.engine import LocalEngine
from unstable_stream.services.workers.game_schedule import GameSchedule, ScheduleState

pytestmark = pytest.mark.longer

OFTEN = SnapshotPace(events=5, times_its_size=0)
TOPICS = topics_of_collector(config())
SCOPE = f"collector/{RUN}/{'+'.join(TOPICS)}/all"


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as opened:
        await opened.create_topics(topics_of_one_partition())
        yield opened


# -- the fold -------------------------------------------------------------------------------------


def history(settings: RunConfig, seed: int) -> list[Event]:
    """What may happen in a run, drawn at random: games end, are given up, or both; ratings; drops."""
    rng = random.Random(seed)
    schedule = GameSchedule(schedules.RUN, settings)
    events: list[Event] = []

    def happens(event: Event) -> None:
        schedule.apply(event)
        events.append(event)

    happens(schedules.checkpoint(0))
    number = 0
    for _ in range(60):
        for game in schedule.next_games(0):
            happens(game)
        in_flight = list(schedule.in_flight.values())
        for game in rng.sample(in_flight, k=len(in_flight) // 2):
            if rng.random() < 0.2:
                happens(schedules.given_up(game))
            if game.game_id in schedule.in_flight or rng.random() < 0.5:
                happens(schedules.outcome(game, turns=rng.randint(1, 5)))
        uid, games = rng.choice(list(schedule.checkpoints)), len(events)
        rated = {"mu": rng.random(), "sigma": 1.0, "games": games, "game_id": str(games), "env_id": "*"}
        happens(made(Rating, model_uid=uid, **rated))
        if rng.random() < 0.4 and number < settings.learner.iterations:
            number += 1
            happens(schedules.update(number, trained=16, dropped=rng.randint(0, 3)))
            happens(schedules.checkpoint(number))
    return events


@pytest.mark.parametrize("mode", ["mirror", "lagged", "exploration", "pfsp-variance", "match-quality"])
def test_a_schedule_from_a_state_goes_on_as_one_from_the_beginning(mode: str) -> None:
    settings = schedules.config(
        model_pool={"sample_mode": mode, "fixed": [{"name": "random-legal"}]},
        collector={"max_pending_steps": 10_000},
        learner={"iterations": 20},
    )
    events = history(settings, seed=len(mode))
    assert len(events) > 200
    whole = GameSchedule(schedules.RUN, settings)
    resumed: GameSchedule | None = None
    for place, event in enumerate(events):
        whole.apply(event)
        if resumed is not None:
            resumed.apply(event)
        if place % 37 == 36 or place == len(events) - 1:
            if resumed is not None:
                assert resumed.state() == whole.state()
                assert resumed.next_games(7) == whole.next_games(7)
            resumed = GameSchedule(schedules.RUN, settings)
            state = msgspec.json.decode(msgspec.json.encode(whole.state()), type=ScheduleState)
            resumed.load_state(state, whole.checkpoints.values())
            for repeated in events[max(0, place - 20) : place + 1]:
                resumed.apply(repeated)
            assert resumed.state() == whole.state()


# -- a restart ------------------------------------------------------------------------------------


def collector(log: LocalLog, engine: PretendEngine, settings: RunConfig) -> Collector:
    return Collector(settings, RUN, [LocalEngine(engine)], [worker(log, engine, settings)], pace=OFTEN)


async def play_until(log: LocalLog, outcomes: int, settings: RunConfig) -> None:
    """Let a collector play until so many training games are over in all, and kill it."""
    victim = asyncio.ensure_future(collector(log, PretendEngine(), settings).collect(log, asyncio.Event()))
    async with asyncio.timeout(DEADLINE_S):
        while len(games_of(await read(log), GameOutcome)) < outcomes:
            assert not victim.done(), victim.exception()
    victim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await victim


async def played(log: LocalLog, outcomes: int) -> RunConfig:
    """Let a run begin and play until then; return its settings."""
    await publish(log, checkpoint(0))
    await play_until(log, outcomes, config())
    return config()


async def restored(log: LocalLog, settings: RunConfig) -> tuple[ScheduleState, int]:
    """Return what a collector knows that starts now, and the number of events that it has read for it."""
    one = collector(log, PretendEngine(is_open=False), settings)
    consumer = await log.consumer(TOPICS)
    snapshots = CollectorSnapshots(log, RUN, TOPICS, settings, one._schedule, one._measuring, OFTEN)
    await one._restore(log, consumer, snapshots)
    assert consumer.positions() == await ends_of(log, TOPICS)
    await consumer.close()
    calls = one._calls.tasks
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    return one._schedule.state(), snapshots.since.events


async def forget(log: LocalLog) -> None:
    await save(log, dict.fromkeys(await log.saved(SCOPE), b""))


async def save(log: LocalLog, states: dict[str, bytes]) -> None:
    async with (await log.producer("test")).transaction() as transaction:
        await transaction.save(SCOPE, states)


def replaced(packed: bytes, what: bytes, other: bytes) -> bytes:
    return zlib.compress(zlib.decompress(packed).replace(what, other))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda packed: packed[:-9] + bytes([packed[-9] ^ 1]) + packed[-8:],
    "no compression": lambda packed: b"nonsense",
    "another format": lambda packed: replaced(packed, b'"format":1', b'"format":0'),
    "another log": lambda packed: replaced(packed, b'"log_id":"', b'"log_id":"x'),
}


async def test_a_restart_reads_only_what_came_after_the_snapshot(log: LocalLog) -> None:
    settings = await played(log, 60)
    state, events = await restored(log, settings)
    await forget(log)
    from_the_beginning, all_events = await restored(log, settings)
    assert state == from_the_beginning
    assert all_events > 120
    assert events < 60, "what lies between two snapshots, and what happened while it was killed"


async def test_a_stale_snapshot_gives_the_same_state(log: LocalLog) -> None:
    settings = await played(log, 20)
    stale = dict(await log.saved(SCOPE))
    await publish(log, update(1), checkpoint(1))
    await play_until(log, 60, settings)
    state, few = await restored(log, settings)
    await forget(log)
    from_the_beginning, events = await restored(log, settings)
    await save(log, stale)
    from_the_stale_one, more = await restored(log, settings)
    assert state == from_the_beginning == from_the_stale_one
    assert few < more < events


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_snapshot_that_cannot_be_used_changes_nothing(log: LocalLog, damage: str) -> None:
    settings = await played(log, 20)
    saved = await log.saved(SCOPE)
    await save(log, {"state": DAMAGE[damage](saved["state"])})
    with pytest.raises(UnusableStateError):
        await read_snapshot(log, RUN, TOPICS, settings)
    state, events = await restored(log, settings)
    await forget(log)
    assert (state, events) == await restored(log, settings)
    await play_until(log, 40, settings)  # and it saves another one
    assert await read_snapshot(log, RUN, TOPICS, settings) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 5},
        {"train_envs": [{"env_id": "ConnectFour-v0-train"}]},
        {"eval_envs": [{"env_id": "TicTacToe-v0-train"}]},
        {"evaluation": {"every": 3}},
        {"model_pool": {"max_active_lora": 7}},
        {"learner": {"iterations": UPDATES + 1, "batch_size": 400}},
        {"collector": {"filter_opponent_invalid": True}},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_a_snapshot_of_other_settings_is_not_used(log: LocalLog, change: dict[str, object]) -> None:
    settings = await played(log, 20)
    assert await read_snapshot(log, RUN, TOPICS, settings) is not None
    other = parse_config(settings.model_dump(mode="json", exclude_unset=True) | change)
    with pytest.raises(UnusableStateError, match="other settings"):
        await read_snapshot(log, RUN, TOPICS, other)
    learns_otherwise = settings.model_dump(mode="json", exclude_unset=True) | {"buffer": {"max_staleness": 3}}
    assert await read_snapshot(log, RUN, TOPICS, parse_config(learns_otherwise)) is not None


async def test_a_log_that_lost_what_the_snapshot_knows_stops_the_collector(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await log.create_topics(topics_of_one_partition())
        settings = await played(log, 20)
        found = await read_snapshot(log, RUN, TOPICS, settings)
        assert found is not None
        positions = found[0].offsets
        at = next(each for each in positions if each.topic == GameOutcome.TOPIC)
    lose_end(path, at, positions[at] - 1)
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        named = re.escape(f"{at}@{positions[at]} is out of range")
        with pytest.raises(OffsetOutOfRangeError, match=f"{named}.*Restore a copy of the log"):
            await restored(log, settings)


async def test_killed_again_and_again_it_starts_every_game_once(log: LocalLog) -> None:
    settings = config()
    await publish(log, checkpoint(0))
    for outcomes in range(7, 100, 13):
        await play_until(log, outcomes, settings)
        state, _ = await restored(log, settings)
        saved = dict(await log.saved(SCOPE))
        await forget(log)
        assert (await restored(log, settings))[0] == state
        await save(log, saved)
    events = await read(log)
    begun = [event for event in events if isinstance(event, GameStarted)]
    assert len({event.game_id for event in begun}) == len(begun)
    assert games_of(events, GameStarted) == list(range(len(games_of(events, GameStarted))))
    assert len(await log.saved(SCOPE)) == 1
