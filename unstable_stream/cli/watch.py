"""``unstable-stream watch``: the live view of a run, from any terminal."""

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import DataOption, LogOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch", help=_watch.__doc__)(_watch)


def _watch(
    runs: list[str] = typer.Argument(..., metavar="RUN...", help="Run ids, or unambiguous prefixes."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
) -> None:
    """Follow a run live: progress, throughput, win rates, ratings. Ctrl-C closes the view, not the run.

    Several runs get a row each.

    Example: unstable-stream watch quickstart-2026
    """
    from unstable_stream.api.run import open_run
    from unstable_stream.api.watching import watch_together

    opened = [open_run(run, data, log) for run in runs]
    if len(opened) == 1:
        opened[0].watch()
    else:
        watch_together(opened)
