"""A run: start it, watch it, ask it, prove it, fork it."""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unstable_stream.api.checkpoints import CheckpointName, find_checkpoint
from unstable_stream.api.launching import Launching, LaunchOrder, launch_here, may_run_here
from unstable_stream.api.loops import wait_for
from unstable_stream.api.place import Place
from unstable_stream.api.recorded_run import RecordedRun
from unstable_stream.api.settings import make_config
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.extensions import confined, loading
from unstable_stream.log.open import check_log
from unstable_stream.log.port import EventLog
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.fork import Fork, check_fork
from unstable_stream.runs.history import RunStatus, find_run, read_history
from unstable_stream.runs.recording import new_run_id
from unstable_stream.runs.resume import check_resumable, check_unfinished
from unstable_stream.runs.sections import SweepConfig

if TYPE_CHECKING:
    from unstable_stream.history.proofs.reports import AuditReport as AuditReport
    from unstable_stream.history.proofs.reports import VerifyReport as VerifyReport
    from unstable_stream.services.launch.plan import RunPlan as RunPlan


class Run(RecordedRun):
    """One run, from :func:`build`, :func:`load`, :func:`open_run` or :meth:`fork`.

    A run that was built is recorded when it starts. One that was opened may be running elsewhere: all
    questions can be asked at any time.
    """

    def __init__(
        self,
        config: RunConfig,
        place: Place,
        *,
        run_id: str | None = None,
        fork: Fork | None = None,
        recorded: bool = False,
        allowed: Sequence[str] | None = None,
    ) -> None:
        """Use :func:`build` or :func:`open_run` instead."""
        if run_id is None:  # only a sweep names a new run; its evaluations and forks are not of it
            config = config.model_copy(update={"sweep": SweepConfig()})
        super().__init__(run_id or new_run_id(config.name), config, place)
        self._fork = fork
        self._recorded = recorded
        self._allowed = allowed  # the code that it may load when it starts; None: all
        self._launching: Launching | None = None
        self._outcome: str | None = None

    @property
    def state(self) -> str:
        """``built``, ``running``, ``lost``, ``completed``, ``stopped`` or ``failed``.

        A run whose processes were killed without a word is ``lost`` after ten minutes of silence.
        """
        if self._launching is not None and self._launching.running:
            return "running"
        if self._outcome is not None:
            return self._outcome
        if not self._recorded:
            return "built"
        from unstable_stream.runs.history import list_runs

        async def read(log: EventLog) -> str:
            return next((run.state for run in await list_runs(log) if run.run_id == self._id), "built")

        return self._place.ask_history(read)

    def __repr__(self) -> str:
        return f"<Run {self._id}: {self.state}>"

    def plan(self) -> "RunPlan":
        """Return where its processes would compute, and their memory; start nothing.

        It plans for this machine, or for the Ray cluster that ``RAY_ADDRESS`` names.

        Returns:
            A plan: ``placement``, ``needs`` by process, ``warnings``, and ``table()`` as text.

        Raises:
            ConfigError: it cannot be placed, or the model does not fit.
            ServiceError: the cluster cannot be reached.
        """
        return plan_config(self._config)

    # -- its life ---------------------------------------------------------------------------------

    def start(self, iterations: int | None = None, *, block: bool = True, live: bool = True) -> "Run":
        """Record the run and run it.

        Args:
            iterations: learner updates, instead of those configured.
            block: return when it is over; Ctrl-C ends it in order, a second one at once. ``False``: return at
                once, then :meth:`wait` or :meth:`stop`; at the end of the program it is stopped in order.
            live: with ``block``, show its progress.

        Raises:
            SystemExit: SIGTERM or SIGHUP ended it, in order.
            RunError: it was started before.
            ConfigError: it cannot run; nothing was written.
            ServiceError: a part of it kept dying; :meth:`resume` goes on.
        """
        if self._recorded:
            raise RunError(f"run {self._id} was started before: resume() goes on with it, fork() begins anew")
        if iterations is not None:
            self._config = make_config({"iterations": iterations}, self._config)
        if self._config.log != "local":
            wait_for(check_log(self._config.log, self._place.data.log))  # before anything heavy is loaded
        return self._launch(resume=False, block=block, live=live)

    def resume(
        self,
        *,
        block: bool = True,
        live: bool = True,
        overrides: Sequence[str] = (),
        allow_code: Sequence[str] | None = None,
        **changes: object,
    ) -> "Run":
        """Go on with a run that was stopped or killed, where its newest checkpoint is.

        Args:
            block: as for :meth:`start`.
            live: as for :meth:`start`.
            overrides: ``key.path=value`` as on a command line.
            allow_code: load only the run's own code and what fits these patterns; ``None``: load all.
            changes: settings to change; those that its steps and ratings follow from stay.

        Raises:
            RunError: it was never started, plays no games, or is completed and is given no more updates.
            ConfigError: a change that would break what is recorded.
        """
        if not self._recorded:
            raise RunError(f"run {self._id} was not started yet: start() it")
        self._config, self._allowed = self._resumable(overrides, allow_code, changes)
        return self._launch(resume=True, block=block, live=live)

    def resumable_config(
        self, overrides: Sequence[str] = (), allow_code: Sequence[str] | None = None, **changes: object
    ) -> RunConfig:
        """Return the configuration that :meth:`resume` would go on with, checked; raises as it does."""
        from unstable_stream.services.launch.preflight import check_config

        config, allowed = self._resumable(overrides, allow_code, changes)
        with confined(allowed):
            check_config(config)
        return config

    def _resumable(
        self, overrides: Sequence[str], allow_code: Sequence[str] | None, changes: Mapping[str, object]
    ) -> tuple[RunConfig, list[str] | None]:
        config = make_config(changes, self._config, overrides)

        async def read(log: EventLog) -> RunStatus:
            return (await read_history(log)).run(self._id)

        check_unfinished(self._place.ask_history(read), config)
        check_resumable(self._config, config)
        return config, self._place.allowed_code(self._id, allow_code, config, self._config)

    def _launch(self, *, resume: bool, block: bool, live: bool) -> "Run":
        if loading():
            raise RunError(
                "a run is started while this script is imported for the code that it names: guard the start "
                'of the run with if __name__ == "__main__":'
            )
        if self._launching is not None and self._launching.running:
            raise RunError(f"run {self._id} is running: wait() for it, or stop() it")
        order = LaunchOrder(
            config=self._config,
            place=self._place,
            run_id=self._id,
            fork=self._fork,
            resume=resume,
            live=live and block,
            on_recorded=self._note_recorded,
        )
        self._launching = self._outcome = None
        with confined(self._allowed):
            if block and may_run_here():
                launched = launch_here(order)
                self._outcome = launched.outcome
                if launched.signal in (signal.SIGTERM, signal.SIGHUP):
                    raise SystemExit(128 + launched.signal)
                return self
            self._launching = Launching(order)
        if not block:
            return self
        while True:
            try:
                return self.wait()
            except KeyboardInterrupt:
                self._launching.stop("SIGINT", signal.SIGINT)

    def _note_recorded(self) -> None:
        self._recorded = True

    def wait(self, timeout_s: float | None = None) -> "Run":
        """Wait for a run that ``start(block=False)`` started; raises what went wrong with it.

        Raises:
            TimeoutError: it was still running after ``timeout_s`` seconds.
            RunError: it was not started from here.
        """
        self._outcome = self._begun_here().wait(timeout_s).outcome
        return self

    def stop(self) -> "Run":
        """End a run of ``start(block=False)`` in order, and wait for its end; :meth:`resume` goes on."""
        self._begun_here().stop()
        return self.wait()

    def _begun_here(self) -> Launching:
        if self._launching is None:
            raise RunError(f"run {self._id} was not started with start(block=False) here, so nobody can wait")
        return self._launching

    def fork(self, at: int | None = None, **changes: object) -> "Run":
        """Return a new run that begins after one of this one's updates; :meth:`start` it.

        It takes over weights, optimizer state, update number and, as opponents, the earlier checkpoints.

        Args:
            at: the update; ``None``: the newest checkpoint.
            changes: settings that differ, e.g. ``learning_rate=1e-4``.

        Raises:
            RunError: no checkpoint of that update.
            ConfigError: a change of what the checkpoint was made with, or nothing left to train.
        """
        return fork_run(self._place, CheckpointName(self._id, at), changes)

    def scale(self, engines: int | None) -> None:
        """Give a run that is going on so many engines; it is recorded, and holds when the run is resumed.

        Engines that are too many answer what they were asked before they end.

        Args:
            engines: their number, at least 1; ``None``: as configured.

        Raises:
            RunError: the run is over, or has one engine in one process (``backend="inline"``).
            ConfigError: the number is below 1.
        """
        from unstable_stream.runs.recording import want_engines

        if engines is not None and engines < 1:
            raise ConfigError(f"engines={engines}: a run needs at least 1")
        if self._config.backend == "inline":
            raise RunError(f'run {self._id} has one engine in one process: backend = "inline"')

        self._place.ask_log(lambda log: want_engines(log, self._id, engines))

    def watch(self) -> None:
        """Show the run live until it ends, or until Ctrl-C, which closes the view and not the run."""
        from unstable_stream.services.tracking.terminal_interface import watch_run

        try:
            self._place.ask_log(
                lambda log: watch_run(log, self._id, self._config, options=self._place.options)
            )
        except KeyboardInterrupt:
            return


