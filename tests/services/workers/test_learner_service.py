"""The learner service killed between any two of its commit steps goes on as if nothing had happened."""

import asyncio
import contextlib
import functools
import random
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import AsyncMock

import msgspec
import pytest
import structlog
from safetensors.torch import load_file, save_file

from tests.builders import made
from tests.reward_transformations.trajectories import make_trajectory
from tests.simulation.log import SimulatedLog, Store
from unstable_stream.algorithms.collapse import CollapseWatch, Sign
from unstable_stream.errors import CheckpointError, FencedError, LearnerError, OffsetOutOfRangeError
from unstable_stream.events import (
    Checkpoint,
    CollapseWarning,
    DroppedStep,
    Event,
    GameOutcome,
    LearnerUpdate,
    RecordRejected,
    SeatResult,
    Step,
    StepsDropped,
    checkpoint_uid,
    encode_event,
    game_id,
    pack_floats,
    pack_tokens,
    trajectory_id,
)
from unstable_stream.inference.base_model import resolve_model
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Record, TopicPartition
from unstable_stream.log.reading import ends_of, events_to_end, read_to_end
from unstable_stream.log.records import record_from_event, source_header
from unstable_stream.log.saved_state import pack_state
from unstable_stream.log.topics import load_topics
from unstable_stream.reward_transformations import Sample, SamplingRewardTransform
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.workers import checkpoint_home
from unstable_stream.services.workers.game_schedule import GameSchedule
from unstable_stream.services.workers.learner import LearnerService
from unstable_stream.services.workers.learner_core import learner_settings
from unstable_stream.services.workers.learner_recovery import promised_steps
from unstable_stream.services.workers.learner_state import LearnerState, SavedLearner, unpack_learner

pytestmark = pytest.mark.longer

EventT = TypeVar("EventT", bound=Event)
RUN = "learner-test"
UPDATES = 4
BATCH = 16
STEPS = 80  # more than the buffer of 64 holds: some are dropped as overflow
TURNS = 4


class Killed(BaseException):
    """Stands for kill -9: nothing in the package catches it."""


def config(**learner: Any) -> RunConfig:
    return parse_config(
        {
            "model": "tiny-player",
            "seed": 3,
            "train_envs": [{"env_id": "TicTacToe-v0-train", "template": "tictactoe-board"}],
            "sampling": {"max_tokens": 4},
            "lora": {"lora_rank": 4, "lora_alpha": 8},
            "learner": {
                "iterations": UPDATES,
                "batch_size": BATCH,
                "mini_batch_size": 8,
                "optimizer_steps": 2,
                "learning_rate": 1e-2,
                **learner,
            },
        }
    )


def steps(count: int = STEPS, first_game: int = 0) -> list[Step]:
    rng = random.Random(first_game)
    built: list[Step] = []
    for index in range(count):
        game_index = first_game + index // TURNS
        game = game_id(RUN, "train", game_index)
        trajectory = trajectory_id(game, 0)
        reward = rng.uniform(-1, 1)
        length = rng.randint(1, 3)
        built.append(
            made(
                Step,
                run_id=RUN,
                occurred_at_ms=game_index,
                trajectory_id=trajectory,
                game_id=game,
                game_index=game_index,
                turn_index=index % TURNS,
                num_turns=TURNS,
                prompt_token_ids=pack_tokens(rng.choices(range(2, 30), k=rng.randint(4, 12))),
                completion_token_ids=pack_tokens(rng.choices(range(2, 30), k=length)),
                logprobs=pack_floats([-4.0] * length),
                raw_reward=reward,
                final_reward=reward,
                reward=reward,
            )
        )
    return built


def new_log(directory: Path) -> LocalLog:
    return LocalLog.open(directory / "log.sqlite", synchronous="NORMAL")


@contextlib.asynccontextmanager
async def begun(directory: Path, events: Sequence[Event] = ()) -> AsyncIterator[LocalLog]:
    """Open a new log with these events."""
    async with new_log(directory) as log:
        await log.create_topics(list(load_topics().values()))
        await append(log, events)
        yield log


async def append(log: EventLog, events: Sequence[Event]) -> None:
    await log.append([record_from_event(event) for event in events])


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    async with begun(tmp_path, steps()) as opened:
        yield opened


