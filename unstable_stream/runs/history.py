"""The runs of a log, folded from their events: how each began, how it stands, how it is found.

Everyone who asks after a run asks here: its configuration, whether it goes on, where it was forked. The fold
gives the same for any order of the topics and however often an event is delivered. It keeps a few events and
counts of each run, so memory grows with the number of runs and not with what they do.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unstable_stream.errors import RunError
from unstable_stream.events import (
    Checkpoint,
    Event,
    ExtensionUse,
    LearnerUpdate,
    RunFinished,
    RunResumed,
    RunStarted,
    event_id,
)
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import events_to_end
from unstable_stream.runs.config import RunConfig, parse_config

__all__ = ["RunHistory", "RunStatus", "find_run", "list_runs", "pick_run", "read_history", "run_started"]

_NAMED_RUNS: Final = 10


@dataclass(slots=True, repr=False, eq=False)
class RunStatus:
    """One run as its events tell it."""

    run_id: str
    began: RunStarted | None = None
    """``None`` until this event has been read."""
    resumed: RunResumed | None = None
    """The latest resumption, if there was one."""
    newest_checkpoint: int | None = None
    """Iteration of the newest checkpoint that has been read; a fork's own ones and those taken over."""
    _ends: dict[str, RunFinished] = field(default_factory=dict)
    _updates: IndexSet = field(default_factory=IndexSet)

    def __repr__(self) -> str:
        return f"<RunStatus {self.run_id}: {self.state}, {self.updates} updates>"

    def apply(self, event: Event) -> None:
        """Take in an event of this run; kinds that say nothing of the run as a whole are of no concern."""
        if isinstance(event, RunStarted):
            self.began = self.began or event
        elif isinstance(event, RunResumed):
            if event.resumption > self.resumptions:
                self.resumed = event
        elif isinstance(event, RunFinished):
            self._ends.setdefault(event.event_id, event)
        elif isinstance(event, LearnerUpdate):
            self._updates.add(event.update)
        elif isinstance(event, Checkpoint):
            newest = self.newest_checkpoint
            self.newest_checkpoint = event.iteration if newest is None else max(newest, event.iteration)

    @property
    def name(self) -> str:
        """Display name."""
        return self.began.name if self.began else ""

    @property
    def started_at_ms(self) -> int:
        """Unix time in milliseconds; 0 if the beginning has not been read."""
        return self.began.occurred_at_ms if self.began else 0

    @property
    def resumptions(self) -> int:
        """How many times it went on after it had stopped."""
        return self.resumed.resumption if self.resumed else 0

    @property
    def ended(self) -> RunFinished | None:
        """How it ended; ``None`` while it goes on, also again after a resumption."""
        return self._ends.get(event_id(self.run_id, "run-finished", self.resumptions))

    @property
    def state(self) -> str:
        """``running`` (also of a run that was killed), ``completed``, ``stopped`` or ``failed``."""
        return self.ended.outcome if self.ended else "running"

    @property
    def updates_before(self) -> int:
        """Number of the update it begins after: 0, or the parent's update that it was forked at."""
        return (self.began.parent_update or 0) if self.began else 0

    @property
    def games_before(self) -> int:
        """Training games its parent had started by then; 0 if it is no fork. Games are numbered on."""
        return self.began.parent_games if self.began else 0

    @property
    def replayed_run_id(self) -> str | None:
        """The run whose steps it trains on; ``None`` if it plays games of its own."""
        return self.began.parent_run_id if self.began and self.began.replays else None

    @property
    def updates(self) -> int:
        """Learner updates of its own, as far as the topics that were read tell."""
        saved = 0 if self.newest_checkpoint is None else max(0, self.newest_checkpoint - self.updates_before)
        return max(saved, len(self._updates), *(end.updates for end in self._ends.values()), 0)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What :meth:`config` parses, as it was recorded; empty if it has not been read."""
        latest = self.resumed or self.began
        return {} if latest is None else latest.config

    @property
    def extensions(self) -> Sequence[ExtensionUse]:
        """The code that it runs with, as it was recorded with :attr:`settings`."""
        latest = self.resumed or self.began
        return () if latest is None else latest.extensions

    def first_config(self) -> RunConfig:
        """Return the configuration it began with.

        Raises:
            RunError: the beginning has not been read.
            ConfigError: the configuration does not make sense to this version of the package.
        """
        if self.began is None:
            raise RunError(f"run {self.run_id} has no {RunStarted.__struct_config__.tag} event in this log")
        return self._parsed(self.began.config)

    def config(self) -> RunConfig:
        """Return the configuration it runs with: that of the latest resumption, or the first one.

        Raises:
            RunError, ConfigError: see :meth:`first_config`.
        """
        return self.first_config() if self.resumed is None else self._parsed(self.resumed.config)

    def _parsed(self, settings: Mapping[str, Any]) -> RunConfig:
        return parse_config(settings, origin=f"run {self.run_id}")


class RunHistory:
    """Fold of ``runs`` and, for the number of updates, of ``checkpoints`` or ``learner-updates``."""

    def __init__(self) -> None:
        self.runs: dict[str, RunStatus] = {}
        """By run id."""

    def apply(self, event: Event) -> None:
        """Take in an event; others than those of the fold's topics are of no concern."""
        if isinstance(event, RunStarted | RunResumed | RunFinished | Checkpoint | LearnerUpdate):
            run = self.runs.get(event.run_id)
            if run is None:
                run = self.runs[event.run_id] = RunStatus(event.run_id)
            run.apply(event)

    def run(self, run_id: str) -> RunStatus:
        """Return the run of exactly this id: no beginning of one will do, whatever else is there.

        Raises:
            RunError: no such run; lists what is there.
        """
        found = self.runs.get(run_id)
        if found is None or found.began is None:
            raise _no_run(run_id, self._begun(), "this log")
        return found

    def find(self, prefix: str) -> RunStatus:
        """Return the run that a person means by an id or by an unambiguous beginning of one.

        Raises:
            RunError: no such run, or several; lists what is there.
        """
        return self.runs[pick_run(prefix, self._begun())]

    def _begun(self) -> list[str]:
        return sorted(run.run_id for run in self.runs.values() if run.began)

    def finished(self) -> frozenset[str]:
        """Return the runs that are over: their groups read no more, however much is written."""
        return frozenset(run.run_id for run in self.runs.values() if run.ended)

    def newest_first(self) -> list[RunStatus]:
        """Return all runs by the time they began, the newest first."""
        return sorted(self.runs.values(), key=lambda run: (-run.started_at_ms, run.run_id))


