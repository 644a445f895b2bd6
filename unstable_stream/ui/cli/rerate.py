"""``unstable-stream rerate``: ratings as they would be under other parameters, or by another system."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unstable_stream.api.place import Place
from unstable_stream.ui.cli.query_output import Format, print_rows

if TYPE_CHECKING:
    from unstable_stream.api.what_if import Rerated


def command(
    context: typer.Context,
    run: str,
    system: str = "trueskill",
    mu: float | None = None,
    sigma: float | None = None,
    beta: float | None = None,
    tau: float | None = None,
    draw_probability: float | None = None,
    inherited_sigma: float | None = None,
    k: float | None = None,
    per_env: bool = False,
    overall: bool = False,
    label: str | None = None,
    replace: bool = False,
    dry_run: bool = False,
    source: Annotated[Literal["archive", "log"] | None, typer.Option("--from")] = None,
    *,
    place: Place,
    form: Format,
) -> None:
    """Rate a run's games anew and compare with the ratings that were used.

    Without options the parameters are the run's own, and nothing differs. The new ratings, after every game
    and in the end, are stored as Parquet in the data directory, under what-if/RUN/LABEL.

    Example: unstable-stream rerate quickstart-2026 --system elo --k 16

    Args:
        run: Run id, or an unambiguous prefix.
        system: How to rate: trueskill, elo, openskill, or an extension.
        mu: Where a model never seen starts.
        sigma: Its uncertainty.
        beta: How much one game says nothing about skill.
        tau: How much skill drifts between games.
        draw_probability: Of equal players, in every environment. Default: the run's.
        inherited_sigma: Uncertainty added when a checkpoint follows its parent.
        k: Elo: the most a game can move a rating.
        per_env: Only within each environment.
        overall: Only over all environments together.
        label: Name of the new set. Default: the system and the options given.
        replace: Replace the set of that --label.
        dry_run: Store nothing, only compare.
        source: Where to read outcomes. Default: the archive if there is one.
    """
    from unstable_stream.api.what_if import SYSTEMS, rerate_run

    known = {name for names in SYSTEMS.values() for name in names}
    settings = {name: value for name, value in context.params.items() if name in known and value is not None}
    done, directory = rerate_run(
        place,
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
