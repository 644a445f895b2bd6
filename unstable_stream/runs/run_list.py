"""The runs a log knows of, and how each stands."""

from dataclasses import dataclass

from unstable_stream.events import Checkpoint, Event, RunFinished, RunResumed, RunStarted
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import read_to_end, readable_events

__all__ = ["RunList", "RunStatus", "finished_runs", "list_runs"]


@dataclass(slots=True)
class RunStatus:
    """One run."""

    run_id: str
    name: str = ""
    started_at_ms: int = 0
    """Unix time in milliseconds."""
    state: str = "running"
    """``running``, ``completed``, ``stopped`` or ``failed``; a run killed without a word is ``running``."""
    updates: int = 0
    """Learner updates whose checkpoint was saved, or all once the run has ended."""


class RunList:
    """Fold of ``runs`` and, for the updates of what is running, ``checkpoints``."""

    def __init__(self) -> None:
        self.runs: dict[str, RunStatus] = {}

    def apply(self, event: Event) -> None:
        """Take in an event; others than those named are of no concern."""
        if not isinstance(event, RunStarted | RunResumed | RunFinished | Checkpoint):
            return
        run = self.runs.setdefault(event.run_id, RunStatus(event.run_id))
        if isinstance(event, RunStarted):
            run.name, run.started_at_ms = event.name, event.occurred_at_ms
        elif isinstance(event, RunResumed):
            run.state = "running"
        elif isinstance(event, RunFinished):
            run.state, run.updates = event.outcome, event.updates
        else:
            run.updates = max(run.updates, event.iteration)

    def finished(self) -> frozenset[str]:
        """The runs that are over."""
        return frozenset(run.run_id for run in self.runs.values() if run.state != "running")


async def list_runs(log: EventLog) -> list[RunStatus]:
    """Return all runs, newest first."""
    runs = await _read(log, (Checkpoint.TOPIC, RunStarted.TOPIC))
    return sorted(runs.runs.values(), key=lambda run: (-run.started_at_ms, run.run_id))


async def finished_runs(log: EventLog) -> frozenset[str]:
    """Return the runs that are over: their groups read no more, however much is written."""
    return (await _read(log, (RunStarted.TOPIC,))).finished()


async def _read(log: EventLog, topics: tuple[str, ...]) -> RunList:
    runs = RunList()
    there = await log.topics()
    for topic in topics:
        if topic in there:
            async for record in read_to_end(log, (topic,)):
                for event in readable_events([record]):
                    runs.apply(event)
    return runs
