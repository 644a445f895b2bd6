"""Runs from settings and files, and questions to all runs of a place."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from unstable_stream.api.checkpoints import begun_from
from unstable_stream.api.place import Place
from unstable_stream.api.run import Run
from unstable_stream.api.settings import make_config
from unstable_stream.api.tables import Table
from unstable_stream.archive import query_arrow
from unstable_stream.errors import ConfigError
from unstable_stream.runs import history
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.history import RunStatus

if TYPE_CHECKING:
    from unstable_stream.services.launch.launcher import Backend

__all__ = ["RunConfig", "build", "check", "list_runs", "load", "sql"]


class CollectorPart(Protocol):
    """A :class:`~unstable_stream.api.unstable_baselines.Collector` with what it collects for."""

    def settings_with(self, learner: Any) -> dict[str, Any]:
        """Return what both describe together, as keyword arguments of :func:`build`."""


def build(
    *,
    config: "RunConfig | Mapping[str, Any] | Path | str | None" = None,
    collector: CollectorPart | Mapping[str, Any] | None = None,
    learner: Any = None,
    data: Path | str | None = None,
    log: str | None = None,
    backend: "Backend | None" = None,
    overrides: Sequence[str | tuple[str, Any]] = (),
    **settings: Any,
) -> Run:
    """Return a run that is checked and not started. Nothing is written.

    Every key of docs/reference/configuration.md is an argument: flat where one section has it
    (``learning_rate=1e-4``), nested (``learner={"learning_rate": 1e-4}``), or with a dot. Environments may be
    ids, opponents names; wherever a name is expected, an object will do: ``algorithm=MyAlgorithm()``,
    ``opponents=[my_function]``.

    Args:
        config: the base to start from: a TOML file, a mapping, or another run's ``config``.
        collector: keys of that section; or, with ``learner``, the parts of the documented form.
        learner: likewise.
        data: data directory; ``./unstable-data`` by default.
        log: ``local`` (a file in the data directory, the default) or ``kafka://HOST:PORT``.
        backend: ``ray`` (the default), or ``inline`` for this process alone.
        overrides: ``key.path=value`` as on a command line, or pairs of both, stronger than all else.
        settings: the keys; ``Any``: of any kind, since names, objects and sections are accepted.

    Raises:
        ConfigError: a setting that does not exist, with the closest one, or that cannot work.
        EnvironmentUnavailableError: an environment cannot be played on this machine.
    """
    if isinstance(collector, Mapping):
        settings["collector"], collector = collector, None
    if isinstance(learner, Mapping):
        settings["learner"], learner = learner, None
    if (collector is None) != (learner is None):
        raise ConfigError("build(collector=…, learner=…): give both, or settings instead")
    if collector is not None and learner is not None:
        settings = collector.settings_with(learner) | settings
    chosen = {"log": log, "backend": backend}
    settings |= {name: value for name, value in chosen.items() if value is not None}
    made = make_config(settings, config, overrides)
    # A new run takes the model as it is now, also if its settings are those of a recorded one.
    made = made.model_copy(update={"model_fingerprint": ""})
    place = Place.at(data, made.log)
    return Run(check(begun_from(place, made) if made.init_from else made), place)


def check(config: RunConfig) -> RunConfig:
    """Check a configuration for everything that can fail before a run starts, and return it."""
    # Imported here: it loads the games.
    from unstable_stream.services.launch.preflight import check_config

    check_config(config)
    return config


def load(
    path: Path | str,
    *,
    data: Path | str | None = None,
    log: str | None = None,
    backend: "Backend | None" = None,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Run:
    """Return the run that a TOML file describes, checked and not started; see :func:`build`.

    Args:
        path: the file.
        data: data directory; ``./unstable-data`` by default.
        log: the event log, instead of the file's.
        backend: ``ray`` or ``inline``.
        overrides: ``key.path=value`` as on a command line.
        settings: keys that differ from the file.
    """
    return build(config=Path(path), data=data, log=log, backend=backend, overrides=overrides, **settings)


def list_runs(data: Path | str | None = None, log: str | None = None) -> list[RunStatus]:
    """Return all runs of a log but removed ones, newest first: ``run_id``, ``name``, ``state``, ``updates``.

    Args:
        data: data directory; ``./unstable-data`` by default.
        log: ``local`` (the default) or ``kafka://HOST:PORT``.

    Raises:
        EventLogError: there is no log.
    """
    place = Place.at(data, log)
    dropped = place.dropped()
    return [run for run in place.ask_history(history.list_runs) if run.run_id not in dropped]


def sql(
    question: str,
    parameters: Sequence[object] | Mapping[str, object] | None = None,
    *,
    data: Path | str | None = None,
    files: bool = False,
) -> Table:
    """Ask the archive about all runs; docs/reference/archive.md has the tables.

    Args:
        question: SQL of DuckDB.
        parameters: values for ``?``, ``$1`` or ``$name``.
        data: data directory; ``./unstable-data`` by default.
        files: let the query read and write other files than the archive.

    Raises:
        ArchiveError: there is no archive, or the SQL is wrong; says what would be right.
    """
    return Table(query_arrow(Place.at(data).archive, question, parameters, files=files))
