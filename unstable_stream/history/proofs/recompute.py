"""Fold again what was recorded: steps, ratings, and the batch of every update.

``steps`` follow from trajectories and ``ratings`` from game outcomes, by the folds that the processors run,
one for each partition. Steps of a run that trains on another's follow from the steps of their origin, those
of a run that imitates from the games that it chose. What the processors have yet to read is *pending*: their
groups' committed positions tell how far they have come. On the way the processors' snapshots are compared:
each must be the state of this fold at its position.

``batches`` draws every recorded batch again, and follows each step to the one update that used it.

The buffer's choices are a function of the set of steps that it holds
(:mod:`unstable_stream.algorithms.buffer`). At the draw of an update these are the steps that the learner had
read, without those that earlier updates used. The update records the offsets read. So each draw is made from
that set, independent of restarts, and the decisions come from the function that the learner calls
(:mod:`unstable_stream.algorithms.update_decisions`). As long as draws agree with the record, what one leaves
in its buffer is what the next begins with; after one that differs, or if a learner has read less than the one
before it, a new buffer is filled.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from unstable_stream.algorithms.buffer import StepBuffer
from unstable_stream.algorithms.settings import PolicyGradientConfig
from unstable_stream.algorithms.update_decisions import Admit, admission, decide_update
from unstable_stream.errors import ConfigError, EventError, GameError, LearnerError
from unstable_stream.events import (
    LearnerUpdate,
    Step,
    StepsDropped,
    encode_event,
    event_id,
    named_id,
    trained_model,
)
from unstable_stream.events.used_ids import UsedIds
from unstable_stream.history.proofs.check_snapshots import SnapshotCheck
from unstable_stream.history.proofs.expected_records import DerivedCheck, Expected
from unstable_stream.history.proofs.ledger import Evidence, RecordIndex, named
from unstable_stream.history.proofs.reports import Check
from unstable_stream.log.port import EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.log.reading import TopicReader, events_to_end, readable_event
from unstable_stream.log.records import event_from_record
from unstable_stream.reward_transformations import build_sampling
from unstable_stream.runs.base_model import base_model_path
from unstable_stream.runs.history import RunStatus
from unstable_stream.services.streams.processor import Processor, ProcessorSpec
from unstable_stream.services.streams.processors import RATINGS, REWARDS

_BATCH: Final = 500


class _Batches:
    """Those of one trained model. Pass steps to :meth:`add` up to the positions of the next update, then that
    update to :meth:`apply`.

    It holds the steps that no update has used yet.
    """

    def __init__(
        self, model: str | None, checks: Sequence[Check], index: RecordIndex, used: bytearray, run: RunStatus
    ) -> None:
        """Start before the first update.

        Args:
            model: the name of the trained model; ``None``: the only one.
            checks: of batches and drops against those of the buffer; of each named step, whether it had been
                read by then.
            index: all recorded steps, sealed.
            used: a byte for each of them, which all models share.
            run: whose they are.
        """
        self._model = model
        self._check, self._membership = checks
        self._index = index
        self._config = run.config().for_model(model)
        self._run_id = run.run_id
        self._last = run.updates_before
        self._transform = build_sampling(list(self._config.rewards.sampling))
        self._pending: dict[str, tuple[Step, int]] = {}
        """By id, each with its slot in the index."""
        self._buffer: StepBuffer | None = None
        """Holds the pending steps but for ``_unread``; ``None``: the next draw fills a new one."""
        self._unread: list[tuple[Step, int]] = []
        self._read_to: Mapping[int, int] = {}
        """The positions of the draw before."""
        self._used = used

    def add(self, steps: Sequence[Step]) -> None:
        """Add further steps, in order within each partition; those of other models are left out."""
        steps = [step for step in steps if trained_model(step.model_uid) == self._model]
        slots = self._index.find([step.event_id for step in steps])
        for step, slot in zip(steps, slots, strict=True):
            if slot >= 0 and not self._used[slot] and step.event_id not in self._pending:
                self._pending[step.event_id] = (step, slot)
                self._unread.append((step, slot))

    def apply(self, update: LearnerUpdate, read_to: Mapping[int, int], where: str) -> None:
        """Compare one update with its repeated draw; ``read_to``: the next offsets at the draw."""
        check, event_id, name = self._check, update.event_id, _named(update)
        check.compared += 1
        if update.update != self._last + 1:
            check.differs(where, event_id, f"update {name} comes after update {self._last}")
        self._last = max(update.update, self._last)
        buffer = self._filled(read_to)
        try:
            again = encode_event(self._decide(update, buffer))
        except LearnerError as error:
            check.differs(where, event_id, f"update {name} cannot be decided again: {error}")
        else:
            of, source = f"update {name} ", "the update drawn again"
            if not check.compare(where, event_id, encode_event(update), again, of=of, source=source):
                self._buffer = buffer
        self._use(update, read_to, where)

    def drop(self, lost: StepsDropped) -> None:
        """Leave out steps from here on that the learner had lost, and that may still be read elsewhere."""
        self._take([drop.step_id for drop in lost.dropped])
        self._buffer = None

    def _take(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """Take steps out; return those that the log holds, each with its slot."""
        found = [(name, slot) for name, slot in zip(names, self._index.find(names), strict=True) if slot >= 0]
        for name, slot in found:
            self._pending.pop(name, None)
            self._used[slot] = 1
        return found

    def _filled(self, read_to: Mapping[int, int]) -> StepBuffer:
        """Return a buffer with the pending steps that had been read; whoever uses it keeps it, or not."""
        buffer, self._buffer = self._buffer, None
        again = any(read_to.get(partition, 0) < offset for partition, offset in self._read_to.items())
        self._read_to = read_to
        if buffer is None or again:  # a learner that was restarted draws before it has read all of it again
            self._unread = list(self._pending.values())
            buffer = StepBuffer(
                self._config.max_buffer_size,
                strategy=self._config.buffer.strategy,
                seed=self._config.seed,
                max_staleness=self._config.buffer.max_staleness,
                overflow_draws=self._config.buffer.overflow_draws,
            )
        buffer.restore_used(UsedIds())  # steps that were used are not given to it again
        unread = self._unread
        buffer.extend(step for step, slot in unread if self._was_read(slot, read_to))
        self._unread = [(step, slot) for step, slot in unread if not self._was_read(slot, read_to)]
        return buffer

    def _decide(self, update: LearnerUpdate, buffer: StepBuffer) -> LearnerUpdate:
        """Return the update with all decisions computed again from a buffer."""
        settings, number = self._config.learner, update.update
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

    def _was_read(self, slot: int, read_to: Mapping[int, int]) -> bool:
        partition, offset = self._index.position(slot)
        return offset < read_to.get(partition, 0)

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
        names = [*update.step_ids, *(drop.step_id for drop in update.dropped)]
        self._membership.compared += len(names)
        # Of those that are not in the log the ledger has told.
        for name, slot in self._take(names):
            if not self._was_read(slot, read_to):
                what = "names a step that had not been read then: it is at"
                what = f"update {_named(update)} {what} {self._index.where(slot)}"
                self._membership.differs(where, name, what)


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
        model: _Batches(model, checks, steps, used, evidence.run)
        for model in evidence.run.config().model_names
    }
    done: set[str] = set()
    async with await TopicReader.open(evidence.log, (Step.TOPIC,), run_id=run_id, ends=ends) as reader:
        async for record, update in evidence.events(LearnerUpdate.TOPIC, "drawing batches again"):
            if isinstance(update, StepsDropped) and update.model in batches:
                batches[update.model].drop(update)
            if not isinstance(update, LearnerUpdate) or update.event_id in done:
                continue
            done.add(update.event_id)
            read_to = {at: update.positions[str(at)] for at in ends if str(at) in update.positions}
            async for read in _chunks(reader, read_to, run_id):
                for of_model in batches.values():
                    of_model.add(read)
            if update.model in batches:
                by_partition = {at.partition: offset for at, offset in read_to.items()}
                batches[update.model].apply(update, by_partition, str(record))
                continue
            checks[0].compared += 1
            what = f"update {_named(update)} is of a model that the run does not train"
            checks[0].differs(str(record), update.event_id, what)
    return checks


def _named(update: LearnerUpdate) -> str:
    return named((update.model or "", update.update))


async def _chunks(reader: TopicReader, read_to: Positions, run_id: str) -> AsyncIterator[list[Step]]:
    read: list[Step] = []
    async for record in reader.read_to(read_to):
        event = readable_event(record)
        if isinstance(event, Step) and event.run_id == run_id:
            read.append(event)
        if len(read) >= _BATCH:
            yield read
            read = []
    yield read


def replayed_step(step: Step, run_id: str, epoch: int) -> Step:
    """Return an old run's step as the step of the run ``run_id``; ``epoch`` counts from 1.

    Everything but the two ids stays the same: trajectory and turn name the origin.
    """
    return msgspec.structs.replace(
        step, run_id=run_id, event_id=event_id(run_id, "replayed-step", epoch, step.event_id)
    )


async def _replayed_steps(
    log: EventLog, run_id: str, origin: str, recorded: RecordIndex
) -> AsyncIterator[tuple[StoredRecord, Step]]:
    """Yield for each recorded step of a run the record of its origin and the step that follows from it.

    Args:
        log: the log with the steps of both runs.
        run_id: the run that trains on replayed steps.
        origin: the run that produced the steps.
        recorded: the steps of ``run_id``.
    """
    epoch, found = 0, True
    while found:
        epoch, found = epoch + 1, False
        async for record, step in events_to_end(log, (Step.TOPIC,), run_id=origin):
            if isinstance(step, Step):
                replayed = replayed_step(step, run_id, epoch)
                if recorded.find([replayed.event_id])[0] >= 0:
                    found = True
                    yield record, replayed


async def _expect_imitated(evidence: Evidence, of_steps: DerivedCheck) -> None:
    """Make each step of a run that imitates again from its game.

    Which turns were chosen, and their weights, are decisions: these come from the record.
    """
    config, began = evidence.run.first_config(), evidence.run.began
    if not config.imitates or began is None:
        return
    from unstable_stream.services.workers.imitation import Choice, StepMaker  # loads the games

    recorded = [
        (record, step)
        async for record, step in evidence.events(Step.TOPIC, "making steps again")
        if isinstance(step, Step)
    ]
    choices = [Choice(s.game_id, s.seat, s.turn_index, s.reward, s.pair) for _, s in recorded]
    path = base_model_path(config, weights=False)
    maker = await StepMaker.read(evidence.log, config, path, choices)
    for (record, step), choice in zip(recorded, choices, strict=True):
        expected = Expected(step.event_id, None, lambda: b"", str(record))
        if maker.is_gone(choice):
            of_steps.check.gone += 1
        else:
            try:
                made = maker.step(step.run_id, choice)
            except (ConfigError, GameError) as error:
                of_steps.check.differs(str(record), step.event_id, f"it cannot be made again: {error}")
            else:
                same = {"event_id": step.event_id, "occurred_at_ms": began.occurred_at_ms}
                expected = Expected.of(msgspec.structs.replace(made, **same), record)
        of_steps.expect(expected)


async def recompute_steps_and_ratings(
    evidence: Evidence, steps: RecordIndex, ratings: RecordIndex
) -> list[Check]:
    """Compare steps and ratings, both sealed, and snapshots with what follows from their causes."""
    run, log = evidence.run, evidence.log
    checks = [Check("steps"), Check("ratings"), Check("snapshots")]
    origin_gone = await _is_origin_gone(evidence)
    if origin_gone:
        checks[0].skipped = f"the steps of {run.replayed_run_id} are not on this log"
    trimmed = evidence.trimmed[Step.TOPIC]
    of_steps = DerivedCheck(checks[0], steps, comparable=_body, trimmed=trimmed, extras=origin_gone)
    of_ratings = DerivedCheck(checks[1], ratings, comparable=_body, compacted=evidence.compacted)
    await _fold(evidence, REWARDS, of_steps, checks[2], "folding trajectories")
    if run.replayed_run_id is not None:
        async for record, step in _replayed_steps(log, run.run_id, run.replayed_run_id, steps):
            of_steps.expect(Expected.of(step, record))
    await _expect_imitated(evidence, of_steps)
    await of_steps.finish(log)
    await _fold(evidence, RATINGS, of_ratings, checks[2], "folding outcomes")
    await of_ratings.finish(log)
    return checks


async def _is_origin_gone(evidence: Evidence) -> bool:
    """Whether the run trains on steps whose origin this log has not, or not all of."""
    if evidence.run.replayed_run_id is None:
        return False
    async for _ in events_to_end(evidence.log, (Step.TOPIC,), run_id=evidence.run.replayed_run_id):
        return any((await evidence.log.beginning_offsets(Step.TOPIC)).values())
    return True


async def _fold(
    evidence: Evidence, spec: ProcessorSpec, check: DerivedCheck, snapshots: Check, what: str
) -> None:
    (topic,) = spec.inputs
    make = partial(spec.make, evidence.run.run_id, evidence.run.config())
    processors: dict[int, Processor] = {}
    saved = await SnapshotCheck.read(snapshots, spec, evidence)
    processed = evidence.processed[topic]
    async for record, event in evidence.events(topic, what):
        processor = processors.get(record.partition)
        if processor is None:
            processor = processors[record.partition] = make()
        saved.before(record.partition, record.offset, processor)
        if processed:
            due = record.offset < processed.get(TopicPartition(topic, record.partition), 0)
        else:
            # The processor's positions are unknown, but a completed run has drained its topics.
            due = evidence.run.state == "completed"
        try:
            outputs = processor.handle(event)
        except EventError:
            continue  # the record was set aside when it was first read
        for output in outputs:
            check.expect(Expected.of(output, record, due=due))
    saved.finish(processors, make)


def _body(record: StoredRecord) -> bytes:
    return encode_event(event_from_record(record))
