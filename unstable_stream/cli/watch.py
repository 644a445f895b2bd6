"""``unstable-stream watch``: the live view of a run, from any terminal."""

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import DataOption, LogOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch", help=_watch.__doc__)(_watch)


def _watch(
    run: str = typer.Argument(..., help="Run id, or an unambiguous prefix."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
) -> None:
    """Follow a run live: progress, throughput, win rates, ratings. Ctrl-C closes the view, not the run.

    Example: unstable-stream watch quickstart-2026
    """
    from unstable_stream.api.run import open_run

    open_run(run, data, log).watch()
