"""Watch several runs in one terminal."""

from collections.abc import Sequence

from unstable_stream.api.loops import wait_for
from unstable_stream.api.run import Run

__all__ = ["watch_together"]


def watch_together(runs: Sequence[Run]) -> None:
    """Show runs of one log, a row for each, until all have ended; Ctrl-C closes the view, not the runs."""
    from unstable_stream.tracking.many_runs import watch_runs

    async def follow() -> None:
        async with runs[0].place.opened_log() as log:
            await watch_runs(log, {run.id: run.config for run in runs})

    try:
        wait_for(follow())
    except KeyboardInterrupt:
        return
