"""Draw every recorded batch again, and follow each step to the one update that used it.

The buffer's choices are a function of the set of steps that it holds
(:mod:`unstable_stream.algorithms.buffer`). At the draw of an update these are the steps that the learner had
read, without those that earlier updates used. The update records the offsets read. So each draw is made in a
fresh buffer, independent of restarts, and the decisions come from the function that the learner calls
(:mod:`unstable_stream.algorithms.update_decisions`).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from unstable_stream.algorithms.buffer import StepBuffer
from unstable_stream.algorithms.update_decisions import Admit, admission, decide_update
from unstable_stream.errors import LearnerError
from unstable_stream.events import LearnerUpdate, Step, StepsDropped, encode_event, named_id, trained_model
from unstable_stream.history.proofs.evidence import Evidence
from unstable_stream.history.proofs.ledger import RecordIndex, named
from unstable_stream.history.proofs.reports import Check, Difference
from unstable_stream.log.port import Positions
from unstable_stream.log.reading import TopicReader, readable_event
from unstable_stream.reward_transformations import build_sampling
from unstable_stream.runs.config import PolicyGradientConfig
from unstable_stream.runs.history import RunStatus

_BATCH: Final = 500


class _PendingStep(NamedTuple):
    """A step and its position."""

    step: Step
    partition: int
    offset: int


class _Batches:
    """Those of one trained model. Pass steps to :meth:`add` up to the positions of the next update, then that
    update to :meth:`apply`.

    It holds the steps that no update has used yet.
    """

    def __init__(
        self,
        model: str | None,
        check: Check,
        membership: Check,
        index: RecordIndex,
        used: bytearray,
        run: RunStatus,
    ) -> None:
        """Start before the first update.

        Args:
            model: the name of the trained model; ``None``: the only one.
            check: compares batches and drops with those of the buffer.
            membership: whether each named step had been read by then.
            index: all recorded steps, sealed.
            used: a byte for each of them, which all models share.
            run: whose they are.
        """
        self._model = model
        self.check = check
        self.membership = membership
        self._index = index
        self._config = run.config().for_model(model)
        self._run_id = run.run_id
        self._last = run.updates_before
        self._transform = build_sampling(list(self._config.rewards.sampling))
        self._pending: dict[str, _PendingStep] = {}
        self._used = used

    def add(self, steps: Sequence[_PendingStep]) -> None:
        """Add further steps, in order within each partition; those of other models are left out."""
        steps = [pending for pending in steps if trained_model(pending.step.model_uid) == self._model]
        slots = self._index.find([pending.step.event_id for pending in steps])
        for pending, slot in zip(steps, slots, strict=True):
            if slot >= 0 and not self._used[slot]:
                self._pending.setdefault(pending.step.event_id, pending)

    def apply(self, update: LearnerUpdate, read_to: Mapping[int, int], where: str) -> None:
        """Compare one update with its repeated draw; ``read_to``: the next offsets at the draw."""
        self.check.compared += 1
        if update.update != self._last + 1:
            self.check.differs(
                Difference(where, update.event_id, f"update {_named(update)} comes after update {self._last}")
            )
        self._last = max(update.update, self._last)
        try:
            again = self._decide(update, read_to)
        except LearnerError as error:
            self.check.differs(
                Difference(
                    where, update.event_id, f"update {_named(update)} cannot be decided again: {error}"
                )
            )
        else:
            self._compare(update, again, where)
        self._use(update, read_to, where)

    def drop(self, lost: StepsDropped) -> None:
        """Leave out steps from here on that the learner had lost, and that may still be read elsewhere."""
        names = [drop.step_id for drop in lost.dropped]
        for step_id, slot in zip(names, self._index.find(names), strict=True):
            self._pending.pop(step_id, None)
            if slot >= 0:
                self._used[slot] = 1

    def _compare(self, update: LearnerUpdate, decided_again: LearnerUpdate, where: str) -> None:
        self.check.differs(
            Difference.between(
                where,
                update.event_id,
                encode_event(update),
                encode_event(decided_again),
                of=f"update {_named(update)} ",
                source="the update drawn again",
            )
        )

    def _decide(self, update: LearnerUpdate, read_to: Mapping[int, int]) -> LearnerUpdate:
        """Return the update with all decisions computed again."""
        settings, number = self._config.learner, update.update
        buffer = StepBuffer(
            self._config.max_buffer_size,
            strategy=self._config.buffer.strategy,
            seed=self._config.seed,
            max_staleness=self._config.buffer.max_staleness,
            overflow_draws=self._config.buffer.overflow_draws,
        )
        buffer.extend(
            pending.step
            for pending in self._pending.values()
            if pending.offset < read_to.get(pending.partition, 0)
        )
        decision = decide_update(
            buffer, settings.batch_size, max(1, number), self._transform, self._admit(update)
        )
        metrics = {**update.metrics, **decision.metrics}
        return msgspec.structs.replace(
            update,
            event_id=named_id(self._run_id, "learner-update", number, model=self._model),
            step_ids=decision.trained_ids,
            dropped=decision.dropped,
            metrics={name: metrics[name] for name in update.metrics},
        )

    def _admit(self, update: LearnerUpdate) -> Admit:
        algorithm = self._config.algorithm
        if isinstance(algorithm, PolicyGradientConfig):
            return partial(
                admission,
                max_train_len=self._config.learner.max_train_len,
                truncated_turns=algorithm.truncated_turns,
            )
        # A user's own algorithm may decide freely, so its decisions are taken from the record.
        truncated = {drop.step_id for drop in update.dropped if drop.reason == "truncated"}
        return lambda sample: "drop" if sample.step_id in truncated else "train"

    def _use(self, update: LearnerUpdate, read_to: Mapping[int, int], where: str) -> None:
        named = [*update.step_ids, *(drop.step_id for drop in update.dropped)]
        self.membership.compared += len(named)
        for step_id, slot in zip(named, self._index.find(named), strict=True):
            self._pending.pop(step_id, None)
            if slot < 0:
                continue  # the ledger has told that it is not in the log
            self._used[slot] = 1
            partition, offset = self._index.position(slot)
            if offset >= read_to.get(partition, 0):
                what = (
                    f"update {_named(update)} names a step that had not been read then: it is at "
                    f"{self._index.where(slot)}"
                )
                self.membership.differs(Difference(where, step_id, what))


async def recompute_batches(evidence: Evidence, steps: RecordIndex, pending: int) -> list[Check]:
    """Draw every batch again; return the checks of the updates and of the steps that they used.

    Args:
        evidence: of the run.
        steps: all recorded ones, sealed.
        pending: steps that no update has used yet, by the ledger.
    """
    checks = [Check("updates"), Check("steps used")]
    if evidence.trimmed[Step.TOPIC]:
        for check in checks:
            check.skipped = "steps that were drawn from are past the topic's retention"
        return checks
    checks[1].pending = pending
    run_id, ends = evidence.run.run_id, evidence.ends[Step.TOPIC]
    used = bytearray(len(steps))
    batches = {
        model: _Batches(model, checks[0], checks[1], steps, used, evidence.run)
        for model in evidence.run.config().model_names
    }
    named = {str(where): where for where in ends}
    done: set[str] = set()
    async with await TopicReader.open(evidence.log, (Step.TOPIC,), run_id=run_id, ends=ends) as reader:
        async for record, update in evidence.events(LearnerUpdate.TOPIC, "drawing batches again"):
            if isinstance(update, StepsDropped) and update.model in batches:
                batches[update.model].drop(update)
            if not isinstance(update, LearnerUpdate) or update.event_id in done:
                continue
            done.add(update.event_id)
            read_to = {named[name]: offset for name, offset in update.positions.items() if name in named}
            await _add_steps(reader, read_to, list(batches.values()), run_id)
            by_partition = {where.partition: offset for where, offset in read_to.items()}
            of_model = batches.get(update.model)
            if of_model is not None:
                of_model.apply(update, by_partition, str(record))
                continue
            checks[0].compared += 1
            what = f"update {_named(update)} is of a model that the run does not train"
            checks[0].differs(Difference(str(record), update.event_id, what))
    return checks


def _named(update: LearnerUpdate) -> str:
    return named((update.model or "", update.update))


async def _add_steps(
    reader: TopicReader, read_to: Positions, batches: Sequence[_Batches], run_id: str
) -> None:
    read: list[_PendingStep] = []
    async for record in reader.read_to(read_to):
        event = readable_event(record)
        if isinstance(event, Step) and event.run_id == run_id:
            read.append(_PendingStep(event, record.partition, record.offset))
        if len(read) >= _BATCH:
            _add(batches, read)
            read = []
    _add(batches, read)


def _add(batches: Sequence[_Batches], read: Sequence[_PendingStep]) -> None:
    for of_model in batches:
        of_model.add(read)