def watch_together(runs: Sequence[Run]) -> None:
    """Show runs of one log, a row for each, until all have ended; Ctrl-C closes the view, not the runs."""
    from unstable_stream.services.tracking.terminal_interface import watch_runs

    try:
        runs[0].place.ask_log(lambda log: watch_runs(log, {run.id: run.config for run in runs}))
    except KeyboardInterrupt:
        return


def plan_config(config: RunConfig, *, fetch: bool = True) -> "RunPlan":
    """Plan for this machine, or for the Ray cluster that ``RAY_ADDRESS`` names; start nothing.

    Args:
        config: of the run.
        fetch: whether a model may be fetched from Hugging Face; if not, and it is no directory here, the plan
            has places and no memory.

    Raises:
        ConfigError: it cannot be placed, or the model does not fit.
        ServiceError: the cluster cannot be reached.
    """
    from unstable_stream.inference.base_model import model_here
    from unstable_stream.inference.model_config import read_shape
    from unstable_stream.runs.base_model import base_model_path
    from unstable_stream.runs.placement import place
    from unstable_stream.services.launch.plan import RunPlan, plan_shape, this_machine

    here = model_here(config.model, config.model_revisions.get(config.model))
    shape = read_shape(base_model_path(config)) if fetch or here else None
    machines = [this_machine()]
    if config.backend == "ray" and "RAY_ADDRESS" in os.environ:
        from unstable_stream.services.launch.ray.cluster import look_at_cluster

        machines = look_at_cluster()
    return RunPlan(place(config, machines), (), ()) if shape is None else plan_shape(config, shape, machines)


