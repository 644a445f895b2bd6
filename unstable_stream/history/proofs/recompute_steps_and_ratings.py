"""Folds the trajectories and outcomes of a run again: what steps and ratings must there be?

``steps`` follow from trajectories and ``ratings`` from game outcomes, by the folds that the processors run,
one for each partition. Steps of a run that trains on another's follow from the steps of their origin. What
the processors have yet to read is *pending*: their groups' committed positions tell how far they have come.
On the way the processors' snapshots are compared: each must be the state of this fold at its position.
"""

from collections.abc import AsyncIterator
from functools import partial

import msgspec

from unstable_stream.errors import EventError
from unstable_stream.events import Step, encode_event, event_id
from unstable_stream.history.proofs.check_snapshots import SnapshotCheck
from unstable_stream.history.proofs.evidence import Evidence
from unstable_stream.history.proofs.expected_records import DerivedCheck, Expected
from unstable_stream.history.proofs.ledger import RecordIndex
from unstable_stream.history.proofs.reports import Check
from unstable_stream.log.port import EventLog, StoredRecord, TopicPartition
from unstable_stream.log.reading import events_to_end
from unstable_stream.log.records import event_from_record
from unstable_stream.services.streams.processor import Processor, ProcessorSpec
from unstable_stream.services.streams.processors import RATINGS, REWARDS


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