def service(directory: Path, settings: RunConfig) -> LearnerService:
    return LearnerService(settings, RUN, DataDir(directory), resolve_model("tiny-player"))


async def published(log: LocalLog, model: str | None = None) -> tuple[list[LearnerUpdate], list[Checkpoint]]:
    events = [event async for _, event in events_to_end(log, ("learner-updates", "checkpoints"))]
    updates = [event for event in events if isinstance(event, LearnerUpdate) and event.model == model]
    return updates, [event for event in events if isinstance(event, Checkpoint) and event.model == model]


async def learner_events(log: LocalLog, kind: type[EventT]) -> list[EventT]:
    """Return those of one kind that the learner published about its updates."""
    events = [event async for _, event in events_to_end(log, ("learner-updates",))]
    return [event for event in events if isinstance(event, kind)]


Result = tuple[list[tuple[int, tuple[str, ...], int, float]], list[str | None]]
"""What must not depend on interruptions: number, steps, drops, loss of each update; the weights' digests."""


async def curve(log: LocalLog, model: str | None = None) -> Result:
    updates, checkpoints = await published(log, model)
    return (
        [(update.update, update.step_ids, len(update.dropped), update.loss) for update in updates],
        [checkpoint.sha256 for checkpoint in checkpoints],
    )


Curves = Mapping[int, Result]
"""By ``save_every``."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Curves:
    """The curves of learners that nobody kills."""

    async def learn(save_every: int) -> Result:
        directory = tmp_path_factory.mktemp("uninterrupted")
        async with begun(directory, steps()) as log:
            await service(directory, config(save_every=save_every)).train(log, asyncio.Event())
            return await curve(log)

    return {save_every: asyncio.run(learn(save_every)) for save_every in (1, 3)}


async def test_n_iterations_make_n_updates_and_n_plus_one_checkpoints(uninterrupted: Curves) -> None:
    updates, digests = uninterrupted[1]
    assert [number for number, *_ in updates] == [1, 2, 3, 4]
    assert [len(ids) for _, ids, *_ in updates] == [BATCH] * UPDATES
    assert len({name for _, ids, *_ in updates for name in ids}) == BATCH * UPDATES
    assert [dropped for *_, dropped, _ in updates] == [STEPS - 4 * BATCH, 0, 0, 0]
    assert digests[0] is None, "the initial policy is the base model"
    assert len(set(digests)) == UPDATES + 1


@pytest.mark.parametrize(("for_forks", "kept", "left"), [(10, 2, (3, 4)), (2, 1, (2, 3, 4))])
async def test_old_optimizer_states_go_but_every_so_many_for_forks_and_the_run_still_resumes(
    log: LocalLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    for_forks: int,
    kept: int,
    left: tuple[int, ...],
) -> None:
    monkeypatch.setattr(checkpoint_home, "_KEPT_FOR_FORKS", for_forks)
    for iterations in (3, UPDATES):
        settings = config(keep_optimizer_states=kept, iterations=iterations)
        await service(tmp_path, settings).train(log, asyncio.Event())
    names = sorted(path.parent.name for path in tmp_path.glob("checkpoints/*/*/optimizer.pt"))
    assert [name.rpartition("-")[0] for name in names] == [checkpoint_uid(number) for number in left]
    assert [number for number, *_ in (await curve(log))[0]] == [1, 2, 3, 4]
    assert len(list(tmp_path.glob("checkpoints/*/*/adapter_model.safetensors"))) == UPDATES


KillAt = Callable[[LearnerService, pytest.MonkeyPatch], None]


def before_training(victim: LearnerService, patch: pytest.MonkeyPatch, *, after: bool = False) -> None:
    update = victim._learner.update

    def killed(batch: Sequence[Any], number: int, *rest: Any, **named: Any) -> Any:
        if number == 3 and not after:
            raise Killed
        result = update(batch, number, *rest, **named)
        if number == 3:
            raise Killed
        return result

    patch.setattr(victim._learner, "update", killed)


after_training = functools.partial(before_training, after=True)


def after_saving(victim: LearnerService, patch: pytest.MonkeyPatch) -> None:
    make = victim._update

    async def killed(*arguments: Any) -> Any:
        made = await make(*arguments)
        if made[0].update == 3:
            raise Killed
        return made

    patch.setattr(victim, "_update", killed)


def after_publishing(victim: LearnerService, patch: pytest.MonkeyPatch) -> None:
    collect = victim._collect

    async def killed(*arguments: Any) -> bool:
        if victim._learner.step == 3:
            raise Killed
        return await collect(*arguments)

    patch.setattr(victim, "_collect", killed)


async def killed(directory: Path, log: LocalLog, settings: RunConfig, kill: KillAt = before_training) -> None:
    """Train until the process is killed, at its third update."""
    victim = service(directory, settings)
    with pytest.MonkeyPatch.context() as patch:
        kill(victim, patch)
        with pytest.raises(Killed):
            await victim.train(log, asyncio.Event())


@pytest.mark.parametrize("save_every", [1, 3])
@pytest.mark.parametrize("kill", [before_training, after_training, after_saving, after_publishing])
async def test_killed_between_commit_steps_it_ends_with_the_same_weights(
    kill: KillAt, save_every: int, tmp_path: Path, log: LocalLog, uninterrupted: Curves
) -> None:
    await killed(tmp_path, log, config(save_every=save_every), kill)
    assert len((await published(log))[0]) == (3 if kill is after_publishing else 2)
    assert await service(tmp_path, config(save_every=save_every)).train(log, asyncio.Event()) == UPDATES
    assert await curve(log) == uninterrupted[save_every]


async def train_one(directory: Path, log: LocalLog, settings: RunConfig, *, at_once: bool = False) -> int:
    """Stop a learner in order when it has begun its next update, or at once; return the number of updates."""
    learner, stop = service(directory, settings), asyncio.Event()
    if at_once:
        stop.set()
    make = learner._update

    async def make_one(*arguments: Any) -> Any:
        stop.set()
        return await make(*arguments)

    learner._update = make_one  # type: ignore[method-assign, assignment]
    return await learner.train(log, stop)


@pytest.mark.parametrize("left", ["state", "nothing", "damage"])
async def test_every_restart_goes_on(tmp_path: Path, log: LocalLog, uninterrupted: Curves, left: str) -> None:
    """From what the checkpoint's learner knew, and from the whole history if that is gone or damaged."""
    for number in range(1, UPDATES + 1):
        for file in tmp_path.glob("checkpoints/*/*/learner-state.zlib"):
            if left == "damage":
                file.write_bytes(file.read_bytes()[:-1])
            elif left == "nothing":
                file.unlink()
        assert await train_one(tmp_path, log, config()) == number
    assert await curve(log) == uninterrupted[1]
    assert await service(tmp_path, config()).train(log, asyncio.Event()) == UPDATES, "nothing is left to do"
    assert len((await published(log))[0]) == UPDATES


