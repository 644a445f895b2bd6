"""Games fail, are cancelled or lose their engine: the log says so of exactly these games."""

import asyncio
import dataclasses
import re
from collections.abc import Callable
from typing import cast

import msgspec
import pytest

from tests.builders import made
from tests.inference.endpoint import KEY_ENV, Endpoint, completion
from tests.inference.endpoint import endpoint as endpoint  # a fixture
from tests.services.workers.pretend_engine import PretendEngine
from unstable_stream.errors import EngineError, FencedError, ServiceError
from unstable_stream.events import (
    Checkpoint,
    Event,
    GameAbandoned,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    Metrics,
    Seat,
    Trajectory,
    checkpoint_uid,
    game_id,
)
from unstable_stream.inference.base_model import resolve_model
from unstable_stream.inference.engine import Adapter, Completion, Engine, GenerationRequest
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.records import event_from_record, record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.services.streams.dead_letters import DeadLetters
from unstable_stream.services.streams.processor import group_of
from unstable_stream.services.workers.collector import Collector
from unstable_stream.services.workers.engine import LocalEngine
from unstable_stream.services.workers.rollout import RolloutWorker

RUN = "rollout-test"
ENV = "TicTacToe-v0-train"
UPDATES = 3
DEADLINE_S = 60.0


def config(num_workers: int = 6, **collector: int) -> RunConfig:
    return parse_config(
        {
            "model": "tiny-player",
            "train_envs": [{"env_id": ENV}],
            "sampling": {"max_tokens": 4},
            "collector": {"num_workers": num_workers, "num_eval_workers": 4, **collector},
            "evaluation": {"opponents": [{"name": "random-legal"}], "max_eval_games_per_ckpt": 2},
            "learner": {"iterations": UPDATES, "batch_size": 400},
        }
    )


async def read(log: LocalLog) -> list[Event]:
    topics = ("games", "game-outcomes", "trajectories")
    return [event_from_record(record) async for record in read_to_end(log, topics)]


def games_of(events: list[Event], kind: type[GameStarted | GameAbandoned | GameOutcome]) -> list[int]:
    return sorted(event.game_index for event in events if isinstance(event, kind) and event.split == "train")


def worker(log: LocalLog, engine: Engine, settings: RunConfig | None = None) -> RolloutWorker:
    return RolloutWorker(settings or config(), log, resolve_model("tiny-player"), engine)


def started(index: int, env_id: str = ENV) -> GameStarted:
    """Mirror self-play of the initial policy."""
    ours = made(Seat, policy_version=0, template="default", trained=True)
    return made(
        GameStarted,
        run_id=RUN,
        game_index=index,
        env_id=env_id,
        seed=2 * index,
        seats=(ours, msgspec.structs.replace(ours, seat=1)),
    )


ADAPTERS: dict[str, Adapter] = {}  # the initial policy is the base model


async def test_a_finished_game_is_there_whole(log: LocalLog) -> None:
    games = [started(index) for index in range(3)]
    assert await worker(log, PretendEngine()).play(games, ADAPTERS) == 3
    events = await read(log)
    assert games_of(events, GameOutcome) == [0, 1, 2]
    for trajectory in (event for event in events if isinstance(event, Trajectory)):
        outcome = next(e for e in events if isinstance(e, GameOutcome) and e.game_id == trajectory.game_id)
        assert outcome.seats[0].turns == len(trajectory.turns) == 1
        assert outcome.reason == "invalid-move"
        assert trajectory.turns[0].policy_version == 0


@pytest.mark.parametrize("setting", ["votes", "best_of"])
@pytest.mark.parametrize(
    ("split", "evaluated", "answers"),
    [
        ("eval", checkpoint_uid(0), 5),
        ("eval", "another", 1),  # the opponent answers once
        ("eval", None, 5),  # of a round robin
        ("train", None, 1),
    ],
)
async def test_only_who_is_evaluated_answers_several_times(
    log: LocalLog, split: str, evaluated: str | None, answers: int, setting: str
) -> None:
    settings = parse_config(config().model_dump(mode="json"), [f"evaluation.{setting}=5"])
    game = msgspec.structs.replace(started(0), split=split, evaluated_uid=evaluated)
    engine = PretendEngine()
    assert await worker(log, engine, settings).play([game], ADAPTERS) == 1
    assert engine.asked == answers  # the first move is invalid and ends the game


