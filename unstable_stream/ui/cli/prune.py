"""``unstable-stream prune``: forget the saved states of runs that are over."""

from typing import Annotated

import typer

from unstable_stream.api.place import Place


def command(
    run: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...")] = None,
    dry_run: bool = False,
    idle_days: Annotated[float, typer.Option(min=0.05)] = 30.0,
    *,
    place: Place,
) -> None:
    """Forget what the stream processors have saved of runs that are over; a resumed run is folded again.

    A run is over when it has ended, or was killed and nothing was recorded of it for long. The archiver does
    this by itself, seven days after an end, and 30 days after the last record of a run that was killed.

    Example: unstable-stream prune --dry-run

    Args:
        run: Runs that are over; by default all.
        dry_run: Only say what would be forgotten.
        idle_days: A run that never ended is over after so many days without a record.
    """
    from unstable_stream.api.states import prune_states

    found = prune_states(place, run or (), dry_run=dry_run, idle_days=idle_days)
    done = "would be forgotten" if dry_run else "forgotten"
    runs = len({each.run_id for each in found})
    typer.echo(f"{sum(len(each.names) for each in found):,} saved states of {runs:,} runs {done}")