def held_before_saving(
    learner: LearnerService, save: Callable[..., Awaitable[Checkpoint]]
) -> tuple[asyncio.Event, asyncio.Event]:
    """Let it save in another way, and late; return what tells that it has trained, and that it may save."""
    trained, may_save = asyncio.Event(), asyncio.Event()

    async def save_late(*arguments: Any) -> Checkpoint:
        trained.set()
        await may_save.wait()
        return await save(*arguments)

    learner._save = save_late  # type: ignore[method-assign, assignment]
    return trained, may_save


async def test_a_fenced_learner_that_saves_late_harms_no_published_checkpoint(tmp_path: Path) -> None:
    """It has drawn its batch from fewer steps than its successor, so its weights are others."""
    async with begun(tmp_path, steps(BATCH)) as log:
        old = service(tmp_path, config(save_every=1))
        trained, may_save = held_before_saving(old, old._save)
        fenced = asyncio.ensure_future(old.train(log, asyncio.Event()))
        await trained.wait()
        await append(log, steps(2 * BATCH, first_game=1000))
        assert await service(tmp_path, config(iterations=1)).train(log, asyncio.Event()) == 1
        may_save.set()
        with pytest.raises(FencedError):
            await fenced
        saved = list(tmp_path.glob("checkpoints/*/ckpt-*"))
        assert len(saved) == 2
        assert await service(tmp_path, config(iterations=2)).train(log, asyncio.Event()) == 2
        _, checkpoints = await published(log)
    assert [checkpoint.iteration for checkpoint in checkpoints] == [0, 1, 2]
    left = {str(path) for path in tmp_path.glob("checkpoints/*/ckpt-*")}
    assert left == {checkpoint.path for checkpoint in checkpoints[1:]}, "the late attempt was removed"


