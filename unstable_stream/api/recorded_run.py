"""A recorded run and its questions: what happened in it, what proves it, and what can be taken out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

from unstable_stream.algorithms.collapse import advice
from unstable_stream.api.game_filter import GameFilter
from unstable_stream.api.games import Game, find_games, game_list
from unstable_stream.api.place import Place
from unstable_stream.api.tables import Table
from unstable_stream.archive import query_arrow
from unstable_stream.errors import ConfigError
from unstable_stream.events import CollapseWarning
from unstable_stream.extensions import confined
from unstable_stream.runs.config import RunConfig

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
    from unstable_stream.history.proofs.ledger import Progress
    from unstable_stream.history.proofs.reports import AuditReport as AuditReport
    from unstable_stream.history.proofs.reports import VerifyReport as VerifyReport
    from unstable_stream.model_pool.standings import Standing
    from unstable_stream.services.streams.trackers import RunTracker


class CollapseReport(NamedTuple):
    """The result of :meth:`Run.collapse`."""

    updates: int
    """The number of updates looked at."""
    warnings: list[CollapseWarning]
    """The signs, in order; empty if there is none."""
    advice: list[str]
    """Each sign in words, with the command that forks the run before it."""


class RecordedRun:
    """The questions about a run, which can be asked at any time."""

    def __init__(self, run_id: str, config: RunConfig, place: Place) -> None:
        self._id = run_id
        self._config = config
        self._place = place

    @property
    def id(self) -> str:
        """The full id, e.g. ``demo-20260131-142501-3fa1``."""
        return self._id

    @property
    def config(self) -> RunConfig:
        """The whole configuration; see docs/reference/configuration.md."""
        return self._config

    @property
    def place(self) -> Place:
        """The place of the run: data directory and log."""
        return self._place

    # -- what happened in it ----------------------------------------------------------------------

    def sql(
        self,
        query: str,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
        *,
        files: bool = False,
    ) -> Table:
        """Ask the archive about this run alone; :func:`sql` asks about all.

        docs/reference/archive.md has the tables.

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
        """Return what was measured, in order of time: source, name, value.

        docs/reference/metrics.md explains each. ``name`` is the beginning of the names: ``learner/``.
        """
        return self.sql("FROM metrics WHERE starts_with(name, $1) ORDER BY occurred_at, name", [name])

    def report(self, path: Path | str = "report.html", *, samples: int = 10, verify: bool = False) -> Path:
        """Write one HTML page of results, curves, ratings and ``samples`` games, and return its path.

        With ``verify`` the page holds the result of :meth:`verify`, too.

        Raises:
            ReportError: Jinja is not installed, or the file cannot be written.
        """
        from unstable_stream.api.archived import proof_of, write_report

        proofs = {self._id: proof_of(self.verify(allow_code=[]))} if verify else {}
        write_report(self._place.archive, [self._id], Path(path), samples=samples, proofs=proofs)
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
        ``elo`` with its 95 % interval (Bradley-Terry over all pairs), how probably it is ``ahead_of_next``,
        ``alpha_rank``, ``mu`` and ``sigma`` of the run's own ratings, and ``against``: the score against each
        opponent.
        """
        from unstable_stream.model_pool.standings import Standings

        standings = Standings()
        self._place.each_event(self._id, ("game-outcomes", "ratings"), standings.apply)
        return standings.ladder()

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
        """Give it to a tracker of metrics, traces or lineage, each piece once, also if called again.

        Args:
            to: ``jsonl``, ``tensorboard``, ``wandb``, ``mlflow``, ``otel``, ``openlineage``, ``{"type":
                "wandb", "project": "UB"}``, a tracker class by reference, or an object with ``log``.
            directory: files are written to ``directory/RUN``; by default ``tracking/RUN`` in the data
                directory.
            follow: go on until the run ends.
            source: ``log``, with what expired in it from the archive, or only the ``archive``.

        Raises:
            ConfigError: no such tracker, or its library is not installed.
            RunError: the tracker cannot write.
        """
        from unstable_stream.api.replaying import track_run

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
        from unstable_stream.api.push import push

        name = self._id if at is None else f"{self._id}@{at}"
        return push(name, destination, merged=merged, replace=replace, public=public, **self._place.named)

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