async def test_a_game_its_engine_refuses_is_given_up_with_the_reason(log: LocalLog) -> None:
    error = EngineError("\ud83d" + "too long " * 10_000)  # which cannot be written as it is
    assert await worker(log, PretendEngine(error=error)).play([started(0)], ADAPTERS) == 0
    (event,) = await read(log)
    assert isinstance(event, GameAbandoned)
    assert event.reason == ("\ufffd" + "too long " * 10_000)[:4000]


async def test_a_game_that_cannot_be_recorded_is_given_up_and_says_whose(log: LocalLog) -> None:
    class Strange(PretendEngine):
        async def generate(self, request: GenerationRequest) -> Completion:
            completion = await super().generate(request)
            return dataclasses.replace(completion, finish_reason=cast(str, object()))

    assert await worker(log, Strange()).play([started(0)], ADAPTERS) == 0
    (event,) = await read(log)
    assert isinstance(event, GameAbandoned)
    whose = f"game {game_id(RUN, 'train', 0)}: {ENV}: the trajectory of {checkpoint_uid(0)} in seat 0"
    assert event.reason.startswith(f"{whose} cannot be recorded: TypeError: ")


async def test_a_game_too_large_for_its_topic_is_abandoned_with_the_reason(log: LocalLog) -> None:
    """The game that ends beside it, and shares its append, is recorded."""

    class LongWinded(PretendEngine):
        async def generate(self, request: GenerationRequest) -> Completion:
            completion = await super().generate(request)
            return completion if self.asked > 1 else Completion([5] * 5_000, [-1.0] * 5_000, "length")

    await log.alter_topics([dataclasses.replace(load_topics()["trajectories"], max_message_bytes=20_000)])
    assert await worker(log, LongWinded()).play([started(index) for index in range(3)], ADAPTERS) == 2
    events = await read(log)
    assert (games_of(events, GameAbandoned), games_of(events, GameOutcome)) == ([0], [1, 2])
    assert len([event for event in events if isinstance(event, Trajectory)]) == 2
    (reason,) = (event.reason for event in events if isinstance(event, GameAbandoned))
    assert reason.startswith(f"game {game_id(RUN, 'train', 0)}: {ENV}: it is too large to be recorded: ")
    assert re.search("'trajectories' has .*the topic's limit is 20000", reason)


async def test_an_endpoint_is_asked_as_configured_and_its_answers_are_recorded(
    log: LocalLog, endpoint: Endpoint
) -> None:
    opponent: dict[str, object] = {"name": "m", "kind": "openai", "template": "answer"}
    opponent |= {"base_url": endpoint.url, "api_key_env": KEY_ENV}
    opponent |= {"max_tokens": 9, "max_tokens_name": "max_completion_tokens"}
    asked: dict[str, object] = {"chat_template_kwargs": {"enable_thinking": False}}
    opponent |= asked | {"temperature": "default", "extra_body": {"reasoning_effort": "low"}}
    settings = parse_config(config().model_dump(mode="json") | {"model_pool": {"fixed": [opponent]}})
    endpoint.replies(completion(None), completion("[4] \ud83d", "stop"), completion("so", "length"))
    seats = tuple(Seat(seat=seat, model_uid="m", kind="openai", template="answer") for seat in (0, 1))
    game = msgspec.structs.replace(started(0), seats=seats)
    assert await worker(log, PretendEngine(), settings).play([game], ADAPTERS) == 1
    (outcome,) = await read(log)
    assert isinstance(outcome, GameOutcome)
    assert [action.action for action in outcome.actions] == ["[4]", "so"]
    assert (outcome.finish_reasons, outcome.no_answers) == (("stop", "length"), {0: 1})
    asked |= {"max_completion_tokens": 9, "reasoning_effort": "low"}
    assert asked.items() <= endpoint.bodies[0].items()
    assert "temperature" not in endpoint.bodies[0]


async def test_a_game_its_environment_refuses_is_given_up_and_others_go_on(log: LocalLog) -> None:
    games = [started(0, env_id="NoSuchGame-v0"), started(1)]
    assert await worker(log, PretendEngine()).play(games, ADAPTERS) == 1
    events = await read(log)
    assert (games_of(events, GameAbandoned), games_of(events, GameOutcome)) == ([0], [1])
    assert "NoSuchGame-v0" in next(event.reason for event in events if isinstance(event, GameAbandoned))