@pytest.mark.parametrize("fenced", [True, False])
async def test_a_fenced_learner_whose_files_are_gone_says_that_it_is_fenced(
    tmp_path: Path, log: LocalLog, fenced: bool
) -> None:
    """Its successor removes what it was writing, as something that nobody publishes."""
    old = service(tmp_path, config(save_every=1))
    gone = AsyncMock(side_effect=CheckpointError("could not be written: no such file"))
    trained, may_save = held_before_saving(old, gone)
    training = asyncio.ensure_future(old.train(log, asyncio.Event()))
    async with asyncio.timeout(60):
        await trained.wait()
        if fenced:
            assert await service(tmp_path, config(iterations=1)).train(log, asyncio.Event()) == 1
        may_save.set()
        with pytest.raises(FencedError if fenced else CheckpointError, match="no such file"):
            await training


async def test_another_adapter_than_the_one_it_began_with_is_refused(tmp_path: Path, log: LocalLog) -> None:
    root = tmp_path / "adapters"
    assert await service(root, config(iterations=1)).train(log, asyncio.Event()) == 1
    first, second = (await published(log))[1][1].path, tmp_path / "other"
    assert first is not None
    shutil.copytree(first, second)
    weights = second / "adapter_model.safetensors"
    tensors = load_file(weights)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, weights)
    async with begun(tmp_path / "second") as other:
        begun_from = config(initial_lora_path=first)
        assert await train_one(tmp_path / "second", other, begun_from, at_once=True) == 0
        changed = service(tmp_path / "second", config(initial_lora_path=str(second)))
        with pytest.raises(LearnerError, match=r"began with the weights .*Put the file back"):
            await changed.train(other, asyncio.Event())
        await train_one(tmp_path / "second", other, begun_from, at_once=True)


async def test_steps_gone_from_the_log_are_an_error_that_says_so(tmp_path: Path, log: LocalLog) -> None:
    settings = config(save_every=3)
    await killed(tmp_path, log, settings)
    await log.delete_before(await log.end_offsets("steps"))
    with pytest.raises(LearnerError, match=r"update 1 cannot be made again: 16 of its steps are gone.*fork"):
        await service(tmp_path, settings).train(log, asyncio.Event())


async def test_stopped_in_order_it_goes_on_without_the_steps_it_has_trained(
    tmp_path: Path, log: LocalLog, uninterrupted: Curves
) -> None:
    settings = config(save_every=3)
    assert await train_one(tmp_path, log, settings) == 1
    assert [checkpoint.iteration for checkpoint in (await published(log))[1]] == [0, 1]
    await log.delete_before(await log.end_offsets("steps"))
    await append(log, steps(first_game=1000))
    assert await service(tmp_path, settings).train(log, asyncio.Event()) == UPDATES
    updates, checkpoints = await published(log)
    assert [update.update for update in updates] == [1, 2, 3, 4]
    assert [checkpoint.iteration for checkpoint in checkpoints] == [0, 1, 3, 4]
    assert (await curve(log))[0][0] == uninterrupted[3][0][0]


async def test_stopped_before_it_has_read_on_it_forgets_no_step(
    tmp_path: Path, log: LocalLog, uninterrupted: Curves
) -> None:
    settings = config(save_every=3)
    await killed(tmp_path, log, settings)
    # Stopped while it trains again what was not saved.
    assert await train_one(tmp_path, log, settings, at_once=True) == 2
    assert await service(tmp_path, settings).train(log, asyncio.Event()) == UPDATES
    losses, weights = await curve(log)
    assert (losses, weights[-1]) == (uninterrupted[3][0], uninterrupted[3][1][-1])


async def test_updates_that_are_enough_already_get_their_checkpoint(tmp_path: Path, log: LocalLog) -> None:
    await killed(tmp_path, log, config(save_every=3))
    assert await service(tmp_path, config(save_every=3, iterations=2)).train(log, asyncio.Event()) == 2
    assert [checkpoint.iteration for checkpoint in (await published(log))[1]] == [0, 2]


