"""Sweeps: many runs of one configuration, one after the other or beside each other, and means over seeds.

Each run is an ordinary one, in a process of its own; with ``backend = "inline"`` and one at a time, in this
one. What has ended and what is left is read from the log, so the same call goes on where it was cut.
"""

import contextlib
import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, TypeAlias

from unstable_stream.api.build import build
from unstable_stream.api.launching import may_run_here
from unstable_stream.api.place import DEFAULT_LOG, Place
from unstable_stream.api.run import Run, open_run
from unstable_stream.api.settings import expanded, full_key
from unstable_stream.errors import ConfigError, RunError, UnstableStreamError
from unstable_stream.events import Event, LearnerUpdate, Metrics, event_id
from unstable_stream.extensions import needs_this_process
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.history import RunStatus, list_runs
from unstable_stream.runs.placement import Machine
from unstable_stream.runs.recording import new_run_id
from unstable_stream.runs.run_view import RunView
from unstable_stream.runs.sections import SweepConfig
from unstable_stream.runs.sweeps import (
    Cell,
    Worse,
    clearly_worse,
    final_rate,
    first_and_last,
    is_over,
    over_seeds,
    sweep_name,
)
from unstable_stream.runs.sweeps import SeedsResult as SeedsResult
from unstable_stream.services.launch.plan import this_machine
from unstable_stream.services.launch.stopping import SIGNALS, Requests

_TOPICS: Final = ("runs", "game-outcomes", "checkpoints", "learner-updates")
_CORES_OF_A_RUN: Final = 4
_PROGRAM: Final = (
    "import json, logging, sys; from unstable_stream.api.output import configure_output; "
    f"from {__name__} import run_one; configure_output('launcher', level=logging.WARNING); "
    "sys.exit(run_one(*json.load(sys.stdin)))"
)
_LAST_LINES: Final = 3
_PROGRESS_S: Final = 300.0
Report: TypeAlias = Callable[[str], None]
"""Called with a line for each run that begins or ends, and every five minutes for one that goes on."""


class SweepEnd(NamedTuple):
    """The result of :meth:`Sweep.start`."""

    ended: int
    """Runs that have ended, also before."""
    failed: tuple[str, ...]
    """Ids of the runs that failed; the same call goes on with them."""
    worse: Mapping[str, Worse]
    """The configurations that were stopped, being clearly worse than the best one."""
    interrupted: bool
    """True if a signal has stopped it."""


def sweep(
    config: "RunConfig | Mapping[str, Any] | Path | str | None" = None,
    *,
    seeds: Sequence[int] = (),
    grid: Mapping[str, Sequence[object]] | None = None,
    data: Path | str | None = None,
    log: str | None = None,
    **settings: Any,
) -> "Sweep":
    """Return the runs of one configuration with several seeds and values, checked and not started.

    Args:
        config: the configuration, as for :func:`build`.
        seeds: the seeds; none: the configuration's.
        grid: keys as for :func:`build`, each with its values; every combination is a run for each seed.
        data: as for :func:`build`.
        log: as for :func:`build`.
        settings: as for :func:`build`; ``Any``: of any kind.

    Raises:
        ConfigError: one of the configurations cannot run, or a seed or value is there twice.
    """
    base = build(config=config, data=data, log=log, **settings)
    given = sorted((".".join(full_key(key)), list(values)) for key, values in (grid or {}).items())
    varied: dict[str, list[Any]] = dict(given)
    if len(varied) < len(given):
        raise ConfigError(f"grid: two names are of one key: {', '.join(grid or ())}")
    if "seed" in varied:
        raise ConfigError("grid: the seed is varied by seeds, on the command line --seeds 0,1,2")
    for values in (list(seeds), *varied.values()):
        if any(value in values[:place] for place, value in enumerate(values)):
            raise ConfigError(f"seeds and grid: a value is there twice in {values}")
    try:
        json.dumps(varied)
    except TypeError as error:
        raise ConfigError(f"grid: a value is a number, a text, a list or a table: {error}") from error
    name = sweep_name(base.config, list(varied))
    cells: dict[Cell, RunConfig] = {}
    for seed, chosen in itertools.product(seeds or [base.config.seed], itertools.product(*varied.values())):
        own: dict[str, Any] = dict(zip(varied, chosen, strict=True))
        changes = [(key, expanded(key, value, base.config.model)) for key, value in own.items()]
        given_all = settings | {"overrides": [*settings.get("overrides", ()), *changes, ("seed", seed)]}
        try:
            made = build(config=config, data=data, log=log, **given_all).config  # a preset is resolved anew
        except ConfigError as error:
            if (said := str(error)).startswith(tuple(f"--set {key}" for key in own)):
                raise ConfigError(said.replace("--set", "--grid", 1)) from error
            raise
        part = made.model_copy(update={"sweep": SweepConfig(name=name, varied=own)})
        cells[Cell(seed, json.dumps(own))] = part
    return Sweep(name, cells, base.place)


