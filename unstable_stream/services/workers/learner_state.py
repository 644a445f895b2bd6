"""The state of a learner: a fold of the log and of its own decisions.

It uses no log, no clock and no PyTorch, so all of it is tested with plain values. ``saved`` and ``restore``
keep it over a restart, beside each checkpoint:

- the steps that were pending after the draw, each with its place in the log: no other step before the
  positions will be used;
- which steps were used before (:class:`~unstable_stream.events.used_ids.UsedIds`);
- what the watch for a collapse had learned, and the warnings so far;
- how far each topic was read.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from unstable_stream.algorithms.buffer import StepBuffer
from unstable_stream.algorithms.collapse import CollapseWatch, GameTally, Sign
from unstable_stream.algorithms.update_decisions import UpdateDecision
from unstable_stream.errors import LearnerError
from unstable_stream.events import (
    CollapseWarning,
    Event,
    GameOutcome,
    LearnerUpdate,
    RecordRejected,
    Step,
    StepsDropped,
    Trajectory,
    named_id,
    trained_model,
)
from unstable_stream.events.used_ids import UsedIds
from unstable_stream.log.port import Positions, StoredRecord, TopicPartition
from unstable_stream.log.reading import readable_event
from unstable_stream.log.records import id_header, rejected_event, source_header
from unstable_stream.log.saved_state import SavedState, saved_positions, unpack_state
from unstable_stream.reward_transformations import RewardProcessor, expected_step_ids
from unstable_stream.runs.config import RunConfig
from unstable_stream.services.streams.processor import group_of

_FORMAT: Final = 2
"""To be raised when the content changes, also that of ``used`` or ``watch``."""

NextAction: TypeAlias = Literal["draw", "drop-stale", "wait"]


class StepPlace(msgspec.Struct, frozen=True, array_like=True):
    """The record of a step."""

    partition: int
    offset: int


class SavedLearner(SavedState, frozen=True, kw_only=True):
    """The state of a learner at a checkpoint."""

    first_update: int
    pending: dict[str, StepPlace]
    """Step id to the place of the step, all below the positions."""
    used: dict[str, Any]
    watched: int
    """The last update that the watch and the warnings know."""
    watch: dict[str, Any]
    warnings: tuple[CollapseWarning, ...]

    def first_needed(self) -> dict[TopicPartition, int]:
        """Return, by partition of ``steps``, the first offset that holds a pending or a later step."""
        starts = {at: offset for at, offset in self.offsets.items() if at.topic == Step.TOPIC}
        for place in self.pending.values():
            at = TopicPartition(Step.TOPIC, place.partition)
            starts[at] = min(starts.get(at, place.offset), place.offset)
        return starts


def unpack_learner(saved: bytes, run_id: str, update: int) -> SavedLearner:
    """Return what a learner of a run knew at the checkpoint of ``update``.

    Raises:
        UnusableStateError: it is damaged, or of another version, run or update.
    """
    return unpack_state(saved, SavedLearner, _FORMAT, _digest(run_id, update))


def _digest(run_id: str, update: int) -> str:
    return f"learner/{run_id}/{update}"


def by_partition(named: Mapping[str, int]) -> dict[TopicPartition, int]:
    """Return the offsets that are recorded under names such as ``steps[3]``."""
    parts = ((name.partition("["), offset) for name, offset in named.items())
    return {TopicPartition(topic, int(number[:-1])): offset for (topic, _, number), offset in parts}


class LearnerState:
    """The fold of one trained model's learner.

    Args:
        config: of the run, for this model.
        run_id: the run.
        model: the name of the trained model; ``None``: the only one of the run.
        has_games: false for a run that trains on steps of other runs' games: no outcomes say when a game is
            done with, and nothing is kept over a restart.
    """

    def __init__(self, config: RunConfig, run_id: str, model: str | None, *, has_games: bool = True) -> None:
        self.config = config
        self.run_id = run_id
        self.model = model
        self.has_games = has_games
        self.buffer = StepBuffer(
            config.max_buffer_size,
            strategy=config.buffer.strategy,
            seed=config.seed,
            max_staleness=config.buffer.max_staleness,
            overflow_draws=config.buffer.overflow_draws,
            by_game=has_games,
        )
        self.tally = GameTally(model)
        self.watch = CollapseWatch()
        self.last_watched_update = 0
        self.warnings: list[CollapseWarning] = []
        """All warnings, in order."""
        self.first_update = 0
        """The update after which the run begins: 0, or that of its parent at the fork."""
        self.last_checkpoint = 0
        """The update of the newest published checkpoint."""
        self.draw_positions: Positions = {}
        """The next offsets of ``steps`` and ``game-outcomes`` at the last draw."""
        self.other_positions: dict[TopicPartition, int] = {}
        """The next offsets of ``learner-updates`` before the present update, and of ``dead-letters``."""
        self._step_places: dict[str, StepPlace] = {}
        """By id, where the pending steps are in the log; of a run that imitates, all steps."""
        self._was_idle = False
        """Whether the last update had no turn to train on."""

    # -- keeping it over a restart --------------------------------------------------------------

    def saved(self, update: int, log_id: str) -> SavedLearner:
        """Return what to save with the checkpoint of ``update``."""
        pending = [step.event_id for step in self.buffer.pending()]
        self._step_places = {name: self._step_places[name] for name in pending}
        drawn = self.draw_positions
        return SavedLearner(
            format=_FORMAT,
            digest=_digest(self.run_id, update),
            log_id=log_id,
            positions=saved_positions({**drawn, **self.other_positions}),
            first_update=self.first_update,
            # Steps that came after the draw are read again.
            pending={
                name: place
                for name, place in self._step_places.items()
                if place.offset < drawn.get(TopicPartition(Step.TOPIC, place.partition), 0)
            },
            used=self.buffer.used_ids.state(),
            watched=self.last_watched_update,
            watch=self.watch.state(),
            warnings=tuple(self.warnings),
        )

    def restore(self, saved: SavedLearner) -> None:
        """Go on from what was saved; the pending steps are still to be added."""
        self.buffer.restore_used(UsedIds.restored(saved.used))
        self.watch.restore(saved.watch)
        self.last_watched_update, self.first_update = saved.watched, saved.first_update
        self.warnings = list(saved.warnings)
        drawn = (Step.TOPIC, GameOutcome.TOPIC)
        self.draw_positions = {at: offset for at, offset in saved.offsets.items() if at.topic in drawn}
        self.other_positions = {at: offset for at, offset in saved.offsets.items() if at.topic not in drawn}

    def fold_updates(
        self, events: Iterable[Event], after: int, resumption: int | None
    ) -> dict[int, LearnerUpdate]:
        """Fold what was published of this model's updates; return the updates by number, in order.

        Args:
            events: since ``after``; those of other runs and models change nothing.
            after: the update of the checkpoint whose state was restored; 0: nothing was.
            resumption: the start of the run whose configuration this is.
        """
        updates: dict[int, LearnerUpdate] = {}
        warnings = {warning.event_id: warning for warning in self.warnings}
        for event in events:
            if event.run_id != self.run_id or getattr(event, "model", None) != self.model:
                continue
            if isinstance(event, LearnerUpdate):
                updates.setdefault(event.update, event)
            elif isinstance(event, StepsDropped):
                self.buffer.forget(drop.step_id for drop in event.dropped)
            elif isinstance(event, CollapseWarning):
                warnings[event.event_id] = event
        self.warnings = sorted(warnings.values(), key=lambda warning: warning.update)
        updates = dict(sorted(updates.items()))
        for number, update in updates.items():
            if number > after:
                self.buffer.apply(update)
            if number > self.last_watched_update:
                self.watch.apply(number, update.metrics)
                self.last_watched_update = number
        if updates:
            last = updates[max(updates)]
            self.draw_positions = by_partition(last.positions)
            # Only of this start: a resumption may have other limits, and draws old steps first.
            made_by_us = last.resumption is not None and last.resumption == resumption
            self._was_idle = made_by_us and last.metrics.get("optimizer_steps") == 0
        return updates

    # -- what comes from the log ----------------------------------------------------------------

    def add_steps(self, records: Iterable[StoredRecord]) -> None:
        """Fold records of ``steps``: those that this model's checkpoints sampled are pending."""
        steps = []
        for record in records:
            event = readable_event(record)
            if not isinstance(event, Step) or event.run_id != self.run_id:
                continue
            if trained_model(event.model_uid) == self.model:
                steps.append(event)
                if self.has_games or self.config.imitates:
                    place = StepPlace(record.partition, record.offset)
                    self._step_places.setdefault(event.event_id, place)
        self.buffer.extend(steps)

    def finish_game(self, outcome: GameOutcome) -> None:
        """Fold an outcome: it says which steps its game gives."""
        if outcome.split == "train":
            steps = [step for steps in self.promised(outcome).values() for step in steps]
            self.buffer.finish_game(outcome.game_index, steps)

    def promised(self, outcome: GameOutcome) -> dict[str, list[str]]:
        """Return the ids of the steps that a game gives this model, by trajectory id."""
        filtering = self.config.collector.filter_opponent_invalid
        return expected_step_ids(outcome, filter_opponent_invalid=filtering, model=self.model)

    def unreadable(self, rejected: Iterable[RecordRejected]) -> set[str]:
        """Return the ids of trajectories that could not be decoded: their records' headers name them."""
        groups = {group_of(RewardProcessor.name, run) for run in (self.run_id, None)}
        return {
            name
            for letter in rejected
            if letter.consumer in groups
            and letter.record_headers.get("ce_source") == source_header(self.run_id)
            if letter.topic == Trajectory.TOPIC and rejected_event(letter) is None
            if (name := id_header(letter.record_headers))
        }

    def forget_promised(self, games: Mapping[int, Sequence[str]]) -> list[str]:
        """Forget the steps, by game index, that will never come; return those that no update used, sorted."""
        never: list[str] = []
        for index, steps in games.items():
            used = self.buffer.used(index, steps)
            never += [step for step in steps if step not in used]
        self.buffer.forget(never)
        return sorted(never)

    # -- decisions ------------------------------------------------------------------------------

    def next_action(self, update: int) -> NextAction:
        """Return what to do before ``update``: draw its batch, drop what is too stale first, or wait."""
        settings = self.config.learner
        available = self.buffer.available(update)
        if self.config.imitates:
            # All steps are there from the beginning. A draw from what happens to be read would be another
            # one each time.
            if len(self._step_places) < self.config.imitation.steps:
                return "wait"
            if not available:
                raise LearnerError(
                    f"run {self.run_id} has trained on all steps that were published when it started. To go "
                    f"on, begin one with it: unstable-stream imitate FILE --set init_from={self.run_id}@last"
                )
            return "draw"
        if available >= int(settings.batch_size * settings.batch_delay_buffer):
            return "draw"
        if self.buffer.size() < self.config.max_pending_steps:
            return "wait"
        # At the back-pressure bound no game starts, so waiting for more fresh steps would never end. If stale
        # steps alone fill it, the next update would come too late to drop them.
        return "draw" if available else "drop-stale"

    def check_staleness(self, update: int) -> None:
        """Raise :class:`LearnerError` if the newest checkpoint is itself too stale for ``update``."""
        bound = self.config.buffer.max_staleness
        if bound is not None and self.last_checkpoint < update - 1 - bound:
            raise LearnerError(
                f"run {self.run_id}: the newest checkpoint, {self.last_checkpoint}, is staler than "
                f"buffer.max_staleness = {bound} allows for update {update}; raise it, or lower "
                "learner.save_every"
            )

    def check_trains(self, decision: UpdateDecision, update: int) -> str:
        """Return a warning if an update can take no optimizer step; empty: it can.

        Raises:
            LearnerError: the update before could take none either.
        """
        before, self._was_idle = self._was_idle, "train" not in decision.admissions
        if not self._was_idle:
            return ""
        config = self.config
        masked = decision.admissions.count("mask")
        problem = (
            f"update {update} has no turn to train on: of {len(decision.admissions)}, {masked} are masked "
            f"and {len(decision.admissions) - masked} dropped. Their answers were cut at "
            f"sampling.max_tokens = {config.sampling.max_tokens} before an action was found "
            "(algorithm.truncated_turns), or have no token, or their prompts fill "
            f"learner.max_train_len = {config.learner.max_train_len}"
        )
        if before:
            raise LearnerError(
                f"run {self.run_id}: {problem}. The update before it had none either, so nothing is learned: "
                'raise these limits, or begin a run with algorithm.truncated_turns = "train"'
            )
        return f"{problem}; a second such update in a row ends the run"

    def learning_rate_factor(self, update: int) -> float:
        """Return what the warnings before an update have left of its learning rate."""
        lowered = [each.learning_rate_factor for each in self.warnings if each.update < update]
        return lowered[-1] if lowered else 1.0

    def watch_update(self, update: LearnerUpdate, now_ms: int) -> list[CollapseWarning]:
        """Look for signs of a collapse in an update just made; return the warnings to publish with it."""
        self.last_watched_update = update.update
        return [self._warning(sign, now_ms) for sign in self.watch.apply(update.update, update.metrics)]

    def _warning(self, sign: Sign, now_ms: int) -> CollapseWarning:
        settings = self.config.learner
        factor = self.warnings[-1].learning_rate_factor if self.warnings else 1.0
        saved = (sign.began - 1) // settings.save_every * settings.save_every
        return CollapseWarning(
            event_id=self.event_id("collapse-warning", sign.update, sign.signal),
            run_id=self.run_id,
            occurred_at_ms=now_ms,
            update=sign.update,
            began=sign.began,
            fork_at=max(self.first_update, saved),
            rule=sign.rule,
            signal=sign.signal,
            value=sign.value,
            reference=sign.reference,
            text=sign.text if self.model is None else f"{self.model}: {sign.text}",
            action=settings.on_collapse,
            learning_rate_factor=factor / 2 if settings.on_collapse == "lower-step" else factor,
            model=self.model,
        )

    def event_id(self, kind: str, *natural_key: object) -> str:
        """Return the id of an event of this model."""
        return named_id(self.run_id, kind, *natural_key, model=self.model)
