"""``unstable-stream collapse``: looks at a recorded run for signs of a collapse."""

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import DataOption, LogOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("collapse", help=_collapse.__doc__)(_collapse)


def _collapse(
    run: str = typer.Argument(..., help="Run id, or an unambiguous prefix."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
) -> None:
    """Look at a run's updates for signs of a collapse; status 1 and the way back if there are any.

    The learner does the same while it trains; here the rules are applied to any recorded run.

    Example: unstable-stream collapse quickstart-2026
    """
    from unstable_stream.api.output import plain
    from unstable_stream.api.run import open_run

    found = open_run(run, data, log).collapse()
    for sentence in found.advice:
        typer.secho(plain(sentence), fg="yellow")
    if found.warnings:
        raise typer.Exit(1)
    typer.echo(f"no sign of a collapse in {found.updates} updates")