def pick_run(prefix: str, known: Iterable[str], where: str = "this log") -> str:
    """Return the id in ``known`` that ``prefix`` is, or of which it is the only beginning.

    Args:
        prefix: a run id or the beginning of one.
        known: ids of all runs there are.
        where: where they are, for the message.

    Raises:
        RunError: no such run, or several; lists what is there.
    """
    ids = sorted(set(known))
    found = [prefix] if prefix in ids else [run_id for run_id in ids if run_id.startswith(prefix)]
    if not found:
        raise _no_run(prefix, ids, where)
    if len(found) > 1:
        raise RunError(f"{prefix!r} is the beginning of several runs: {', '.join(found)}")
    return found[0]


def _no_run(wanted: str, ids: Sequence[str], where: str) -> RunError:
    listed = ", ".join(ids[-_NAMED_RUNS:]) or "none"
    return RunError(f"no run {wanted!r} in {where}; known runs: {listed}")


async def read_history(log: EventLog, topics: Sequence[str] = (RunStarted.TOPIC,)) -> RunHistory:
    """Fold these topics as they are now; a topic that does not exist yet holds nothing."""
    history = RunHistory()
    there = await log.topics()
    read = [topic for topic in topics if topic in there]
    if read:
        async for _, event in events_to_end(log, read):
            history.apply(event)
    return history


async def list_runs(log: EventLog) -> list[RunStatus]:
    """Return all runs with the number of their updates, newest first."""
    # Checkpoints first: the run of every checkpoint that has been read is then found as well.
    return (await read_history(log, (Checkpoint.TOPIC, RunStarted.TOPIC))).newest_first()


async def find_run(log: EventLog, prefix: str) -> tuple[str, RunConfig]:
    """Return a run's full id and the configuration it runs with; see :meth:`RunHistory.find`.

    Raises:
        RunError: no such run, or several; lists what is there.
        ConfigError: its configuration does not make sense to this version of the package.
    """
    run = (await read_history(log)).find(prefix)
    return run.run_id, run.config()


async def run_started(log: EventLog, run_id: str) -> RunStarted:
    """Return how the run of exactly this id began; raises :class:`RunError` if there is none."""
    began = (await read_history(log)).run(run_id).began
    assert began is not None, "a run is found by its beginning"
    return began
