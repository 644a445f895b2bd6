"""Draws every recorded batch again, and follows each step to the one update that used it.

The buffer's choices are a function of the set of steps it holds (:mod:`unstable_stream.buffer`). At the draw
of an update these are the steps at offsets the learner had read by then, which the update names, less those
that earlier updates used. So each draw is made in a fresh buffer, whatever restarts lay between.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from unstable_stream.buffer import StepBuffer
from unstable_stream.events import DroppedStep, LearnerUpdate, Step, encode_event, event_id, packed_length
from unstable_stream.proofs.index import RecordIndex
from unstable_stream.proofs.report import Check, Difference, differing_fields
from unstable_stream.runs.config import ReinforceConfig, RunConfig

__all__ = ["BatchCheck", "PendingStep"]


class PendingStep(NamedTuple):
    """A step and where it is."""

    step: Step
    partition: int
    offset: int


class BatchCheck:
    """Feed it steps with :meth:`add` as far as the next update had read, then that update with :meth:`apply`.

    It holds the steps that no update has used yet, and four bytes for every step of the run.
    """

    def __init__(
        self, check: Check, membership: Check, index: RecordIndex, config: RunConfig, run_id: str, last: int
    ) -> None:
        """Start before the first update.

        Args:
            check: whether batches and drops are those the buffer makes.
            membership: whether each named step exists and is named once.
            index: all recorded steps, sealed.
            config: the run's.
            run_id: the run.
            last: number of the update before the first: 0, or where the run was forked.
        """
        self.check = check
        self.membership = membership
        self._index = index
        self._config = config
        self._run_id = run_id
        self._last = last
        self._pending: dict[str, PendingStep] = {}
        self._used_by = array("i", bytes(4 * len(index)))

    def add(self, steps: Sequence[PendingStep]) -> None:
        """Take in further steps, those of a partition in order."""
        slots = self._index.find([pending.step.event_id for pending in steps])
        for pending, slot in zip(steps, slots, strict=True):
            if slot >= 0 and not self._used_by[slot]:
                self._pending.setdefault(pending.step.event_id, pending)

    def apply(self, update: LearnerUpdate, read_to: Mapping[int, int], where: str) -> None:
        """Compare one update with its draw made again; ``read_to``: each partition's next offset by then."""
        self.check.compared += 1
        if update.update != self._last + 1:
            self.check.differs(
                Difference(where, update.event_id, f"update {update.update} comes after update {self._last}")
            )
        self._last = max(update.update, self._last)
        again = encode_event(self._draw(update, read_to))
        recorded = encode_event(update)
        if again != recorded:
            fields = differing_fields(recorded, again)
            path, found, expected = fields[0]
            self.check.differs(
                Difference(
                    where,
                    update.event_id,
                    f"update {update.update}, drawn again, differs in {len(fields)} field(s), first",
                    path,
                    found,
                    expected,
                )
            )
        self._use(update, read_to, where)

    def _draw(self, update: LearnerUpdate, read_to: Mapping[int, int]) -> LearnerUpdate:
        """Return the update with everything that follows from the draw put in anew."""
        settings, number = self._config.learner, update.update
        buffer = StepBuffer(
            self._config.max_buffer_size,
            strategy=self._config.buffer.strategy,
            seed=self._config.seed,
            max_staleness=self._config.buffer.max_staleness,
        )
        buffer.extend(
            pending.step
            for pending in self._pending.values()
            if pending.offset < read_to.get(pending.partition, 0)
        )
        batch = buffer.get_batch(settings.batch_size, max(1, number))
        left_out = self._left_out_of(batch.steps, update)
        metrics = dict(update.metrics)
        if batch.steps:
            staleness = [number - 1 - step.policy_version for step in batch.steps]
            metrics |= {
                "staleness_mean": sum(staleness) / len(staleness),
                "staleness_max": float(max(staleness)),
                "reward_mean": sum(step.reward for step in batch.steps) / len(batch.steps),
                "buffer_size": float(buffer.size()),
            }
        return msgspec.structs.replace(
            update,
            event_id=event_id(self._run_id, "learner-update", number),
            step_ids=tuple(step.event_id for step in batch.steps if step.event_id not in left_out),
            dropped=(
                *batch.dropped,
                *(
                    DroppedStep(step.event_id, "truncated")
                    for step in batch.steps
                    if step.event_id in left_out
                ),
            ),
            metrics={name: metrics[name] for name in update.metrics},
        )

    def _left_out_of(self, steps: Sequence[Step], update: LearnerUpdate) -> set[str]:
        """Ids of those that the algorithm trains on nothing of."""
        algorithm = self._config.algorithm
        if isinstance(algorithm, ReinforceConfig):
            drops = algorithm.truncated_turns == "drop"
            return {step.event_id for step in steps if self._left_out(step, drops_truncated=drops)}
        # An algorithm of the user's own decides as it likes: what it decided is taken from the record.
        return {drop.step_id for drop in update.dropped if drop.reason == "truncated"}

    def _left_out(self, step: Step, *, drops_truncated: bool) -> bool:
        """Whether Reinforce trains on nothing of a step (``BaseAlgo.admit`` and ``Reinforce.admit``)."""
        limit = self._config.learner.max_train_len
        if limit is not None and packed_length(step.prompt_token_ids) >= limit:
            return True
        return drops_truncated and step.truncated and len(step.completion_token_ids) > 0

    def _use(self, update: LearnerUpdate, read_to: Mapping[int, int], where: str) -> None:
        named = [*update.step_ids, *(drop.step_id for drop in update.dropped)]
        self.membership.compared += len(named)
        for step_id, slot in zip(named, self._index.find(named), strict=True):
            problem = None
            if slot < 0:
                problem = f"update {update.update} names a step that is not in the log"
            elif self._used_by[slot]:
                problem = f"update {update.update} names a step that update {self._used_by[slot]} used before"
            else:
                partition, offset = self._index.position(slot)
                if offset >= read_to.get(partition, 0):
                    problem = (
                        f"update {update.update} names a step that had not been read then: it is at "
                        f"{self._index.where(slot)}"
                    )
                self._used_by[slot] = update.update
            if problem is not None:
                self.membership.differs(Difference(where, step_id, problem))
            self._pending.pop(step_id, None)

    def finish(self) -> None:
        """Count the steps that no update has used yet."""
        self.membership.pending = len(self._pending)