def view_of(place: Place, run_id: str, config: RunConfig) -> RunView:
    """Return what a run's games and updates have come to."""
    view = RunView(run_id, config)
    place.each_event(run_id, _TOPICS, view.apply)
    return view


class Sweep:
    """Runs that differ in their seed and in some keys; see :func:`sweep`."""

    def __init__(self, name: str, cells: Mapping[Cell, RunConfig], place: Place) -> None:
        """Use :func:`sweep` instead."""
        self.name = name
        self.place = place
        self._cells = dict(cells)
        self._views: dict[str, RunView] = {}
        self._interrupted = False
        self._waits = False  # for a run on a thread of this process: in a notebook
        self._processes: set[subprocess.Popen[str]] = set()

    def __repr__(self) -> str:
        return f"<Sweep {self.name}: {len(self._cells)} runs>"

    @property
    def runs(self) -> list[Run]:
        """Its recorded runs, in the order of seeds and values."""
        return [open_run(run.run_id, self.place.root, self.place.log) for run in self._recorded().values()]

    def results(self) -> list[SeedsResult]:
        """Return how well each configuration plays, by opponent: means over the seeds that have ended.

        The 95 % intervals are of Student's t over one number for each seed, its win rate in the evaluation
        games of its last checkpoint, and at least as wide as Wilson's of all these games.
        """
        ended = {cell: run for cell, run in self._recorded().items() if _has_ended(run)}
        return over_seeds({cell: first_and_last(self._view(run)) for cell, run in ended.items()})

    def planned(self) -> list[tuple[str, str, str]]:
        """Return for each run the seed and values, ``to run``, ``to resume`` or how it ended, and its id."""
        recorded = self._recorded()
        states = {cell: run.state if _has_ended(run) else "to resume" for cell, run in recorded.items()}
        ids = {cell: run.run_id for cell, run in recorded.items()}
        return [(cell.label, states.get(cell, "to run"), ids.get(cell, "")) for cell in self._cells]

    def seconds_of_a_run(self) -> float | None:
        """Return the mean length of its runs that ended and were not resumed; ``None``: there is none."""
        took = [
            (run.ended.occurred_at_ms - run.started_at_ms) / 1000
            for run in self._recorded().values()
            if run.ended and _has_ended(run) and not run.resumptions
        ]
        return sum(took) / len(took) if took else None

    def start(
        self,
        *,
        jobs: int | None = None,
        stop_worse: bool = False,
        allow_code: Sequence[str] = (),
        report: Report = print,
    ) -> SweepEnd:
        """Run what has not ended: begin what is new, resume what was cut; Ctrl-C ends all in order.

        Args:
            jobs: runs beside each other; ``None``: one for each GPU, without one for each four cores; one
                with objects of this process, or on the cluster of ``RAY_ADDRESS``, over which a run spreads.
            stop_worse: take the seeds in turn, each for all configurations. A configuration whose 95 %
                interval of the final win rate over its seeds lies below that of the best one gets no more.
            allow_code: code that a run that is resumed may load beside its own, as for :meth:`Run.resume`.
            report: called with lines that say which runs begin and end, and how far they are.

        Raises:
            ConfigError: the runs cannot go on beside each other.
            RunError: another process is running the sweep.
        """
        machine = Machine() if "RAY_ADDRESS" in os.environ else this_machine()
        named = [spec for config in self._cells.values() for *_, spec in config.references()]
        own = next((spec.target for spec in named if needs_this_process(spec.target)), None)
        if own and jobs and jobs > 1:
            raise ConfigError(f"{own} is an object of this process, so runs come one by one: use jobs=1")
        jobs = jobs or (1 if own else machine.gpus or max(1, machine.cpus // _CORES_OF_A_RUN))
        if jobs > 1 and any(config.metrics_port for config in self._cells.values()):
            raise ConfigError(f"metrics_port: {jobs} runs beside each other cannot share it: leave it out")
        by_seed = itertools.groupby(self._cells, key=lambda cell: cell.seed if stop_worse else 0)
        stages = [list(cells) for _, cells in by_seed]
        worse: dict[str, Worse] = {}
        failed: list[str] = []
        with self._alone() as lock, self._signals():
            environments = environments_of(jobs, machine.gpus)
            for stage in stages:
                left = [cell for cell in stage if cell.configuration not in worse]
                failed += self._play(left, environments, allow_code, lock, report)
                if self._interrupted:
                    break
                for name, why in self._judge(worse).items() if stage is not stages[-1] else ():
                    report(f"{name} is stopped: {why.words}")
                    worse[name] = why
        ended = sum(_has_ended(run) for run in self._recorded().values())
        return SweepEnd(ended, tuple(failed), worse, self._interrupted)

    def _recorded(self) -> dict[Cell, RunStatus]:
        """Return the newest recorded run of each cell."""
        if self.place.log == DEFAULT_LOG and not self.place.data.log.exists():
            return {}
        newest_first = [(Cell.of(run, self.name), run) for run in self.place.ask_log(list_runs)]
        gone = self.place.dropped()
        newest = {cell: run for cell, run in reversed(newest_first) if cell and run.run_id not in gone}
        return {cell: newest[cell] for cell in self._cells if cell in newest}

    def _view(self, run: RunStatus) -> RunView:
        if run.run_id not in self._views:
            self._views[run.run_id] = view_of(self.place, run.run_id, run.config())
        return self._views[run.run_id]

    def _judge(self, known: Collection[str]) -> dict[str, Worse]:
        """Return the configurations that are found clearly worse now, and record each with its newest run."""
        rates: dict[str, list[tuple[float, int]]] = {}
        newest: dict[str, str] = {}
        for cell, run in self._recorded().items():
            rate = final_rate(self._view(run)) if _has_ended(run) else None
            if rate is not None:
                rates.setdefault(cell.configuration, []).append(rate)
                newest[cell.configuration] = run.run_id
        worse = {name: why for name, why in clearly_worse(rates).items() if name not in known}
        for name, why in worse.items():
            event = Metrics(
                event_id=event_id(newest[name], "metrics", "sweep", len(rates[name])),
                run_id=newest[name],
                occurred_at_ms=time.time_ns() // 1_000_000,
                source="sweep",
                values={"sweep/stopped-after-seeds": len(rates[name]), **why.values},
            )
            self.place.ask_log(lambda log, event=event: log.append([record_from_event(event)]))  # type: ignore[misc]
        return worse

    # -- its processes ----------------------------------------------------------------------------

    def _play(
        self,
        cells: Sequence[Cell],
        environments: Sequence[dict[str, str]],
        allow_code: Sequence[str],
        lock: int,
        report: Report,
    ) -> list[str]:
        """Play the runs that have not ended, in as many processes as there are environments.

        Returns:
            The ids of those that failed.
        """
        recorded = self._recorded()
        left = [cell for cell in cells if cell not in recorded or not _has_ended(recorded[cell])]
        here = len(environments) == 1 and all(self._cells[cell].backend == "inline" for cell in left)
        free = list(environments)
        failed = []

        def play(cell: Cell) -> None:
            if self._interrupted:
                return
            config, known = self._cells[cell], recorded.get(cell)
            run_id = known.run_id if known else new_run_id(config.name)
            said = f"{list(self._cells).index(cell) + 1}/{len(self._cells)} {cell.label}:"
            report(f"{said} {'resumed' if known else 'begins'}, {run_id}")
            place = (str(self.place.root), self.place.log)
            order = (config.model_dump(mode="json"), *place, run_id, [*allow_code] if known else None)
            environment, began = free.pop(), time.monotonic()
            self._waits = here and not may_run_here()
            with self._telling(cell, said, report):
                error = run_one(*order) if here else self._run_beside(order, environment, lock)
            self._waits = False
            free.append(environment)
            minutes = _minutes_since(began)
            run = self._recorded().get(cell)
            if run is not None and _has_ended(run):
                rate = final_rate(self._view(run))
                won = "" if rate is None else f", at the end {rate[0]:.1%} won"
                report(f"{said} {run.state} in {minutes}{won}")
            elif error and not self._interrupted:
                failed.append(run_id)
                report(f"{said} failed after {minutes}: {error}")
            elif not self._interrupted:
                self._interrupted = True
                report(f"{said} was stopped after {minutes}; the same again goes on with {run_id}")

        if here:
            for cell in left:
                play(cell)
        else:
            with ThreadPoolExecutor(len(environments), "sweep") as pool:
                list(pool.map(play, left))
        return failed

    @contextlib.contextmanager
    def _telling(self, cell: Cell, said: str, report: Report) -> Iterator[None]:
        """Report now and then how many updates of a run have been made."""
        over, began = threading.Event(), time.monotonic()

        def tell() -> None:
            while not over.wait(_PROGRESS_S):
                events: list[Event] = []
                try:
                    if run := self._recorded().get(cell):
                        self.place.each_event(run.run_id, (LearnerUpdate.TOPIC,), events.append)
                except UnstableStreamError as error:
                    report(f"{said} how far it is could not be read now: {error}")
                    continue
                done = max((each.update for each in events if isinstance(each, LearnerUpdate)), default=0)
                of = self._cells[cell].learner.iterations
                report(f"{said} {done} of {of} updates after {_minutes_since(began)}")

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join()

    def _run_beside(self, order: Sequence[Any], environment: Mapping[str, str], lock: int) -> str | None:
        """Do :func:`run_one` in a process of its own, ``Any``: with what it takes."""
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
            pass_fds=[lock],  # as long as it runs, nobody else runs the sweep
            start_new_session=True,  # Ctrl-C is passed on, once
        )
        self._processes.add(process)
        if self._interrupted:
            process.terminate()
        _, said = process.communicate(json.dumps(order))
        self._processes.discard(process)
        last = "\n".join(said.strip().splitlines()[-_LAST_LINES:])
        return None if process.returncode == 0 else last or f"its process ended with {process.returncode}"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[int]:
        """Hold the lock of the sweep on this machine; its number is passed on to the runs."""
        self.place.data.refuse_export()
        path = self.place.data.sweep_lock(self.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunError(
                    f"sweep {self.name} is being run by another process: wait for it, or stop it"
                ) from error
            yield file.fileno()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass signals to the main thread on to the runs, which end in order."""

        requests = Requests()

        def handle(number: int, _: FrameType | None) -> None:
            if requests.take(signal.Signals(number)):
                self._interrupted = True
                for process in list(self._processes):
                    process.terminate()
                if self._waits:
                    raise KeyboardInterrupt

        self._interrupted = self._waits = False
        main = threading.current_thread() is threading.main_thread()
        handled = [number for number in SIGNALS if main and signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handle) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run_one(
    config: Mapping[str, Any], root: str, log: str, run_id: str, resumes_with: Sequence[str] | None
) -> str | None:
    """Begin a run of a sweep, or resume it with this code allowed, until its end or a signal.

    Returns:
        What went wrong.
    """
    place = Place.at(root, log)
    try:
        if resumes_with is not None:
            open_run(run_id, place.root, place.log).resume(live=False, allow_code=resumes_with)
        else:
            Run(parse_config(config, origin=f"run {run_id}"), place, run_id=run_id).start(live=False)
    except UnstableStreamError as error:
        return str(error)
    except SystemExit:  # a signal has ended it in order
        return None
    return None


def environments_of(jobs: int, gpus: int) -> list[dict[str, str]]:
    """Return the environment of each of some runs beside each other: the GPUs that it may use, if any are."""
    if jobs == 1 or not gpus:
        return [{}] * jobs
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    names = visible.split(",")
    return [{"CUDA_VISIBLE_DEVICES": ",".join(names[job % gpus :: jobs])} for job in range(jobs)]


def _minutes_since(began: float) -> str:
    return "{}:{:02} minutes".format(*divmod(int(time.monotonic() - began), 60))


def _has_ended(run: RunStatus) -> bool:
    return run.ended is not None and is_over(run.ended.outcome, run.ended.reason)
