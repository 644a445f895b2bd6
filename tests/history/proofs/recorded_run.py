"""A small truthful run without Ray or a model: real games, the real processors, real draws from the buffer.

Every event is what the services would have published, so whatever recomputes a run must find nothing.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tests.builders import made
from tests.games.builders import ticking_clock
from tests.log.harness import topics_of_one_partition
from tests.services.workers.test_game_schedule import config
from unstable_stream.algorithms.buffer import StepBuffer
from unstable_stream.algorithms.settings import ReinforceConfig
from unstable_stream.algorithms.update_decisions import admission, decide_update
from unstable_stream.events import (
    Checkpoint,
    Event,
    GameStarted,
    LearnerUpdate,
    RunFinished,
    RunStarted,
    Seat,
    Step,
    checkpoint_uid,
    encode_event,
)
from unstable_stream.games.opponents.scripted import scripted_player
from unstable_stream.games.play import play_game
from unstable_stream.games.players import Move, Player, SampledTokens, TurnContext
from unstable_stream.log.port import Consumer, EventLog, Record, StoredRecord, partition_for_key
from unstable_stream.log.reading import events_to_end, read_to_end, readable_event
from unstable_stream.log.records import event_from_record, record_from_event
from unstable_stream.reward_transformations import build_sampling
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.overlay import overlaid
from unstable_stream.runs.recording import start_run
from unstable_stream.runs.sections import EnvConfig
from unstable_stream.services.streams.processor import Processor
from unstable_stream.services.streams.processors import RATINGS, REWARDS
from unstable_stream.services.streams.service import run_processors

EventT = TypeVar("EventT", bound=Event)
ENVS = ("TicTacToe-v0-train", "ThreePlayerTicTacToe-v0-train")
UPDATES = 3
_PARTITIONS = {spec.name: spec.partitions for spec in topics_of_one_partition()}


def small_config(**sections: Any) -> RunConfig:
    """Overflow, stale steps and truncated turns all happen under it."""
    values: dict[str, Any] = {
        "seed": 11,
        "train_envs": [{"env_id": ENVS[0]}, {"env_id": ENVS[1], "num_players": 3}],
        "collector": {"max_turns": 30, "invalid_moves_allowed": 2},
        "learner": {"iterations": UPDATES, "batch_size": 20, "mini_batch_size": 4},
        "buffer": {"max_buffer_size": 45, "max_staleness": 1},
        "algorithm": {"truncated_turns": "drop"},
        "rewards": {
            "final": [{"type": "RoleAdvantageByEnvFormatter"}],
            "step": [{"type": "PenaltyForInvalidMove", "penalty": -0.5}],
        },
        "model_pool": {"draw_probability": {ENVS[0]: 0.3}},
    }
    return config(**overlaid(values, sections))


@dataclass
class _Guesser:
    """Plays like a beginner that was sampled token by token; of a fixed opponent no tokens are recorded."""

    version: int
    trained: bool = True

    async def move(self, turn: TurnContext) -> Move:
        rng = random.Random(turn.seed)
        action = (
            f"[{rng.randrange(9)}]" if turn.num_players == 2 else f"[{rng.randrange(5)} {rng.randrange(5)}]"
        )
        if not self.trained:
            return Move(action)
        tokens = tuple(rng.randrange(100) for _ in range(rng.randrange(1, 5)))
        return Move(
            action,
            {"correct_answer_format": rng.random() < 0.8},
            SampledTokens(
                prompt=turn.observation,
                prompt_token_ids=(1, 2, 3),
                completion=f"I play {action}",
                completion_token_ids=tokens,
                logprobs=tuple(-rng.random() for _ in tokens),
                finish_reason="length" if rng.random() < 0.1 else "stop",
                policy_version=self.version,
            ),
        )


async def record_run(
    log: EventLog,
    run_id: str,
    settings: RunConfig | None = None,
    *,
    games: int = 15,
    hosted: bool = True,
    reads: Sequence[int] = (25,),
    restart_after: int = 0,
    updates: bool = True,
    parent_update: int = 0,
    finish: bool = True,
) -> RunConfig:
    """Record a run of :data:`UPDATES` updates, each after so many games.

    Args:
        log: where to.
        run_id: the run.
        settings: by default :func:`small_config`.
        games: before each update.
        hosted: the processors run in their hosts, which commit positions; else they are just called.
        reads: how many records the learner reads at a time before each update; the last holds on.
        restart_after: the learner dies after this update and is started again.
        updates: ``False``: the run ends before the first game.
        parent_update: the run is a fork of another at this update.
        finish: the run completes.
    """
    settings = settings if settings is not None else small_config()
    there = await log.topics()  # of a broker that other tests share
    await log.create_topics([spec for spec in topics_of_one_partition() if spec.name not in there])
    if parent_update:
        config, parent = settings.model_dump(mode="json"), {"parent_run_id": "run-parent"}
        began = made(RunStarted, run_id=run_id, config=config, parent_update=parent_update, **parent)
        await _publish(log, [began])
    else:
        await start_run(log, settings, run_id)
    await _publish(log, [_checkpoint(run_id, number) for number in range(parent_update + 1)])
    learner = await _Learner.start(log, run_id, settings)
    processors = _Processors(run_id, settings)
    index = 0
    for number in range(parent_update + 1, settings.learner.iterations + 1 if updates else 1):
        played: list[Event] = []
        for _ in range(games):
            started, *ended = await play(run_id, settings, index, number - 1)
            await _publish(log, [started])
            await _publish(log, ended)
            played += ended
            index += 1
        if hosted:
            await process_run(log, run_id)
        else:
            await _publish(log, processors.handle(played))
        # Not all that is there: the learner takes what it has read by then.
        update = await learner.update(number, reads[min(number - parent_update, len(reads)) - 1])
        await _publish(log, [update, _checkpoint(run_id, number)])
        if number == restart_after:
            await learner.consumer.close()
            learner = await _Learner.start(log, run_id, settings)
    await learner.consumer.close()
    if finish:
        await _publish(log, [made(RunFinished, run_id=run_id, occurred_at_ms=9)])
    return settings


class _Processors:
    """The folds without a host, one for each partition."""

    def __init__(self, run_id: str, settings: RunConfig) -> None:
        self._of = run_id, settings
        self._specs = {topic: spec for spec in (REWARDS, RATINGS) for topic in spec.inputs}
        self._folds: dict[tuple[str, int], Processor] = {}

    def handle(self, events: Sequence[Event]) -> list[Event]:
        outputs: list[Event] = []
        for event in events:
            at = (event.TOPIC, partition_for_key(event.key, _PARTITIONS[event.TOPIC]))
            if at not in self._folds:
                self._folds[at] = self._specs[event.TOPIC].make(*self._of)
            outputs += self._folds[at].handle(event)
        return outputs


async def events_of(log: EventLog, run_id: str | None, kind: type[EventT]) -> list[EventT]:
    """Return the events of a kind, of a run or of all."""
    found = [event async for _, event in events_to_end(log, (kind.TOPIC,), run_id=run_id)]
    return [event for event in found if isinstance(event, kind)]


async def process_run(log: EventLog, run_id: str) -> None:
    """Let both processors do in their hosts what there is to do."""
    stop = asyncio.Event()
    stop.set()
    await run_processors(log, run_id, stop)


async def copy_log(source: EventLog, target: EventLog, change: Callable[[StoredRecord], bytes]) -> None:
    """Copy every record to the same place of an empty log, but with the value that ``change`` returns."""
    await target.create_topics(topics_of_one_partition())
    for topic in await source.topics():
        records = [record async for record in read_to_end(source, (topic,))]
        await target.append([Record(topic, r.key, change(r), r.headers, r.timestamp_ms) for r in records])


def nth(number: int, kind: type[Event], change: Callable[[Any], Event]) -> Callable[[StoredRecord], bytes]:
    """Change the event of this kind that comes at this place; ``Any``: it is of that kind."""
    seen = -1

    def changed(record: StoredRecord) -> bytes:
        nonlocal seen
        event = event_from_record(record)
        if isinstance(event, kind):
            seen += 1
            if seen == number:
                return encode_event(change(event))
        return record.value

    return changed


async def _publish(log: EventLog, events: Sequence[Event]) -> None:
    await log.append([record_from_event(event) for event in events])


async def play(run_id: str, settings: RunConfig, index: int, version: int) -> list[Event]:
    """Play one game; return its start, trajectories and outcome."""
    env = settings.train_envs[index % len(settings.train_envs)]
    mine = index // len(settings.train_envs) % env.num_players
    mirror = index % 4 == 3
    checkpoint = partial(
        Seat,
        model_uid=checkpoint_uid(version),
        kind="checkpoint",
        policy_version=version,
        parent_uid=checkpoint_uid(version - 1) if version else None,
        template="default",
        trained=True,
    )
    seats = [
        checkpoint(seat=seat)
        if seat == mine or mirror
        else Seat(seat=seat, model_uid=f"fixed-{seat % 2}", kind="scripted")
        for seat in range(env.num_players)
    ]
    number: dict[str, Any] = {"game_index": index, "seed": 2 * index, "occurred_at_ms": 1000 * index}
    started = made(GameStarted, run_id=run_id, env_id=env.env_id, seats=tuple(seats), **number)
    played = await play_game(
        started,
        {seat.seat: _player(seat, env, version) for seat in seats},
        max_turns=settings.collector.max_turns,
        now_ms=ticking_clock(),
        invalid_moves_allowed=settings.collector.invalid_moves_allowed,
    )
    return [started, *played.trajectories, played.outcome]


def _player(seat: Seat, env: EnvConfig, version: int) -> Player:
    if seat.kind == "checkpoint" or env.num_players > 2:
        return _Guesser(version, trained=seat.kind == "checkpoint")
    return scripted_player("random-legal", env.env_id)


def _checkpoint(run_id: str, iteration: int) -> Checkpoint:
    parent = checkpoint_uid(iteration - 1) if iteration else None
    return made(Checkpoint, run_id=run_id, occurred_at_ms=iteration, iteration=iteration, parent_uid=parent)


@dataclass
class _Learner:
    """What the learner service does about its buffer; it trains nothing."""

    run_id: str
    settings: RunConfig
    consumer: Consumer
    buffer: StepBuffer

    @classmethod
    async def start(cls, log: EventLog, run_id: str, settings: RunConfig) -> "_Learner":
        """Start from what the log holds, as after a crash."""
        buffer = StepBuffer(
            settings.max_buffer_size,
            strategy=settings.buffer.strategy,
            seed=settings.seed,
            max_staleness=settings.buffer.max_staleness,
            overflow_draws=settings.buffer.overflow_draws,
        )
        for event in await events_of(log, run_id, LearnerUpdate):
            buffer.apply(event)
        return cls(run_id, settings, await log.consumer([Step.TOPIC]), buffer)

    async def update(self, number: int, reads: int) -> LearnerUpdate:
        """Draw the next batch as soon as there is one."""
        async with asyncio.timeout(120):
            while self.buffer.available(number) < self.settings.learner.batch_size:
                for record in await self.consumer.poll(max_records=reads, timeout_s=0.2):
                    step = readable_event(record)
                    if isinstance(step, Step) and step.run_id == self.run_id:
                        self.buffer.add(step)
        positions = {str(at): offset for at, offset in sorted(self.consumer.positions().items())}
        algorithm, learner = self.settings.algorithm, self.settings.learner
        assert isinstance(algorithm, ReinforceConfig)
        admit = partial(
            admission, max_train_len=learner.max_train_len, truncated_turns=algorithm.truncated_turns
        )
        transform = build_sampling(list(self.settings.rewards.sampling))
        decision = decide_update(self.buffer, learner.batch_size, number, transform, admit)
        metrics = ("staleness_mean", "staleness_max", "reward_mean", "buffer_size")
        drawn = {"step_ids": decision.trained_ids, "dropped": decision.dropped, "positions": positions}
        return made(
            LearnerUpdate,
            run_id=self.run_id,
            occurred_at_ms=number,
            update=number,
            loss=0.5,
            metrics={"loss": 0.5} | {name: decision.metrics[name] for name in metrics},
            model_uid=checkpoint_uid(number),
            **drawn,
        )
