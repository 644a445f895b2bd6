"""Watch a recorded run's updates for signs of a collapse, as the learner does while it trains."""

from dataclasses import asdict

from unstable_stream.collapse import CollapseWatch
from unstable_stream.events import Checkpoint, CollapseWarning, LearnerUpdate, event_id
from unstable_stream.log.port import EventLog
from unstable_stream.runs.starts import run_events

__all__ = ["find_collapse"]


async def find_collapse(log: EventLog, run_id: str) -> tuple[int, list[CollapseWarning]]:
    """Fold a run's updates by the present rules; return their number and the warnings, in order.

    The warnings are those of a run that only warns. Of a run that recorded no games in its updates,
    only entropy and divergence are looked at.
    """
    updates: dict[int, LearnerUpdate] = {}
    saved = {0}
    topics = (LearnerUpdate.TOPIC, Checkpoint.TOPIC)
    async for _, event in run_events(log, topics, run_id):
        if isinstance(event, LearnerUpdate):
            updates.setdefault(event.update, event)
        elif isinstance(event, Checkpoint):
            saved.add(event.iteration)
    watch = CollapseWatch()
    warnings = [
        CollapseWarning(
            event_id=event_id(run_id, "collapse-warning", sign.update, sign.signal),
            run_id=run_id,
            occurred_at_ms=update.occurred_at_ms,
            fork_at=max(iteration for iteration in saved if iteration < sign.began),
            **asdict(sign),
        )
        for number, update in sorted(updates.items())
        for sign in watch.apply(number, update.metrics)
    ]
    return len(updates), warnings
