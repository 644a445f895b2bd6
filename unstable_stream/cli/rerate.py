"""``unstable-stream rerate``: ratings as they would be under other parameters, or by another system."""

from typing import TYPE_CHECKING, Literal

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import DataOption, LogOption
from unstable_stream.cli.query_output import (
    CsvOption,
    Format,
    JsonOption,
    TableOption,
    pick_format,
    print_rows,
)

if TYPE_CHECKING:
    from unstable_stream.api.what_if import Rerated

__all__ = ["register"]


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
        None, "--draw-probability", help="Of equal players, in every environment. Default: the run's."
    ),
    inherited_sigma: float | None = typer.Option(
        None, "--inherited-sigma", help="Uncertainty added when a checkpoint follows its parent."
    ),
    k: float | None = typer.Option(None, "--k", help="Elo: the most a game can move a rating."),
    per_env: bool = typer.Option(False, "--per-env", help="Only within each environment."),
    overall: bool = typer.Option(False, "--overall", help="Only over all environments together."),
    label: str | None = typer.Option(
        None, "--label", help="Name of the new set. Default: the system and the options given."
    ),
    replace: bool = typer.Option(False, "--replace", help="Replace the set of that --label."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Store nothing, only compare."),
    source: Literal["archive", "log"] | None = typer.Option(
        None, "--from", help="Where to read outcomes. Default: the archive if there is one."
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
    from unstable_stream.api.place import Place
    from unstable_stream.api.what_if import rerate_run

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
    done, directory = rerate_run(
        Place.at(data, log),
        run,
        system=system,
        settings=settings,
        per_env=per_env,
        overall=overall,
        label=label,
        replace=replace,
        dry_run=dry_run,
        source=source,
    )
    _print(done, form)
    typer.echo(
        f"{done.games:,} games from the {done.source} in {done.seconds:.1f} s, {done.rated:,} rated; "
        f"{done.changed:,} of {len(done.models):,} ratings differ from those used"
        + ("" if directory is None else f"; the new ones are in {directory}"),
        err=True,
    )


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