async def test_cancelling_gives_up_exactly_those_games_once(log: LocalLog) -> None:
    engine = PretendEngine(is_open=False)
    player = worker(log, engine)
    playing = asyncio.ensure_future(player.play([started(index) for index in range(4)], ADAPTERS))
    await until(lambda: engine.asked == 4)
    wanted = [game_id(RUN, "train", index) for index in (1, 3)]
    await asyncio.gather(*(player.cancel([*wanted, "no-such-game"], "training finished") for _ in range(3)))
    engine.open.set()
    assert await playing == 2
    await player.cancel([game_id(RUN, "train", 0)], "too late")
    events = await read(log)
    assert (games_of(events, GameAbandoned), games_of(events, GameOutcome)) == ([1, 3], [0, 2])
    assert {event.reason for event in events if isinstance(event, GameAbandoned)} == {"training finished"}


async def test_a_game_cancelled_before_its_first_move_is_given_up_too(log: LocalLog) -> None:
    player = worker(log, PretendEngine())
    playing = asyncio.ensure_future(player.play([started(0)], ADAPTERS))
    while not player._games:  # the game's task exists, but has not run yet
        await asyncio.sleep(0)
    await player.cancel([game_id(RUN, "train", 0)], "changed our mind")
    assert await playing == 0
    assert games_of(await read(log), GameAbandoned) == [0]


# -- the collector over it ------------------------------------------------------------------------


def checkpoint(iteration: int) -> Checkpoint:
    return made(Checkpoint, run_id=RUN, iteration=iteration)


def update(number: int) -> LearnerUpdate:
    return made(LearnerUpdate, run_id=RUN, update=number, model_uid=checkpoint_uid(number))


async def publish(log: LocalLog, *events: Event) -> None:
    await log.append([record_from_event(event) for event in events])


def collector(log: LocalLog, engine: PretendEngine, settings: RunConfig) -> Collector:
    return Collector(settings, RUN, [LocalEngine(engine)], [worker(log, engine, settings)])


async def collect(log: LocalLog, engine: PretendEngine, settings: RunConfig | None = None) -> None:
    """Play the whole run."""
    async with asyncio.timeout(DEADLINE_S):
        await collector(log, engine, settings or config()).collect(log, asyncio.Event())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_game_after_game_given_up_stops_the_collector_with_the_reason_until_it_is_resumed(
    log: LocalLog,
) -> None:
    await publish(log, checkpoint(0))
    engine = PretendEngine(error=EngineError("the adapter has the wrong shape"))
    says = "(?s)50 games in a row were abandoned.*because: the adapter has the wrong shape$"
    with pytest.raises(ServiceError, match=says):
        await collect(log, engine, config(num_workers=64))
    resumed = PretendEngine(is_open=False)
    again = asyncio.ensure_future(
        collector(log, resumed, config(num_workers=64)).collect(log, asyncio.Event())
    )
    await until(lambda: again.done() or resumed.asked > 0)
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again


async def test_games_whose_trajectories_are_all_set_aside_stop_the_collector_with_the_reason(
    log: LocalLog,
) -> None:
    await publish(log, checkpoint(0))
    letters = DeadLetters(group_of("reward-processor", RUN), RUN)

    async def set_aside() -> None:
        consumer = await log.consumer(["trajectories"])
        while True:
            for record in await consumer.poll():
                await log.append(letters.about(record, "the reward is no number"))

    setting_aside = asyncio.create_task(set_aside())
    says = r"quarantined since the last update.*because: the reward is no number"
    with pytest.raises(ServiceError, match=says):
        await collect(log, PretendEngine())
    setting_aside.cancel()


async def test_an_engine_that_died_stops_the_collector_and_gives_up_no_game(log: LocalLog) -> None:
    await publish(log, checkpoint(0))
    engine = PretendEngine(error=ServiceError("inference engine 0 failed: gone"))
    with pytest.raises(ServiceError, match="inference engine 0 failed: gone"):
        await collect(log, engine)
    events = await read(log)
    assert games_of(events, GameStarted) == list(range(6))
    assert games_of(events, GameAbandoned) == games_of(events, GameOutcome) == []


