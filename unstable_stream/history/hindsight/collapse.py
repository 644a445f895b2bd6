"""Watch a recorded run's updates for signs of a collapse, as the learner does while it trains."""

from dataclasses import asdict

from unstable_stream.algorithms.collapse import CollapseWatch
from unstable_stream.events import Checkpoint, CollapseWarning, LearnerUpdate, named_id
from unstable_stream.log.port import EventLog
from unstable_stream.runs.starts import run_events


async def find_collapse(log: EventLog, run_id: str) -> tuple[int, list[CollapseWarning]]:
    """Fold a run's updates by the present rules; return their number and the warnings, in order.

    The warnings are those of a run that only warns. Of a run that recorded no games in its updates,
    only entropy and divergence are looked at.
    """
    updates: dict[tuple[str, int], LearnerUpdate] = {}
    saved: dict[str, set[int]] = {}
    topics = (LearnerUpdate.TOPIC, Checkpoint.TOPIC)
    async for _, event in run_events(log, topics, run_id):
        if isinstance(event, LearnerUpdate):
            updates.setdefault((event.model or "", event.update), event)
        elif isinstance(event, Checkpoint):
            saved.setdefault(event.model or "", {0}).add(event.iteration)
    watches = {model: CollapseWatch() for model, _ in updates}
    warnings = [
        CollapseWarning(
            event_id=named_id(run_id, "collapse-warning", sign.update, sign.signal, model=update.model),
            run_id=run_id,
            occurred_at_ms=update.occurred_at_ms,
            fork_at=max(iteration for iteration in saved.get(model, {0}) if iteration < sign.began),
            model=update.model,
            **asdict(sign),
        )
        for (model, number), update in sorted(updates.items())
        for sign in watches[model].apply(number, update.metrics)
    ]
    return len(updates), warnings
