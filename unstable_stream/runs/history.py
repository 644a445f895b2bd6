"""The runs of a log, folded from their events: the beginning and state of each, and the search for one.

All code that needs a fact about a run asks here: its configuration, its state, its point of fork. The fold
gives the same result for any order of the topics, and for repeated events. It keeps a few events and counts
of each run, so memory grows only with the number of runs.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unstable_stream.errors import RunError
from unstable_stream.events import (
    Checkpoint,
    EnvironmentUse,
    Event,
    ExtensionUse,
    LearnerUpdate,
    Metrics,
    RunFinished,
    RunResumed,
    RunStarted,
    event_id,
)
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.events.run_ids import KnownRun, no_run, pick_run
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import events_to_end
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.life import LOST_AFTER_MS, silence_of, state_of
from unstable_stream.runs.overlay import as_recorded


@dataclass(slots=True, repr=False, eq=False)
class RunStatus:
    """One run, folded from its events."""

    run_id: str
    began: RunStarted | None = None
    """``None`` until this event has been read."""
    resumed: RunResumed | None = None
    """The latest resumption, if there was one."""
    heard_at_ms: int = 0
    """Unix milliseconds of the newest event that has been read."""
    asked_at_ms: int | None = None
    """Unix milliseconds of the moment that :attr:`state` is of; ``None``: no silent run is lost."""
    _ends: dict[str, RunFinished] = field(default_factory=dict)
    _newest: dict[str | None, int] = field(default_factory=dict)
    """By trained model, the iteration of its newest checkpoint that has been read."""
    _updates: dict[str | None, IndexSet] = field(default_factory=dict)
    """By trained model, the numbers of its updates that have been read."""

    def __repr__(self) -> str:
        return f"<RunStatus {self.run_id}: {self.state}, {self.updates} updates>"

    def apply(self, event: Event) -> None:
        """Fold an event of this run; of most types only the time is of interest."""
        self.heard_at_ms = max(self.heard_at_ms, event.occurred_at_ms)
        if isinstance(event, RunStarted):
            self.began = self.began or event
        elif isinstance(event, RunResumed):
            if event.resumption > self.resumptions:
                self.resumed = event
        elif isinstance(event, RunFinished):
            self._ends.setdefault(event.event_id, event)
        elif isinstance(event, LearnerUpdate):
            self._updates.setdefault(event.model, IndexSet()).add(event.update)
        elif isinstance(event, Checkpoint):
            self._newest[event.model] = max(event.iteration, self._newest.get(event.model, 0))

    @property
    def name(self) -> str:
        """Display name."""
        return self.began.name if self.began else ""

    @property
    def started_at_ms(self) -> int:
        """Unix milliseconds of the start; 0 if the beginning has not been read."""
        return self.began.occurred_at_ms if self.began else 0

    @property
    def resumptions(self) -> int:
        """The number of times that the run was resumed."""
        return self.resumed.resumption if self.resumed else 0

    @property
    def ended(self) -> RunFinished | None:
        """The end of the run; ``None`` while it runs, also after it was resumed."""
        return self._ends.get(event_id(self.run_id, "run-finished", self.resumptions))

    @property
    def state(self) -> str:
        """``running``, ``lost`` (no end, and silent for ten minutes), ``completed``, ``stopped`` or
        ``failed``.
        """
        outcome = self.ended.outcome if self.ended else None
        return state_of(outcome, self.heard_at_ms, self.asked_at_ms or self.heard_at_ms)

    @property
    def silence(self) -> str:
        """For how long a lost run has been silent, in words; empty for others."""
        return silence_of(self.state, self.heard_at_ms, self.asked_at_ms or self.heard_at_ms)

    @property
    def updates_before(self) -> int:
        """Number of the update after which the run begins: 0, or the parent's update at the fork."""
        return (self.began.parent_update or 0) if self.began else 0

    @property
    def games_before(self) -> int:
        """The number of training games that its parent had started at the fork; 0 if it is no fork. The run's
        games are numbered from there.
        """
        return self.began.parent_games if self.began else 0

    @property
    def replayed_run_id(self) -> str | None:
        """The run whose steps this run trains on; ``None`` if it plays its own games."""
        return self.began.parent_run_id if self.began and self.began.replays else None

    @property
    def updates(self) -> int:
        """The number of the run's own learner updates, of all models, as far as the topics were read."""
        saved = {model: max(0, newest - self.updates_before) for model, newest in self._newest.items()}
        read = {model: len(updates) for model, updates in self._updates.items()}
        made = sum(max(saved.get(model, 0), read.get(model, 0)) for model in saved.keys() | read.keys())
        return max(made, *(end.updates for end in self._ends.values()), 0)

    @property
    def trains(self) -> bool:
        """Whether it was to make updates of its own, which evaluations and games of people do not."""
        learner = self.settings.get("learner")
        wanted = learner.get("iterations", 1) if isinstance(learner, Mapping) else 1
        return not isinstance(wanted, int) or wanted > self.updates_before  # what cannot be read may train

    @property
    def settings(self) -> Mapping[str, Any]:
        """The recorded settings that :meth:`config` parses; empty if they have not been read."""
        latest = self.resumed or self.began
        return {} if latest is None else as_recorded(latest.config)

    @property
    def extensions(self) -> Sequence[ExtensionUse]:
        """The code that the run uses, as recorded with :attr:`settings`."""
        latest = self.resumed or self.began
        return () if latest is None else latest.extensions

    @property
    def environments(self) -> Sequence[EnvironmentUse]:
        """The environments that the run plays, as recorded with :attr:`settings`."""
        latest = self.resumed or self.began
        return () if latest is None else latest.environments

    def first_config(self) -> RunConfig:
        """Return the first configuration of the run.

        Raises:
            RunError: the beginning has not been read.
            ConfigError: this version of the package does not accept the configuration.
        """
        if self.began is None:
            raise RunError(f"run {self.run_id} has no {RunStarted.__struct_config__.tag} event in this log")
        return self._parsed(self.began.config)

    def config(self) -> RunConfig:
        """Return the latest configuration of the run: that of the last resume, or the first one.

        Raises:
            RunError, ConfigError: see :meth:`first_config`.
        """
        return self.first_config() if self.resumed is None else self._parsed(self.resumed.config)

    def _parsed(self, settings: Mapping[str, Any]) -> RunConfig:
        return parse_config(as_recorded(settings), origin=f"run {self.run_id}")


