"""``unstable-stream rerate``: ratings as they would be under other parameters, or by another system."""

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from unstable_stream.cli.options import DataOption, LogOption
from unstable_stream.cli.query_output import (
    CsvOption,
    Format,
    JsonOption,
    TableOption,
    pick_format,
    print_rows,
)
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR

if TYPE_CHECKING:
    from unstable_stream.archive.what_if import LabelledSet
    from unstable_stream.hindsight.rating_set import Rerated, Scopes
    from unstable_stream.model_pool.systems import RatingSystem
    from unstable_stream.runs.config import RunConfig

__all__ = ["register"]

_SETTINGS = {
    "trueskill": ("mu", "sigma", "beta", "tau", "draw_probability", "inherited_sigma"),
    "elo": ("mu", "k"),
    "openskill": ("mu", "sigma", "beta", "tau", "inherited_sigma"),
}


class Source(StrEnum):
    """Where outcomes are read."""

    ARCHIVE = "archive"
    LOG = "log"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rerate", help=_rerate.__doc__)(_rerate)


def _rerate(
    run: str = typer.Argument(..., help="Run id, or an unambiguous prefix."),
    system: str = typer.Option(
        "trueskill", "--system", help="How to rate: trueskill, elo, openskill, or an extension."
    ),
    mu: float | None = typer.Option(None, "--mu", help="Where a model never seen starts."),
    sigma: float | None = typer.Option(None, "--sigma", help="Its uncertainty."),
    beta: float | None = typer.Option(None, "--beta", help="How much one game says nothing about skill."),
    tau: float | None = typer.Option(None, "--tau", help="How much skill drifts between games."),
    draw_probability: float | None = typer.Option(
        None, "--draw-probability", help="Of equal players, in every environment.  [default: the run's]"
    ),
    inherited_sigma: float | None = typer.Option(
        None, "--inherited-sigma", help="Uncertainty added when a checkpoint follows its parent."
    ),
    k: float | None = typer.Option(None, "--k", help="Elo: the most a game can move a rating."),
    per_env: bool = typer.Option(False, "--per-env", help="Only within each environment."),
    overall: bool = typer.Option(False, "--overall", help="Only over all environments together."),
    label: str | None = typer.Option(
        None, "--label", help="Name of the new set.  [default: the system and the options given]"
    ),
    replace: bool = typer.Option(False, "--replace", help="Replace the set of that --label."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Store nothing, only compare."),
    source: Source | None = typer.Option(
        None, "--from", help="Where to read outcomes.  [default: the archive if there is one]"
    ),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
    as_table: TableOption = False,
) -> None:
    """Rate a run's games anew and compare with the ratings that were used.

    Without options the parameters are the run's own, and nothing differs. The new ratings, after every game
    and in the end, are stored as Parquet in the data directory, under what-if/RUN/LABEL.

    Example: unstable-stream rerate quickstart-2026 --system elo --k 16
    """
    from unstable_stream.archive.what_if import open_set, set_directory
    from unstable_stream.extensions import Reference
    from unstable_stream.hindsight.rating_set import Scopes

    form = pick_format(as_csv, as_json, as_table)
    given = {
        "mu": mu,
        "sigma": sigma,
        "beta": beta,
        "tau": tau,
        "draw_probability": draw_probability,
        "inherited_sigma": inherited_sigma,
        "k": k,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    _check_settings(system, settings)
    scopes = Scopes(per_env=per_env or not overall, overall=overall or not per_env)
    source, run_id, config = _find(run, source, data, log)
    title = Reference.parse(system).target.rpartition(":")[2]
    name = label or "-".join([title, *(f"{key}={value:g}" for key, value in settings.items())])
    directory = set_directory(data, run_id, name)
    rater = _system(system, settings, config)
    if dry_run:
        done = _rate(run_id, rater, scopes, None, source, data, log)
    else:
        with open_set(directory, replace=replace or label is None) as out:
            done = _rate(run_id, rater, scopes, out, source, data, log)
    _print(done, form)
    typer.echo(
        f"{done.games:,} games from the {done.source} in {done.seconds:.1f} s, {done.rated:,} rated; "
        f"{done.changed:,} of {len(done.models):,} ratings differ from those used"
        + ("" if dry_run else f"; the new ones are in {directory}"),
        err=True,
    )


def _check_settings(system: str, settings: Mapping[str, float]) -> None:
    from unstable_stream.errors import ConfigError

    if system not in _SETTINGS:
        if settings:
            raise ConfigError(
                f"--{next(iter(settings)).replace('_', '-')}: an extension takes its arguments in --system, "
                f"e.g. --system '{system}(start=3)'"
            )
        return
    known = _SETTINGS[system]
    for name in settings:
        if name not in known:
            options = ", ".join(f"--{each}".replace("_", "-") for each in known)
            raise ConfigError(f"--{name.replace('_', '-')} means nothing to {system}; it has {options}")


def _system(system: str, settings: Mapping[str, float], config: "RunConfig") -> "RatingSystem":
    from unstable_stream.model_pool import TrueSkillSettings
    from unstable_stream.model_pool.systems import Elo, OpenSkill, TrueSkill, build_rating_system

    if system == "elo":
        return Elo(**settings)
    if system == "openskill":
        return OpenSkill(**settings)
    if system != "trueskill":
        return build_rating_system(system, "--system")
    given: dict[str, Any] = dict(settings)
    for_all = given.pop("draw_probability", None)
    if for_all is None:
        given["draw_probability"] = config.model_pool.draw_probability
    else:
        given["default_draw_probability"] = for_all
    return TrueSkill(TrueSkillSettings(**given))


def _find(run: str, source: Source | None, data: Path, location: str) -> "tuple[Source, str, RunConfig]":
    """Return where the run is, its full id and its configuration."""
    from unstable_stream.errors import RunError
    from unstable_stream.hindsight.rerate import find_archived_run
    from unstable_stream.log.open import opened_log
    from unstable_stream.runs.data_dir import DataDir
    from unstable_stream.runs.history import find_run

    directory = DataDir(data)
    if source is Source.ARCHIVE or (source is None and directory.archive.is_file()):
        try:
            return Source.ARCHIVE, *find_archived_run(directory.archive, run)
        except RunError:
            if source is Source.ARCHIVE:
                raise

    async def read() -> "tuple[str, RunConfig]":
        async with opened_log(location, directory.log, existing=True) as log:
            return await find_run(log, run)

    return Source.LOG, *asyncio.run(read())


def _rate(
    run_id: str,
    system: "RatingSystem",
    scopes: "Scopes",
    out: "LabelledSet | None",
    source: Source,
    data: Path,
    location: str,
) -> "Rerated":
    from unstable_stream.hindsight.rerate import rerate_from_archive, rerate_from_log
    from unstable_stream.log.open import opened_log
    from unstable_stream.runs.data_dir import DataDir

    if source is Source.ARCHIVE:
        return rerate_from_archive(data / "archive.duckdb", run_id, system, scopes, out)

    async def read() -> "Rerated":
        async with opened_log(location, DataDir(data).log, existing=True) as log:
            return await rerate_from_log(log, run_id, system, scopes, out)

    return asyncio.run(read())


_COLUMNS = (
    "env_id",
    "rank",
    "rank_used",
    "model_uid",
    "mu",
    "mu_used",
    "sigma",
    "sigma_used",
    "games",
    "games_used",
)


def _print(done: "Rerated", form: Format) -> None:
    rows = [tuple(getattr(each, name) for name in _COLUMNS) for each in done.models]
    print_rows(_COLUMNS, rows, form)