def open_run(run: str = "latest", data: Path | str | None = None, log: str | None = None) -> Run:
    """Return a recorded run, also one that another process is running.

    Args:
        run: its id, the beginning of it, its name, its number in ``unstable-stream runs``, or ``latest``: the
            newest run that trains.
        data: data directory; ``./unstable-data`` by default.
        log: ``local`` (the file in the data directory, the default) or ``kafka://HOST:PORT``.

    Raises:
        RunError: no such run, or several; lists what is there. Or it was dropped from the archive.
    """
    place = Place.at(data, log)

    dropped = place.dropped()
    try:
        run_id, config = place.ask_history(lambda opened: find_run(opened, run, dropped))
    except RunError:
        place.refuse_dropped(run)
        raise
    config = parse_config(config.model_dump(mode="json") | {"log": place.log}, origin=f"run {run_id}")
    return Run(config, place, run_id=run_id, recorded=True)


def fork_run(
    place: Place,
    parent: CheckpointName,
    changes: Mapping[str, object],
    overrides: Sequence[str] = (),
    allow_code: Sequence[str] | None = None,
) -> Run:
    """Return a fork of a run; see :meth:`Run.fork`, and :meth:`Run.resume` for the last two."""

    try:
        fork, config = find_checkpoint(place, *parent, to_train=True)
    except RunError:
        place.refuse_dropped(parent.run)
        raise
    changed = make_config(changes, config, [*overrides, f"log={place.log}"])
    check_fork(fork, config, changed)
    allowed = place.allowed_code(fork.parent_run_id, allow_code, changed, config)
    from unstable_stream.services.launch.preflight import check_config

    with confined(allowed):
        check_config(changed)
    return Run(changed, place, fork=fork, allowed=allowed)
