"""Watch several runs in one terminal."""

from collections.abc import Sequence

from unstable_stream.api.run import Run


def watch_together(runs: Sequence[Run]) -> None:
    """Show runs of one log, a row for each, until all have ended; Ctrl-C closes the view, not the runs."""
    from unstable_stream.services.tracking.terminal_interface import watch_runs

    try:
        runs[0].place.ask_log(lambda log: watch_runs(log, {run.id: run.config for run in runs}))
    except KeyboardInterrupt:
        return
