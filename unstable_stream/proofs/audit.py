"""Audits a run: reads the log, folds it with :class:`RunAudit`, and checks the files the log names."""

import asyncio
from collections.abc import Iterable
from typing import Final

from unstable_stream.errors import EventError
from unstable_stream.events import Checkpoint, RecordRejected, Step
from unstable_stream.log.port import EventLog, StoredRecord
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.records import event_from_record
from unstable_stream.proofs.audit_fold import AuditReport, RunAudit
from unstable_stream.proofs.evidence import ends_of, file_digest, weights_of

__all__ = ["audit_run"]

# The end of the run first, since it claims that all else is there. Then effects before causes: of a run that
# is going on, every effect read then has its cause among what is read.
_TOPICS: Final = (
    "runs",
    "dead-letters",
    "checkpoints",
    "learner-updates",
    "ratings",
    "steps",
    "trajectories",
    "game-outcomes",
    "games",
)


async def audit_run(log: EventLog, run_id: str) -> AuditReport:
    """Read everything the log holds of a run now, check the files it names, and report."""
    begin = await log.beginning_offsets(Step.TOPIC)
    audit = RunAudit(run_id, steps_kept=not any(begin.values()))
    for topic, ends in (await ends_of(log, _TOPICS)).items():
        # The archiver rejects records on behalf of all runs.
        whose = None if topic == RecordRejected.TOPIC else run_id
        async for record in read_to_end(log, (topic,), run_id=whose, ends=ends):
            _fold_record(record, audit)
    return audit.report(await asyncio.to_thread(_file_problems, audit.checkpoints))


def _fold_record(record: StoredRecord, audit: RunAudit) -> None:
    try:
        event = event_from_record(record)
    except EventError as error:
        audit.apply_unreadable(str(record), str(error))
        return
    audit.apply(event, str(record))


def _file_problems(checkpoints: Iterable[Checkpoint]) -> list[tuple[str, str]]:
    problems = []
    for checkpoint in checkpoints:
        weights = weights_of(checkpoint)
        if weights is None:
            continue
        if not weights.is_file():
            problems.append(("checkpoint file missing", f"{checkpoint.model_uid}: {weights}"))
            continue
        digest = file_digest(weights)
        if digest != checkpoint.sha256:
            problems.append(
                (
                    "checkpoint file altered",
                    f"{checkpoint.model_uid}: {weights} has sha256 {digest}, recorded is {checkpoint.sha256}",
                )
            )
    return problems
