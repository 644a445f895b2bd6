"""A run: start it, watch it, ask it, prove it, fork it."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

from unstable_stream.algorithms.collapse import advice
from unstable_stream.api.game_filter import GameFilter
from unstable_stream.api.games import Game, find_games, game_list
from unstable_stream.api.launching import Launching, LaunchOrder, launch_here, may_run_here
from unstable_stream.api.loops import wait_for
from unstable_stream.api.place import Place
from unstable_stream.api.settings import changed_config, make_config
from unstable_stream.api.tables import Table
from unstable_stream.archive import query_arrow
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events import CollapseWarning
from unstable_stream.extensions import confined, loading
from unstable_stream.log.open import check_log
from unstable_stream.log.port import EventLog
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.fork import Fork, check_fork, find_fork
from unstable_stream.runs.history import RunStatus, find_run, read_history
from unstable_stream.runs.recording import new_run_id
from unstable_stream.runs.resume import check_resumable, check_unfinished

if TYPE_CHECKING:
    from unstable_stream.api.push import Pushed
    from unstable_stream.api.replaying import Replay
    from unstable_stream.api.what_if import Source
    from unstable_stream.api.why import Why
    from unstable_stream.archive.export import BatchFormat
    from unstable_stream.archive.exported import Manifest
    from unstable_stream.extensions import Spec
    from unstable_stream.history.hindsight.rederive import Rederived
    from unstable_stream.history.hindsight.rerate import Rerated
    from unstable_stream.history.hindsight.track import Tracked
    from unstable_stream.history.proofs.evidence import Progress
    from unstable_stream.history.proofs.reports import AuditReport as AuditReport
    from unstable_stream.history.proofs.reports import VerifyReport as VerifyReport
    from unstable_stream.model_pool.standings import Standing
    from unstable_stream.services.launch.plan import RunPlan
    from unstable_stream.services.streams.trackers import RunTracker


class CollapseReport(NamedTuple):
    """The result of :meth:`Run.collapse`."""

    updates: int
    """The number of updates looked at."""
    warnings: list[CollapseWarning]
    """The signs, in order; empty if there is none."""
    advice: list[str]
    """Each sign in words, with the command that forks the run before it."""


class Run:
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
        self._config = config
        self._place = place
        self._id = run_id or new_run_id(config.name)
        self._fork = fork
        self._recorded = recorded
        self._allowed = allowed  # the code that it may load when it starts; None: all
        self._launching: Launching | None = None
        self._outcome: str | None = None

    @property
    def id(self) -> str:
        """The full id, e.g. ``demo-20260131-142501-3fa1``."""
        return self._id

    @property
    def config(self) -> RunConfig:
        """The whole configuration; see docs/configuration.md."""
        return self._config

    @property
    def place(self) -> Place:
        """The place of the run: data directory and log."""
        return self._place

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
        from unstable_stream.api.planning import plan_config

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
            self._config = changed_config(self._config, {"iterations": iterations})
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
        return fork_run(self._place, self._id, at, changes)

    def scale(self, engines: int | None) -> None:
        """Give a run that is going on so many engines; it is recorded, and holds when the run is resumed.

        Engines that are too many answer what they were asked before they end.

        Args:
            engines: their number, at least 1; ``None``: as configured.

        Raises:
            RunError: the run is over, or has one engine in one process (``backend="inline"``).
            ConfigError: the number is below 1.
        """
        from unstable_stream.runs.scaling import want_engines

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

    # -- what happened in it ----------------------------------------------------------------------

    def sql(
        self,
        query: str,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
        *,
        files: bool = False,
    ) -> Table:
        """Ask the archive about this run alone; :func:`sql` asks about all. docs/archive.md has the tables.

        Args:
            query: SQL of DuckDB.
            parameters: values for ``?``, ``$1`` or ``$name``.
            files: let the query read and write other files than the archive.

        Raises:
            ArchiveError: no archive yet, or wrong SQL; says what would be right.
        """
        return Table(query_arrow(self._place.archive, query, parameters, run_id=self._id, files=files))

    def games(self, **wanted: Unpack[GameFilter]) -> list[Game]:
        """Return its games, the latest first.

        Args:
            wanted: any of these, by name.
            split: ``train``, ``eval`` or ``human``.
            state: ``finished``, ``abandoned`` or ``in-flight``.
            env: part of the environment's id.
            model: uid of a model that played.
            opponent: whom ``model``, or any checkpoint, met.
            seat: which seat ``model``, or any checkpoint, had.
            result: ``win``, ``draw`` or ``loss`` of ``model``, or of any checkpoint.
            update: only games with a step that this learner update trained on or dropped.
            invalid: only games with an invalid move.
            truncated: only games cut short, or with a completion that was.
            min_moves: fewest moves.
            max_moves: most moves.
            text: what a player saw, wrote or played somewhere in it, upper or lower case.
            sort: ``latest``, ``earliest``, ``longest``, ``shortest`` or, by sampled tokens, ``tokens``.
            limit: at most so many, by default 20; ``None``: all.
            offset: leave out so many before.
        """
        archive = self._place.archive
        return game_list(archive, find_games(archive, run=self._id, **wanted))

    def checkpoints(self) -> Table:
        """Return its checkpoints in order: uid, iteration, parent, path, digest, size."""
        return self.sql("FROM checkpoints ORDER BY iteration")

    def metrics(self, name: str = "") -> Table:
        """Return what was measured, in order of time: source, name, value. docs/metrics.md explains each.

        ``name`` is the beginning of the names wanted, e.g. ``learner/``.
        """
        return self.sql("FROM metrics WHERE starts_with(name, $1) ORDER BY occurred_at, name", [name])

    def report(self, path: Path | str = "report.html", *, samples: int = 6) -> Path:
        """Write one HTML page of results, curves, ratings and ``samples`` games, and return its path.

        Raises:
            ReportError: Plotly is not installed, or the file cannot be written.
        """
        from unstable_stream.history.views.report import write_report

        write_report(self._place.archive, [self._id], Path(path), samples=samples)
        return Path(path)

    def why(
        self,
        wanted: str | None = None,
        *,
        update: int | None = None,
        depth: int | None = None,
        limit: int | None = 3,
    ) -> "Why":
        """Return where something comes from, and what came of it.

        Args:
            wanted: id, or its beginning, of a step, game, trajectory or event; or a checkpoint's uid.
            update: a learner update, instead of ``wanted``; by default the run itself.
            depth: hops in each direction; by default 2, and 3 ahead from a game or trajectory.
            limit: how many of each list are followed.
        """
        from unstable_stream.api.why import find_why

        name = wanted or (self._id if update is None else f"update:{update}")
        return find_why(self._place, name, run=self._id, depth=depth, limit=limit)

    # -- proofs and hindsight ---------------------------------------------------------------------

    def audit(self) -> "AuditReport":
        """Prove from the log that games and steps add up: ``ok``, the counts, and ``problems``."""
        from unstable_stream.history.proofs.verify import audit_run

        return self._place.ask_history(lambda log: audit_run(log, self._id, located=self._place.data.located))

    def collapse(self) -> CollapseReport:
        """Look at the run's updates for signs of a collapse, by the rules that the learner applies."""
        from unstable_stream.history.hindsight.collapse import find_collapse

        updates, warnings = self._place.ask_history(lambda log: find_collapse(log, self._id))
        rate = self._config.learner.learning_rate
        return CollapseReport(
            updates, warnings, [advice(warning, rate, self._place.options) for warning in warnings]
        )

    def verify(
        self,
        *,
        games: bool = True,
        jobs: int = 1,
        train: bool = False,
        updates: int | Literal["all"] = 5,
        allow_code: Sequence[str] | None = None,
        progress: "Progress" = lambda what, done, total: None,
    ) -> "VerifyReport":
        """Audit the log; recompute steps, ratings and batches, and compare: ``ok``, ``problems``, ``checks``.

        Args:
            games: also play every recorded game again.
            jobs: processes that play.
            train: also train on recorded updates again, and compare metrics and weights.
            updates: how many of them, spread over the run, as far as its checkpoints have optimizer states;
                ``"all"``: every one, from the beginning.
            allow_code: load only the run's own code and what fits these patterns; ``None``: load all.
            progress: told what is being done, how many records of it are done and how many there are.
        """
        from unstable_stream.history.proofs.verify import verify_run

        if updates != "all" and updates < 1:
            raise ConfigError(f'updates={updates}: expected at least 1, or "all"')
        allowed = self._place.allowed_code(self._id, allow_code, self._config, self._config)

        with confined(allowed):
            return self._place.ask_history(
                lambda log: verify_run(
                    log,
                    self._id,
                    games=games,
                    jobs=jobs,
                    train=train,
                    updates=None if updates == "all" else updates,
                    progress=progress,
                    located=self._place.data.located,
                )
            )

    def standings(self) -> "list[Standing]":
        """Return who is strongest: its evaluation games as a ladder, the best first, also while it plays.

        Each row has ``player``, ``games``, ``score``, wins, draws and losses, those by an invalid move apart,
        ``elo`` with its 95 % interval (Bradley-Terry over all pairs), ``mu`` and ``sigma`` of the run's own
        ratings, and ``against``: the score against each opponent.
        """
        from unstable_stream.model_pool.standings import Standings
        from unstable_stream.runs.starts import run_events

        async def read() -> "list[Standing]":
            standings = Standings()
            async with self._place.opened_history() as log:
                async for _, event in run_events(log, ("game-outcomes", "ratings"), self._id):
                    standings.apply(event)
            return standings.ladder()

        return wait_for(read())

    def rerate(
        self,
        system: str = "trueskill",
        *,
        label: str | None = None,
        replace: bool = False,
        dry_run: bool = False,
        source: "Source | None" = None,
        **settings: float,
    ) -> "Rerated":
        """Rate its games anew and compare with the ratings that were used.

        Args:
            system: ``trueskill``, ``elo`` or ``openskill``.
            label: name of the stored set; by default the system and its settings.
            replace: replace the set of that label.
            dry_run: store nothing.
            source: ``archive`` or ``log``; by default the archive if there is one.
            settings: the system's parameters, e.g. ``k=16``.
        """
        from unstable_stream.api.what_if import rerate_run

        done, _ = rerate_run(
            self._place,
            self._id,
            system=system,
            settings=settings,
            label=label,
            replace=replace,
            dry_run=dry_run,
            source=source,
        )
        return done

    def rederive(
        self,
        rewards: Path | str | Mapping[str, object],
        *,
        label: str | None = None,
        replace: bool = False,
        dry_run: bool = False,
    ) -> "Rederived":
        """Shape its rewards anew and compare with those it was trained on.

        Args:
            rewards: a TOML file with a ``[rewards]`` table, or ``{"step": [RewardForFormat(1.0)]}``.
            label: name of the stored set; by default the file's name, or ``rederived``.
            replace: replace the set of that label.
            dry_run: store nothing.
        """
        from unstable_stream.api.what_if import rederive_run

        done, _ = rederive_run(self._place, self._id, rewards, label=label, replace=replace, dry_run=dry_run)
        return done

    def replay(self, **wanted: Any) -> "Replay":
        """Return a slice of its history, to iterate over, or to give to a plug-in, a log or a learner.

        ``wanted``: the arguments of :class:`Replay` but the run.
        """
        from unstable_stream.api.replaying import Replay

        return Replay(self._place, self._id, **wanted)

    def track(
        self,
        to: "Spec | RunTracker" = "tensorboard",
        directory: Path | str | None = None,
        *,
        follow: bool = False,
        source: Literal["log", "archive"] = "log",
    ) -> "Tracked":
        """Give its metrics to TensorBoard, Weights & Biases or a file, each once, also if called again.

        Args:
            to: ``jsonl``, ``tensorboard``, ``wandb``, ``{"type": "wandb", "project": "UB"}``, a tracker class
                by reference, or an object with ``log``.
            directory: files are written to ``directory/RUN``; by default ``tracking/RUN`` in the data
                directory.
            follow: go on until the run ends.
            source: ``log``, with what expired in it from the archive, or only the ``archive``.

        Raises:
            ConfigError: no such tracker, or its library is not installed.
            RunError: the tracker cannot write.
        """
        from unstable_stream.api.tracking import track_run

        return track_run(self._place, self._id, to, directory, follow=follow, source=source)

    def export(self, directory: Path | str, *, tables: Sequence[str] = (), force: bool = False) -> "Manifest":
        """Write it to Parquet files, one per table.

        Args:
            directory: where the files go: a directory, or an address such as ``s3://bucket/name``.
            tables: names of tables or views; by default all tables.
            force: replace an export that is there.
        """
        from unstable_stream.archive.export import export_run

        return export_run(self._place.archive, self._id, directory, tables=tables, force=force)

    def push(
        self,
        destination: Path | str,
        at: int | None = None,
        *,
        merged: bool = False,
        replace: bool = False,
        public: bool = False,
    ) -> "Pushed":
        """Write a checkpoint as files that transformers, PEFT and vLLM load, with a model card.

        Args:
            destination: a directory, or ``hf://owner/name`` on the Hugging Face Hub.
            at: the update; ``None``: the newest checkpoint.
            merged: the base model with the adapter merged into it, instead of the adapter.
            replace: replace what is there.
            public: on the Hub, let anybody read it; by default the repository is private.

        Raises:
            RunError: no such checkpoint, nothing was trained, or the destination has files.
            CheckpointError: the checkpoint's files are not those that were recorded.
        """
        from unstable_stream.api.push import push_checkpoint

        name = self._id if at is None else f"{self._id}@{at}"
        return push_checkpoint(self._place, name, destination, merged=merged, replace=replace, public=public)

    def export_batches(
        self, directory: Path | str, file_format: "BatchFormat" = "csv", *, force: bool = False
    ) -> list[Path]:
        """Write the batch of each update to a file, ``train_data_step_N.csv``, and return the files.

        The columns are those of the view ``training_batches``.

        Args:
            directory: where the files go.
            file_format: ``csv`` or ``parquet``.
            force: replace files that are there.
        """
        from unstable_stream.archive.export import export_batches

        return export_batches(self._place.archive, self._id, directory, file_format, force=force)


