"""Forks: a new run that begins after an update of another run.

A fork takes over from its parent: the policy with optimizer state, schedule and random states, the number of
the update, and the earlier checkpoints as opponents. It also takes over the number of the next training game,
so that its seeds are new. Steps that waited in the parent's buffer stay with the parent: a run trains only on
steps of its own games. Where several models are trained, all of them begin after their update of that number.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec

from unstable_stream.console import get_logger
from unstable_stream.errors import ConfigError, RunError, StoreError
from unstable_stream.events import Checkpoint, GameStarted, checkpoint_uid, named_id
from unstable_stream.log.port import EventLog
from unstable_stream.log.stores.checkpoint_files import OPTIMIZER_FILE, has_file, hold_optimizer_state
from unstable_stream.runs.base_model import keeps_base_model
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.history import find_run
from unstable_stream.runs.resume import value_at
from unstable_stream.runs.starts import run_events

_log = get_logger(__name__)
_KEPT_KEYS = ("model_fingerprint", "seed", "lora", "learner.parameters", "learner.initial_lora_path")
"""The configuration keys that a checkpoint depends on, beside what trained models play and began with."""


@dataclass(frozen=True, slots=True)
class Fork:
    """The point at which a new run begins."""

    parent_run_id: str
    update: int
    """The parent's update after which it begins; 0 is the initial policy."""
    games: int
    """The number of training games that the parent had started at this point."""
    checkpoints: tuple[Checkpoint, ...]
    """The parent's checkpoints up to this point, in order; those of one trained model, if it was named."""
    model: str | None = None
    """The trained model that was named; ``None``: none was, or the parent trains one."""

    @property
    def name(self) -> str:
        """``RUN@UPDATE``, or ``RUN@MODEL/UPDATE``."""
        of_model = f"{self.model}/" if self.model else ""
        return f"{self.parent_run_id}@{of_model}{self.update}"

    @property
    def chosen(self) -> list[Checkpoint]:
        """The checkpoints that it begins with, one of each trained model."""
        return [checkpoint for checkpoint in self.checkpoints if checkpoint.iteration == self.update]

    def checkpoints_of(self, run_id: str, now_ms: int) -> list[Checkpoint]:
        """Return the checkpoints as events of the new run; the files are not moved."""
        return [
            msgspec.structs.replace(
                checkpoint,
                event_id=named_id(run_id, "checkpoint", checkpoint.iteration, model=checkpoint.model),
                run_id=run_id,
                occurred_at_ms=now_ms,
            )
            for checkpoint in self.checkpoints
        ]

    def hold_optimizer_state(self, run_id: str) -> None:
        """Give each optimizer state that the new run begins with a second name beside it: its learner may
        need it until it has saved one of its own, and the parent's learner deletes no state that has one.

        Raises:
            RunError: the parent has just deleted one.
        """
        for chosen in self.chosen:
            if chosen.path is None:
                continue
            try:
                hold_optimizer_state(chosen.path, run_id)
            except FileNotFoundError as error:
                raise _without_state(chosen, self.parent_run_id) from error
            except (OSError, StoreError) as error:
                _log.warning("the parent may delete the optimizer state", path=chosen.path, reason=str(error))


def _without_state(checkpoint: Checkpoint, run_id: str) -> RunError:
    return RunError(
        f"the optimizer state of {checkpoint.model_uid} of run {run_id} was deleted (see "
        "learner.keep_optimizer_states): fork at a newer update, or start a run with "
        f"learner.initial_lora_path={checkpoint.path}"
    )