class EarlyWatch(CollapseWatch):
    """Sees a sign in update 2."""

    def apply(self, update: int, metrics: Mapping[str, float]) -> list[Sign]:
        return [Sign(2, 2, "certain", "entropy", 0.01, 0.03, "it is certain")] if update == 2 else []


@pytest.fixture
def _sees_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstable_stream.services.workers.learner_state.CollapseWatch", EarlyWatch)


@pytest.mark.usefixtures("_sees_early")
@pytest.mark.parametrize("save_every", [1, 4])
async def test_a_lowered_step_is_recorded_and_repeated(
    tmp_path: Path, log: LocalLog, save_every: int
) -> None:
    """Killed after update 3; with 4 it makes updates 1 to 3 again. Told to only warn, it keeps its step."""
    lowering = config(save_every=save_every, on_collapse="lower-step")
    await killed(tmp_path, log, lowering, after_publishing)
    assert await service(tmp_path, config(save_every=save_every)).train(log, asyncio.Event()) == UPDATES
    rates = [update.metrics["learning_rate"] for update in (await published(log))[0]]
    assert rates == [1e-2, 1e-2, 5e-3, 5e-3]
    (warning,) = await learner_events(log, CollapseWarning)
    assert (warning.update, warning.action, warning.learning_rate_factor) == (2, "lower-step", 0.5)
    assert (warning.began, warning.fork_at) == (2, 1 if save_every == 1 else 0)
    async with begun(tmp_path / "straight", steps()) as straight:
        await service(tmp_path / "straight", lowering).train(straight, asyncio.Event())
        assert await curve(straight) == await curve(log)


@pytest.mark.usefixtures("_sees_early")
async def test_told_to_stop_it_ends_after_the_update_and_can_go_on(tmp_path: Path, log: LocalLog) -> None:
    stopping = config(on_collapse="stop")
    assert await service(tmp_path, stopping).train(log, asyncio.Event()) == 2
    assert [warning.action for warning in await learner_events(log, CollapseWarning)] == ["stop"]
    assert await service(tmp_path, stopping).train(log, asyncio.Event()) == UPDATES  # the sign is known now
    assert len(await learner_events(log, CollapseWarning)) == 1


def lost_game(index: int) -> GameOutcome:
    game = game_id(RUN, "train", index)
    return made(
        GameOutcome,
        run_id=RUN,
        occurred_at_ms=index,
        game_id=game,
        game_index=index,
        seed=index,
        seats=(
            made(SeatResult, reward=-1.0, rank=1, trained=True, turns=4, invalid_moves=1),
            SeatResult(seat=1, model_uid="random-legal", kind="scripted", reward=1.0, rank=0, turns=4),
        ),
        reason="invalid-move",
        unparsed={0: 2},
    )


async def test_games_are_counted_once_whatever_restarts(tmp_path: Path) -> None:
    async with begun(tmp_path) as log:
        await log.append([record_from_event(lost_game(index)) for index in range(6)])
        await append(log, steps(BATCH))
        assert await train_one(tmp_path, log, config()) == 1
        await log.append([record_from_event(lost_game(index)) for index in range(6, 9)])
        await append(log, steps(3 * BATCH, first_game=1000))
        assert await service(tmp_path, config()).train(log, asyncio.Event()) == UPDATES
        updates, _ = await published(log)
    assert sum(update.metrics.get("fixed_games", 0.0) for update in updates) == 9
    counted = next(update.metrics for update in updates if "fixed_games" in update.metrics)
    assert (counted["legal_fraction"], counted["parsed_fraction"]) == (0.75, 0.5)
    assert (counted["fixed_win_rate"], counted["fixed_loss_rate"]) == (0.0, 1.0)


def trajectory_record(index: int) -> Record:
    view = trajectory_id(game_id(RUN, "train", index), 0)
    headers = {"ce_id": view.encode(), "ce_source": source_header(RUN)}
    return Record("trajectories", f"{RUN}/TicTacToe-v0-train", b"{}", headers)