def open_run(run: str, data: Path | str | None = None, log: str | None = None) -> Run:
    """Return a recorded run, also one that another process is running.

    Args:
        run: its id, or an unambiguous beginning.
        data: data directory; ``./unstable-data`` by default.
        log: ``local`` (the file in the data directory, the default) or ``kafka://HOST:PORT``.

    Raises:
        RunError: no such run, or several; lists what is there. Or it was dropped from the archive.
    """
    place = Place.at(data, log)

    try:
        run_id, config = place.ask_history(lambda opened: find_run(opened, run))
    except RunError:
        place.refuse_dropped(run, exact=False)
        raise
    place.refuse_dropped(run_id)
    config = parse_config(config.model_dump(mode="json") | {"log": place.log}, origin=f"run {run_id}")
    return Run(config, place, run_id=run_id, recorded=True)


def fork_run(
    place: Place,
    run: str,
    at: int | None,
    changes: Mapping[str, object],
    overrides: Sequence[str] = (),
    allow_code: Sequence[str] | None = None,
) -> Run:
    """Return a fork of a run; see :meth:`Run.fork`, and :meth:`Run.resume` for the last two."""

    try:
        fork, config = place.ask_history(lambda log: find_fork(log, run, at, located=place.data.located))
    except RunError:
        place.refuse_dropped(run, exact=False)
        raise
    place.refuse_dropped(fork.parent_run_id)
    changed = make_config(changes, config, [*overrides, f"log={place.log}"])
    check_fork(fork, config, changed)
    allowed = place.allowed_code(fork.parent_run_id, allow_code, changed, config)
    from unstable_stream.services.launch.preflight import check_config

    with confined(allowed):
        check_config(changed)
    return Run(changed, place, fork=fork, allowed=allowed)
