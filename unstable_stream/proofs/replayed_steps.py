"""The steps of a run that trains on another run's steps: how they are made, and which ones are expected."""

from collections.abc import AsyncIterator

import msgspec

from unstable_stream.events import Step, event_id
from unstable_stream.log.port import EventLog, StoredRecord
from unstable_stream.log.reading import events_to_end
from unstable_stream.proofs.record_index import RecordIndex

__all__ = ["recomputed_steps", "replayed_step"]


def replayed_step(step: Step, run_id: str, epoch: int) -> Step:
    """Return an old run's step as the step of the run ``run_id``; ``epoch`` counts from 1.

    Everything but the two ids stays the same: trajectory and turn name the origin.
    """
    return msgspec.structs.replace(
        step, run_id=run_id, event_id=event_id(run_id, "replayed-step", epoch, step.event_id)
    )


async def recomputed_steps(
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
