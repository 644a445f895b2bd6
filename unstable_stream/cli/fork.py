"""``unstable-stream fork``: a new run from a point of another's history."""

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import AllowCodeOption, DataOption, LogOption, SetOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("fork", help=_fork.__doc__)(_fork)


def _fork(
    run: str = typer.Argument(..., help="Run to fork: id, or an unambiguous prefix."),
    at: int | None = typer.Option(
        None,
        "--at",
        min=0,
        metavar="UPDATE",
        help="Fork after this update. Default: the newest checkpoint.",
    ),
    overrides: SetOption = None,
    dry_run: bool = typer.Option(
        False,
        "--dry-run",
        help="Check everything; print the resolved configuration and where it would compute.",
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No live view."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
    allow_code: AllowCodeOption = None,
) -> None:
    """Start a new run from a checkpoint of another, with other settings.

    It goes on with the weights, optimizer state and update number of that checkpoint, new games, and the
    earlier checkpoints as opponents.

    Example: unstable-stream fork quickstart-2026 --at 10 --set learner.learning_rate=1e-4
    """
    from unstable_stream.api.place import Place
    from unstable_stream.api.run import fork_run
    from unstable_stream.cli.running import print_dry_run, run_to_end

    forked = fork_run(Place.at(data, log), run, at, {}, overrides or [], allow_code or [])
    if dry_run:
        print_dry_run(forked.config)
        return
    run_to_end(forked, quiet=quiet)
