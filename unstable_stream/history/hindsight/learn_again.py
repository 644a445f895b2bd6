"""Train again on the batches of a recorded run, with other algorithms or rates, and compare.

No game is played and no run is recorded. Each learner begins as the run began, and takes the steps of the
run's updates in the order in which they were drawn, cut into batches of its own size. So with the run's own
configuration every number comes out as recorded, and what comes out otherwise is due to what was changed. It
is all a function of the record, the configurations and the code: a second time gives the same bytes, wherever
numbers of two updates can be equal bit by bit at all
(:mod:`unstable_stream.services.workers.recorded_updates`).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from unstable_stream.algorithms.update_decisions import UpdateDecision, decide_batch, drawn_ids
from unstable_stream.errors import ConfigError, LearnerError, RunError
from unstable_stream.events import Checkpoint, CollapseWarning, LearnerUpdate, Step
from unstable_stream.history.hindsight.comparison import RECORDED, FedUpdate
from unstable_stream.history.hindsight.offline import check_scores
from unstable_stream.log.reading import readable_events
from unstable_stream.log.stores.checkpoint_files import opened_checkpoint
from unstable_stream.reward_transformations import SamplingRewardTransform, build_sampling
from unstable_stream.runs.code import find_code
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.overlay import as_recorded, overlaid
from unstable_stream.runs.resume import value_at
from unstable_stream.services.streams.ordered_history import History, RecordFilter, Slice, merged

if TYPE_CHECKING:
    from unstable_stream.algorithms.learners.standard_learner import StandardLearner

_CHANGEABLE: Final = ("name", "seed", "log", "algorithm", "learner", "lora", "rewards.sampling")
"""The keys that change what is made of the steps of a run."""


@dataclass
class TrainingRecord:
    """The training of a run, or of one trained model of it, as it is recorded."""

    run_id: str
    model: str | None
    updates: list[LearnerUpdate] = field(default_factory=list)
    """In order."""
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    warnings: list[CollapseWarning] = field(default_factory=list)

    @classmethod
    async def read(cls, history: History, run_id: str, model: str | None, updates: int | None) -> Self:
        """Read the first ``updates`` of a run, or all.

        Raises:
            RunError: there is none.
        """
        made = cls(run_id, model)
        found: dict[int, LearnerUpdate] = {}
        topics = (LearnerUpdate.TOPIC, Checkpoint.TOPIC)
        async for piece in merged(history, Slice(topics=topics, filter=RecordFilter(run_id))):
            for event in readable_events(piece.records):
                if getattr(event, "model", None) != model:
                    continue
                if isinstance(event, LearnerUpdate):
                    found.setdefault(event.update, event)
                elif isinstance(event, Checkpoint):
                    made.checkpoints.setdefault(event.iteration, event)
                elif isinstance(event, CollapseWarning):
                    made.warnings.append(event)
        made.updates = [found[number] for number in sorted(found)][:updates]
        if not made.updates:
            raise RunError(f"run {run_id} has made no update yet, so there is nothing to learn from")
        return made

    def fed(self) -> list[FedUpdate]:
        """Return the record's own updates, of the policies that played."""
        return [
            FedUpdate(
                RECORDED,
                update.update,
                len(drawn_ids(update)),
                None,
                None,
                saved.sha256 if (saved := self.checkpoints.get(update.update)) else None,
                update.metrics,
            )
            for update in self.updates
        ]

    def rate_factor(self, update: int) -> float:
        """Return what collapse warnings had left of the learning rate."""
        lowered = [each.learning_rate_factor for each in self.warnings if each.update < update]
        return lowered[-1] if lowered else 1.0


def variant_config(
    recorded: Mapping[str, Any],
    changes: Mapping[str, Any],
    overrides: Sequence[str],
    model: str | None,
    origin: str,
) -> RunConfig:
    """Return the configuration of a learner: that of the run, changed where it concerns learning.

    Steps keep the rewards that they were shaped with, also if a preset of the changes shapes them otherwise.

    Raises:
        ConfigError: a change that would change nothing here, or a configuration that cannot be.
    """
    begun = parse_config(as_recorded(recorded))
    check_scores(begun)
    alone = overlaid(begun.model_dump(mode="json"), {"learner": {"num_learners": 1}})
    config = parse_config(overlaid(alone, changes), overrides, origin=origin)
    rewards = begun.rewards.model_copy(update={"sampling": config.rewards.sampling})
    before, after = begun.model_dump(mode="json"), config.model_dump(mode="json")
    named = [*_keys(changes), *(each.partition("=")[0].strip() for each in overrides)]
    for key in named:
        free = any(f"{key}.".startswith(f"{allowed}.") for allowed in _CHANGEABLE)
        if not free and value_at(before, key) != value_at(after, key):
            raise ConfigError(
                f"{origin}: {key} changes nothing here, where no game is played and steps stay as they were "
                f"recorded: leave it out. What can be changed is {', '.join(_CHANGEABLE)}"
            )
    return config.model_copy(update={"rewards": rewards}).for_model(model)