async def test_games_in_flight_at_a_kill_are_played_again_as_decided(log: LocalLog) -> None:
    await publish(log, checkpoint(0))
    settings = config()
    stuck = PretendEngine(is_open=False)
    victim = asyncio.ensure_future(collector(log, stuck, settings).collect(log, asyncio.Event()))
    await until(lambda: stuck.asked == 6 + 2)
    victim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await victim
    decided = {event.game_id: event for event in await read(log) if isinstance(event, GameStarted)}
    assert len(decided) == 8

    stop = asyncio.Event()
    engine = PretendEngine()
    second = asyncio.ensure_future(collector(log, engine, settings).collect(log, stop))
    events: list[Event] = []
    while {e.game_id for e in events if isinstance(e, GameOutcome)} < decided.keys():
        events = await read(log)
        assert not second.done()
    stop.set()
    await second
    events = await read(log)
    begun = [event for event in events if isinstance(event, GameStarted)]
    assert len({event.game_id for event in begun}) == len(begun), "no game was decided on twice"
    for outcome in (event for event in events if isinstance(event, GameOutcome)):
        if outcome.game_id in decided:
            game = decided[outcome.game_id]
            assert (outcome.seed, outcome.split) == (game.seed, game.split)
            assert [s.model_uid for s in outcome.seats] == [s.model_uid for s in game.seats]


async def test_of_two_collectors_of_a_run_the_later_one_goes_on(log: LocalLog) -> None:
    """As with two launchers of one run: no game is started twice, and the earlier one says why it stops."""
    await publish(log, checkpoint(0))
    stop = asyncio.Event()
    stuck, engine = PretendEngine(is_open=False), PretendEngine()
    first = asyncio.ensure_future(collector(log, stuck, config()).collect(log, stop))
    await until(lambda: stuck.asked == 6 + 2)
    second = asyncio.ensure_future(collector(log, engine, config()).collect(log, stop))
    events: list[Event] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(games_of(events, GameOutcome)) < 8:
            events = await read(log)
            assert not second.done()
    stuck.open.set()  # its games end, and it wants to start others
    with pytest.raises(FencedError, match=rf"another launcher has taken over run {RUN}.*This one stops"):
        async with asyncio.timeout(DEADLINE_S):
            await first
    stop.set()
    await second
    begun = [event for event in await read(log) if isinstance(event, GameStarted)]
    assert len({event.event_id for event in begun}) == len(begun)


async def test_at_the_end_training_games_are_given_up_and_the_last_checkpoint_is_evaluated(
    log: LocalLog,
) -> None:
    await publish(log, checkpoint(0))
    engine = PretendEngine(is_open=False)
    collecting = asyncio.ensure_future(collector(log, engine, config()).collect(log, asyncio.Event()))
    await until(lambda: engine.asked == 6 + 2)
    # The last update becomes known long before its checkpoint does.
    await publish(log, *(update(number) for number in range(1, UPDATES + 1)))
    while games_of(await read(log), GameAbandoned) != list(range(6)):
        assert not collecting.done()
    engine.open.set()
    await publish(log, checkpoint(UPDATES))
    async with asyncio.timeout(DEADLINE_S):
        await collecting
    events = await read(log)
    assert games_of(events, GameStarted) == list(range(6))
    assert games_of(events, GameOutcome) == []
    evaluated = [e.evaluated_uid for e in events if isinstance(e, GameOutcome)]
    assert sorted(map(str, evaluated)) == [checkpoint_uid(0)] * 2 + [checkpoint_uid(UPDATES)] * 2


async def test_engines_report_how_busy_they_are(log: LocalLog) -> None:
    await publish(log, checkpoint(0), *(update(number) for number in range(1, UPDATES + 1)))
    await publish(log, checkpoint(UPDATES))
    await collect(log, PretendEngine())
    metrics = [event_from_record(record) async for record in read_to_end(log, ("metrics",))]
    engine = next(event for event in metrics if isinstance(event, Metrics) and event.source == "engine-0")
    names = ("queued", "running", "tok_s", "completions")
    assert set(engine.values) == {f"inference/engine-0/{name}" for name in names}