async def shape(log: LocalLog, index: int, *, rejected: bool = False, unreadable: bool = False) -> None:
    """Do what a worker and the reward processor do about a finished game.

    A rejected one gives no step; ``unreadable``: because it is no event.
    """
    stored = await log.append([record_from_event(lost_game(index)), trajectory_record(index)])
    at, offset = stored[1]
    letter = made(
        RecordRejected,
        run_id=RUN,
        consumer=f"reward-processor/{RUN}",
        topic=at.topic,
        partition=at.partition,
        offset=offset,
        reason="impossible",
        record_value=trajectory_record(index).value if unreadable else encode_event(make_trajectory(index)),
        record_headers=dict(trajectory_record(index).headers),
    )
    shaped: list[Event] = [letter] if rejected else [*steps(TURNS, first_game=index)]
    producer = await log.producer("reward-processor")
    async with producer.transaction() as transaction:
        await transaction.append([record_from_event(event) for event in shaped])
        await transaction.commit_positions(f"reward-processor/{RUN}", {at: offset + 1})
    await producer.close()


async def pending(log: LocalLog) -> int:
    """Return what the collector believes."""
    schedule = GameSchedule(RUN, config())
    async for _, event in events_to_end(log, ("game-outcomes", "learner-updates")):
        schedule.apply(event)
    return schedule.pending.total()