def _keys(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted names of a table's values."""
    return [
        name
        for key, value in tree.items()
        for name in (_keys(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [f"{prefix}{key}"])
    ]


async def learn_again(
    history: History,
    record: TrainingRecord,
    name: str,
    config: RunConfig,
    *,
    located: Callable[[str], str] = str,
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> tuple[list[FedUpdate], str]:
    """Feed the history to a new learner; return its updates, and why it could not go on; empty: it could.

    Args:
        history: the source of the steps.
        record: the updates whose steps are fed.
        name: of the learner.
        config: see :func:`variant_config`.
        located: returns where the checkpoint is that an event names.
        progress: called with the name, the updates done and their number.

    Raises:
        RunError: steps are gone, or a fork's first checkpoint.
        LearnerError: it cannot be made here; says why.
    """
    find_code(config)
    number = record.updates[0].update
    transform = build_sampling(list(config.rewards.sampling))
    learner = await asyncio.to_thread(_begin, record, config, transform, located)
    size, waiting = config.learner.batch_size, list[Step]()
    most = sum(len(drawn_ids(each)) for each in record.updates) // size
    made: list[FedUpdate] = []
    async with aclosing(_batches(history, record)) as batches:
        async for drawn in batches:
            waiting += drawn
            while len(waiting) >= size and number <= config.learner.iterations:
                batch, waiting = waiting[:size], waiting[size:]
                decision = decide_batch(batch, number, transform, learner.algorithm.admit)
                rate = record.rate_factor(number)
                try:
                    fed = await asyncio.to_thread(_update, learner, name, batch, decision, number, rate)
                except LearnerError as error:  # a rate at which numbers overflow is a result too
                    return made, str(error)
                made.append(fed)
                number += 1
                progress(name, len(made), min(most, config.learner.iterations))
    return made, ""


def _begin(
    record: TrainingRecord,
    config: RunConfig,
    transform: SamplingRewardTransform,
    located: Callable[[str], str],
) -> "StandardLearner":
    from unstable_stream.services.workers.recorded_updates import learner_to_repeat, load_training

    first = record.updates[0]
    learner = learner_to_repeat(config, first)
    if first.update > 1:  # a fork
        start = record.checkpoints.get(first.update - 1)
        if start is None or start.path is None:
            raise RunError(
                f"run {record.run_id} begins after update {first.update - 1}, and that checkpoint is not here"
            )
        with opened_checkpoint(located(start.path), start.sha256, to_train=True) as directory:
            load_training(learner, transform, start, directory)
    return learner


def _update(
    learner: "StandardLearner",
    name: str,
    batch: Sequence[Step],
    decision: UpdateDecision,
    number: int,
    rate_factor: float,
) -> FedUpdate:
    """Weigh a batch by the policy as it is, then train on it."""
    rewards = np.array([step.reward for step in batch])
    trained = np.array([admission == "train" for admission in decision.admissions])
    gain = effective = None
    if trained.any():
        samples = [sample for sample, kept in zip(decision.samples, trained, strict=True) if kept]
        ratios = learner.answer_log_ratios(samples)
        weights = np.exp(ratios - ratios.max())
        weights /= weights.sum()
        gain = float(weights @ rewards[trained] - rewards[trained].mean())
        effective = float(1.0 / (weights @ weights) / len(weights))
    result = learner.update(decision.samples, number, decision.admissions, learning_rate_factor=rate_factor)
    metrics = {**result.metrics, **decision.metrics, "samples_seen": float(learner.samples_seen)}
    return FedUpdate(name, number, len(batch), gain, effective, learner.weights_sha256(), metrics)


async def _batches(history: History, record: TrainingRecord) -> AsyncGenerator[list[Step], None]:
    """Yield the steps that each update drew, in its order; steps of later updates are held meanwhile."""
    needed = {step_id for update in record.updates for step_id in drawn_ids(update)}
    held: dict[str, Step] = {}
    wanted = Slice(topics=(Step.TOPIC,), filter=RecordFilter(record.run_id))
    async with aclosing(merged(history, wanted)) as pieces:
        for update in record.updates:
            names = drawn_ids(update)
            while any(name not in held for name in names):
                piece = await anext(pieces, None)
                if piece is None:
                    raise RunError(
                        f"run {record.run_id}: steps of update {update.update} are gone from this log, which "
                        "keeps them for some days only: take them from the archive with --source archive"
                    )
                for step in readable_events(piece.records):
                    if isinstance(step, Step) and step.event_id in needed:
                        needed.discard(step.event_id)
                        held[step.event_id] = step
            yield [held.pop(name) for name in names]
