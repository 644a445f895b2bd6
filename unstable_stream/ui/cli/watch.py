"""``unstable-stream watch``: the live view of a run, from any terminal."""

from typing import Annotated

import typer

from unstable_stream.api.place import Place


def command(runs: Annotated[list[str], typer.Argument(metavar="RUN...")], *, place: Place) -> None:
    """Follow a run live: progress, throughput, win rates, ratings. Ctrl-C closes the view, not the run.

    Several runs get a row each.

    Example: unstable-stream watch quickstart-2026

    Args:
        runs: Run ids, or unambiguous prefixes.
    """
    from unstable_stream.api.run import open_run
    from unstable_stream.api.watching import watch_together

    opened = [open_run(run, place.root, place.log) for run in runs]
    if len(opened) == 1:
        opened[0].watch()
    else:
        watch_together(opened)