@pytest.mark.parametrize("kept", [0, 1])
async def test_steps_that_expired_become_recorded_drops_and_the_run_goes_on(
    tmp_path: Path, kept: int
) -> None:
    """One game is not shaped yet, and one was set aside: their steps have not expired."""
    async with begun(tmp_path) as log:
        games = 3 * BATCH // TURNS
        for index in range(games):
            await shape(log, index)
        await shape(log, games, rejected=True)
        await log.append([record_from_event(lost_game(games + 1)), trajectory_record(games + 1)])
        assert await train_one(tmp_path, log, config()) == 1
        trained = {name for update in (await published(log))[0] for name in update.step_ids}
        assert len(trained) == BATCH
        ends = await log.end_offsets("steps")
        await log.delete_before({at: end // (1 + kept) for at, end in ends.items()})
        left = {record.headers["ce_id"].decode() async for record in read_to_end(log, ("steps",))}
        every = {step.event_id for index in range(games) for step in steps(TURNS, first_game=index)}
        expired = every - trained - left
        assert (bool(expired), bool(left)) == (True, bool(kept))
        assert await pending(log) == 3 * BATCH - BATCH + 2 * TURNS

        assert await train_one(tmp_path, log, config(), at_once=True) == 1
        (event,) = await learner_events(log, StepsDropped)
        assert event.dropped == tuple(DroppedStep(name, "expired") for name in sorted(expired))
        assert event.update == 2
        assert await pending(log) == len(left - trained) + 2 * TURNS

        await append(log, steps(TURNS, first_game=games + 1))
        for index in range(1000, 1000 + 3 * BATCH // TURNS):
            await shape(log, index)
        # The first game's steps come again; they are no longer wanted.
        await append(log, steps(TURNS))
        assert await service(tmp_path, config()).train(log, asyncio.Event()) == UPDATES
        assert len(await learner_events(log, StepsDropped)) == 1
        named = [name for update in (await published(log))[0] for name in update.step_ids]
        assert len(set(named)) == len(named) == UPDATES * BATCH
        assert not expired.intersection(named)


async def test_steps_of_trajectories_that_cannot_be_decoded_become_recorded_drops(tmp_path: Path) -> None:
    async with begun(tmp_path) as log:
        await shape(log, 0, rejected=True, unreadable=True)
        for index in range(1, 1 + 2 * BATCH // TURNS):
            await shape(log, index)
        await shape(log, 500, rejected=True)  # decodable: the collector counts it as set aside
        assert await train_one(tmp_path, log, config()) == 1
        (event,) = await learner_events(log, StepsDropped)
        promised = [step.event_id for step in steps(TURNS, first_game=0)]
        assert event.dropped == tuple(DroppedStep(name, "unreadable") for name in sorted(promised))
        assert await pending(log) == BATCH + TURNS

        # What the dead letters said is kept with the checkpoint: a restart does not look for it again.
        assert saved_at(tmp_path, 1).offsets[TopicPartition("dead-letters", 0)] == 2
        await shape(log, 501, rejected=True, unreadable=True)
        assert await service(tmp_path, config(iterations=2)).train(log, asyncio.Event()) == 2
        assert [len(each.dropped) for each in await learner_events(log, StepsDropped)] == [TURNS, TURNS]
        assert await pending(log) == TURNS


async def test_a_training_game_promises_its_steps_once_and_an_evaluation_none(tmp_path: Path) -> None:
    lost, evaluated = lost_game(0), msgspec.structs.replace(lost_game(1), event_id="evaluation", split="eval")
    async with begun(tmp_path, (lost, evaluated, lost)) as log:
        wanted = {trajectory_id(game.game_id, 0) for game in (lost, evaluated)}
        found = await promised_steps(log, LearnerState(config(), RUN, None), wanted)
    assert found == {0: [step.event_id for step in steps(TURNS)]}


@pytest.mark.parametrize("restarted", [False, True])
async def test_steps_that_are_all_too_stale_are_dropped_and_the_run_goes_on(
    tmp_path: Path, restarted: bool
) -> None:
    """Steps must be on-policy, and no game starts while 32 are pending."""
    late = steps(3 * BATCH)  # of version 0: the first update trains 16, and 32 are left
    fresh = [msgspec.structs.replace(step, policy_version=1) for step in steps(BATCH, first_game=1000)]
    tree = config(iterations=2).model_dump(mode="json", exclude_unset=True)
    tree |= {"buffer": {"max_staleness": 0}, "collector": {"max_pending_steps": 2 * BATCH}}
    strict, stop = parse_config(tree), asyncio.Event()

    async with begun(tmp_path, late) as log:
        training = asyncio.create_task(service(tmp_path, strict).train(log, stop))
        async with asyncio.timeout(60):
            while not (dropped := await learner_events(log, StepsDropped)):
                await asyncio.wait({training}, timeout=0.02)
                assert not training.done(), training.result()
        (drops,) = dropped
        assert (drops.update, {drop.reason for drop in drops.dropped}) == (2, {"stale"})
        if restarted:
            stop.set()
            assert await training == 1
            training = asyncio.create_task(service(tmp_path, strict).train(log, asyncio.Event()))
        await append(log, fresh)
        assert await training == 2
        updates, _ = await published(log)
        assert await learner_events(log, StepsDropped) == dropped
    assert set(updates[1].step_ids) == {step.event_id for step in fresh}
    named = [*updates[0].step_ids, *(drop.step_id for drop in drops.dropped)]
    assert sorted(named) == sorted(step.event_id for step in late)
    assert not any(update.dropped for update in updates)


def saved_at(directory: Path, update: int) -> SavedLearner:
    (file,) = directory.glob(f"checkpoints/*/{checkpoint_uid(update)}-*/learner-state.zlib")
    return unpack_learner(file.read_bytes(), RUN, update)


async def test_a_restart_needs_nothing_from_before_its_checkpoint(
    tmp_path: Path, log: LocalLog, uninterrupted: Curves
) -> None:
    """It is deleted from the log: a learner that folded the whole history would use steps twice."""
    await log.append([record_from_event(lost_game(index)) for index in range(STEPS // TURNS)])
    assert await service(tmp_path, config(iterations=2)).train(log, asyncio.Event()) == 2
    saved = saved_at(tmp_path, 2)
    assert len(saved.pending) == 64 - 2 * BATCH
    await log.delete_before(saved.first_needed())
    for topic in ("learner-updates", "game-outcomes"):
        await log.delete_before({at: saved.offsets[at] for at in await log.end_offsets(topic)})
    assert await service(tmp_path, config()).train(log, asyncio.Event()) == UPDATES
    assert (await curve(log))[0] == uninterrupted[1][0][1:]
    assert await learner_events(log, StepsDropped) == []


async def test_another_log_and_one_that_lost_its_end_stop_the_learner(tmp_path: Path, log: LocalLog) -> None:
    assert await service(tmp_path, config(iterations=2)).train(log, asyncio.Event()) == 2
    saved = saved_at(tmp_path, 2)
    (file,) = tmp_path.glob(f"checkpoints/*/{checkpoint_uid(2)}-*/learner-state.zlib")

    async def refused(**changed: Any) -> str:
        file.write_bytes(pack_state(msgspec.structs.replace(saved, **changed)))
        with pytest.raises((LearnerError, OffsetOutOfRangeError)) as error:
            await service(tmp_path, config()).train(log, asyncio.Event())
        return str(error.value)

    other = await refused(log_id="other")
    assert re.search("(?s)read log other, and this is log.*fork learner-test --at 2", other)
    beyond = await refused(positions=[(topic, at, end + 1000) for topic, at, end in saved.positions])
    assert re.search("(?s)out of range.*Restore a copy of the log", beyond)


async def test_what_is_acknowledged_and_cannot_be_read_yet_is_not_published_again(tmp_path: Path) -> None:
    """One that starts again behind another producer's open transaction waits for what it had published."""
    store = Store(tmp_path, transaction_markers=True)
    log = SimulatedLog(store)
    await log.create_topics(list(load_topics().values()))
    await append(log, steps(3 * BATCH))
    held = await ends_of(log, (Checkpoint.TOPIC, LearnerUpdate.TOPIC))
    for at in held:
        await store.hold_back(at)

    assert await service(tmp_path, config(iterations=1)).train(log, asyncio.Event()) == 1
    restarted = service(tmp_path, config(iterations=1))
    for at in held:
        asyncio.get_running_loop().call_later(0.3, store.let_go, at)
    assert await restarted.train(SimulatedLog(store), asyncio.Event()) == 1
    updates, checkpoints = await published(log)
    assert ([each.update for each in updates], [each.iteration for each in checkpoints]) == ([1], [0, 1])
    await store.local.close()


def test_the_schedule_of_the_learning_rate_is_the_configured_one() -> None:
    def factors(**learner: Any) -> list[float]:
        schedule = learner_settings(config(iterations=5, **learner)).lr_schedule
        return [schedule.factor(update) for update in (1, 3, 5)]

    assert factors() == [1.0, 1.0, 1.0]
    assert factors(lr_final_fraction=0.5) == pytest.approx([1.0, 0.75, 0.5])
    falling = factors(lr_final_fraction=0.0, lr_schedule="cosine", lr_warmup_updates=2)
    assert falling == pytest.approx([0.5, 0.5, 0.0])


class RunningMean(SamplingRewardTransform):
    """Subtracts the mean of the batches before: what it learned decides on every later advantage."""

    def __init__(self) -> None:
        self.mean, self.batches = 0.0, 0

    def __call__(self, steps: list[Sample], env_id: str | None = None) -> list[Sample]:
        mean = sum(sample.reward for sample in steps) / len(steps)
        for sample in steps:
            sample.reward -= self.mean
        self.batches += 1
        self.mean += (mean - self.mean) / self.batches
        return steps

    def state(self) -> dict[str, Any]:
        return {"mean": self.mean, "batches": self.batches}

    def load_state(self, state: dict[str, Any]) -> None:
        self.mean, self.batches = state["mean"], state["batches"]


class Forgetful(RunningMean):
    """The same, but it does not tell what it learned."""

    state = SamplingRewardTransform.state
    load_state = SamplingRewardTransform.load_state


def sampled_by(transform: str, **learner: Any) -> RunConfig:
    rewards = {"sampling": [{"type": f"{__name__}:{transform}"}], "step_texts": False}
    return RunConfig.model_validate(config(**learner).model_dump() | {"rewards": rewards})


@pytest.mark.parametrize("save_every", [1, 3])
async def test_a_sampling_transformation_that_learns_goes_on(
    tmp_path: Path, log: LocalLog, save_every: int
) -> None:
    straight = tmp_path / "straight"
    settings = sampled_by("RunningMean", save_every=save_every)
    async with begun(straight, steps()) as other:
        await service(straight, settings).train(other, asyncio.Event())
        updates, weights = await curve(other)
    for number in range(1, UPDATES + 1):
        place = tmp_path if number % 2 else straight / ".."  # the same directory, reached by another path
        assert await train_one(place, log, settings) == number
    found, saved = await curve(log)
    assert (found, saved[-1]) == (updates, weights[-1])


async def test_one_that_does_not_tell_what_it_learned_is_warned_of(tmp_path: Path, log: LocalLog) -> None:
    with structlog.testing.capture_logs() as lines:
        await service(tmp_path, sampled_by("Forgetful")).train(log, asyncio.Event())
    (warned,) = [line for line in lines if line["event"] == "a restart would not give the same advantages"]
    assert "Forgetful changes its attributes and has no state()" in warned["reason"]