async def find_fork(
    log: EventLog,
    run_id: str,
    update: int | None = None,
    *,
    model: str | None = None,
    to_train: bool = True,
    located: Callable[[str], str] = str,
    dropped: Collection[str] = (),
) -> tuple[Fork, RunConfig]:
    """Return the point of a run to fork at, by default its newest checkpoint, and the run's configuration.

    A negative ``update`` counts from the newest checkpoint, -1.

    A fork that is not ``to_train`` needs no optimizer state, and takes one trained model; where there are
    several, ``model`` names it. One to train takes all of them, by default after the newest update of which
    all have a checkpoint.

    ``located`` returns where the checkpoint is that an event names. The runs ``dropped`` from the archive are
    not meant.

    Raises:
        RunError: there is no such run or no checkpoint of that update, or its files are missing.
    """
    run_id, config = await find_run(log, run_id, dropped)
    by_model: dict[str | None, dict[int, Checkpoint]] = {
        name: {} for name in _wanted_models(run_id, config, model, to_train=to_train)
    }
    async for _, event in run_events(log, (Checkpoint.TOPIC,), run_id):
        if isinstance(event, Checkpoint) and event.model in by_model:
            if event.path is not None:
                event = msgspec.structs.replace(event, path=located(event.path))
            by_model[event.model].setdefault(event.iteration, event)
    common = set.intersection(*(set(found) for found in by_model.values()))
    if not common:
        raise RunError(f"run {run_id} has no checkpoint yet, so there is nothing to fork")
    if update is None or -len(common) <= update < 0:
        update = sorted(common)[-1 if update is None else update]
    if update not in common:
        raise RunError(
            f"run {run_id} has no checkpoint of update {update}; it has those of {_listed(sorted(common))}"
        )
    chosen = [found[update] for found in by_model.values()]
    for each in chosen:
        if each.path is not None and not await asyncio.to_thread(has_file, each.path):
            raise RunError(
                f"the files of {each.model_uid} of run {run_id} are not at {each.path}: put them back, "
                "or fork at another update"
            )
        of_learner = each.path if to_train else None
        if of_learner is not None and not await asyncio.to_thread(has_file, of_learner, OPTIMIZER_FILE):
            raise _without_state(each, run_id)
    games = 0
    async for _, event in run_events(log, (GameStarted.TOPIC,), run_id):
        # The checkpoint's time is recorded; the highest number of the games before it counts.
        if not isinstance(event, GameStarted) or event.split != "train":
            continue
        if event.occurred_at_ms <= max(each.occurred_at_ms for each in chosen):
            games = max(games, event.game_index + 1)
    fork = Fork(
        parent_run_id=run_id,
        update=update,
        games=games,
        checkpoints=tuple(
            checkpoint
            for found in by_model.values()
            for number, checkpoint in sorted(found.items())
            if number <= update
        ),
        model=model,
    )
    return fork, config


def _wanted_models(
    run_id: str, config: RunConfig, model: str | None, *, to_train: bool
) -> tuple[str | None, ...]:
    names = [each.name for each in config.trained_models]
    if model is not None and model not in names:
        there = f"it trains {', '.join(names)}" if names else "it trains one, without a name"
        raise RunError(f"run {run_id} trains no model {model!r}; {there}")
    if not to_train and len(names) > 1 and model is None:
        raise RunError(
            f"run {run_id} trains {', '.join(names)}: name one of them, e.g. {run_id}@{names[0]}, or with an "
            f"update {run_id}@{names[0]}/20"
        )
    return config.model_names if model is None else (model,)


def check_fork(fork: Fork, config: RunConfig, changed: RunConfig, *, to_train: bool = True) -> None:
    """Refuse a configuration that a fork of a run with ``config`` cannot have.

    One that is not ``to_train`` may have no update left to make.

    Raises:
        ConfigError: it changes a key that the checkpoint depends on, or no update is left to make.
    """
    bound = [] if keeps_base_model(config, changed) else ["model"]
    before, after = config.model_dump(mode="json"), changed.model_dump(mode="json")
    bound += [key for key in _KEPT_KEYS if value_at(before, key) != value_at(after, key)]
    if changed.seats_by_model != config.seats_by_model:
        bound.append("trained_models (names, seats and env_ids)")
    bound += [
        f"trained_models.{name}.initial_lora_path"
        for name in set(config.seats_by_model) & set(changed.seats_by_model)
        if _began_with(changed, name) != _began_with(config, name)
    ]
    if bound:
        raise ConfigError(
            f"a fork keeps its parent's {', '.join(bound)}: {checkpoint_uid(fork.update)} was made with "
            "them; start a new run instead, with learner.initial_lora_path for the adapter alone"
        )
    if to_train and changed.learner.iterations <= fork.update:
        enough = fork.update + config.learner.iterations
        raise ConfigError(
            f"nothing is left to train: the fork begins after update {fork.update} and learner.iterations = "
            f"{changed.learner.iterations}; add --set learner.iterations={enough}"
        )


def _began_with(config: RunConfig, model: str) -> str | None:
    return config.for_model(model).learner.initial_lora_path


def _listed(numbers: Sequence[int]) -> str:
    if len(numbers) > 12:
        return f"{', '.join(map(str, numbers[:6]))} … {', '.join(map(str, numbers[-6:]))}"
    return ", ".join(map(str, numbers))