class RunHistory:
    """Fold of ``runs`` and, for the number of updates, of ``checkpoints`` or ``learner-updates``."""

    def __init__(self) -> None:
        self.runs: dict[str, RunStatus] = {}
        """By run id."""

    def apply(self, event: Event) -> None:
        """Fold an event; events of other topics are ignored."""
        if isinstance(event, RunStarted | RunResumed | RunFinished | Checkpoint | LearnerUpdate):
            run = self.runs.get(event.run_id)
            if run is None:
                run = self.runs[event.run_id] = RunStatus(event.run_id)
            run.apply(event)

    def run(self, run_id: str) -> RunStatus:
        """Return the run with exactly this id; a beginning of an id is not enough.

        Raises:
            RunError: there is no such run; the message lists the runs.
        """
        found = self.runs.get(run_id)
        if found is None or found.began is None:
            raise no_run(run_id, self._begun(), "this log")
        return found

    def find(self, wanted: str, dropped: Collection[str] = ()) -> RunStatus:
        """Return the run that is meant; see :func:`~unstable_stream.events.run_ids.pick_run`.

        Those that were ``dropped`` from the archive are not meant; they have numbers all the same.

        Raises:
            RunError: no such run, or several; lists what is there.
        """
        begun = [run for run in reversed(self.newest_first()) if run.began]
        known = [KnownRun(run.run_id, run.name, run.trains, n) for n, run in enumerate(begun, 1)]
        return self.runs[pick_run(wanted, [run for run in known if run.run_id not in dropped])]

    def _begun(self) -> list[str]:
        return sorted(run.run_id for run in self.runs.values() if run.began)

    def finished(self) -> frozenset[str]:
        """Return the runs that are over: their groups read nothing more."""
        return frozenset(run.run_id for run in self.runs.values() if run.ended)

    def newest_first(self) -> list[RunStatus]:
        """Return all runs, the newest first."""
        return sorted(self.runs.values(), key=lambda run: (-run.started_at_ms, run.run_id))


async def read_history(log: EventLog, topics: Sequence[str] = (RunStarted.TOPIC,)) -> RunHistory:
    """Fold the present records of these topics; a topic that does not exist yet is empty."""
    history = RunHistory()
    there = await log.topics()
    read = [topic for topic in topics if topic in there]
    if read:
        async for _, event in events_to_end(log, read):
            history.apply(event)
    return history


async def list_runs(log: EventLog) -> list[RunStatus]:
    """Return all runs with the number of their updates and their present state, newest first."""
    # Read checkpoints first: then the run of every checkpoint read is found too.
    runs = (await read_history(log, (Checkpoint.TOPIC, RunStarted.TOPIC))).newest_first()
    await hear_of_runs(log, runs)
    return runs


async def hear_of_runs(log: EventLog, runs: Sequence[RunStatus]) -> None:
    """Find out which runs without an end have recorded a sign of life lately; the others are ``lost``."""
    now_ms = time.time_ns() // 1_000_000
    open_runs = {run.run_id: run for run in runs if not run.ended}
    for run in open_runs.values():
        run.asked_at_ms = now_ms
    if not open_runs or Metrics.TOPIC not in await log.topics():
        return
    starts = await log.offsets_for_time(Metrics.TOPIC, now_ms - LOST_AFTER_MS)
    async for _, event in events_to_end(log, (Metrics.TOPIC,), starts=starts):
        if event.run_id in open_runs:
            open_runs[event.run_id].apply(event)
    for run in open_runs.values():
        if run.state == "lost":  # there are few of these: find out how long each has been silent
            starts = await log.offsets_for_time(Metrics.TOPIC, run.heard_at_ms)
            async for _, event in events_to_end(log, (Metrics.TOPIC,), run_id=run.run_id, starts=starts):
                run.apply(event)


async def find_run(log: EventLog, wanted: str, dropped: Collection[str] = ()) -> tuple[str, RunConfig]:
    """Return a run's full id and latest configuration; see :meth:`RunHistory.find`.

    Raises:
        RunError: no such run, or several; lists what is there.
        ConfigError: this version of the package does not accept its configuration.
    """
    run = (await read_history(log)).find(wanted, dropped)
    return run.run_id, run.config()


async def run_started(log: EventLog, run_id: str) -> RunStarted:
    """Return the start event of the run with exactly this id; raises :class:`RunError` if there is none."""
    began = (await read_history(log)).run(run_id).began
    assert began is not None, "a run is found by its beginning"
    return began
