"""``unstable-stream prune``: forget the saved states of runs that are over."""

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import DataOption, LogOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("prune", help=_prune.__doc__)(_prune)


def _prune(
    run: list[str] = typer.Argument(None, metavar="[RUN]...", help="Runs that are over; by default all."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be forgotten."),
    idle_days: float = typer.Option(
        30.0,
        "--idle-days",
        min=0.05,
        help="A run that never ended is over after so many days without a record.",
    ),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
) -> None:
    """Forget what the stream processors have saved of runs that are over; a resumed run is folded again.

    A run is over when it has ended, or was killed and nothing was recorded of it for long. The archiver does
    this by itself, seven days after an end, and 30 days after the last record of a run that was killed.

    Example: unstable-stream prune --dry-run
    """
    from unstable_stream.api.place import Place
    from unstable_stream.api.states import prune_states

    found = prune_states(Place.at(data, log), run or (), dry_run=dry_run, idle_days=idle_days)
    done = "would be forgotten" if dry_run else "forgotten"
    runs = len({each.run_id for each in found})
    typer.echo(f"{sum(len(each.names) for each in found):,} saved states of {runs:,} runs {done}")
