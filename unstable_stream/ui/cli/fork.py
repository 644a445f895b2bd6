"""``unstable-stream fork``: a new run from a point of another's history."""

from typing import Annotated

import typer

from unstable_stream.api.place import Place
from unstable_stream.ui.cli.options import AllowCodeOption, QuietOption, SetOption


def command(
    run: str,
    at: Annotated[int | None, typer.Option(min=0, metavar="UPDATE")] = None,
    overrides: SetOption = None,
    dry_run: bool = False,
    quiet: QuietOption = False,
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
) -> None:
    """Start a new run from a checkpoint of another, with other settings.

    It goes on with the weights, optimizer state and update number of that checkpoint, new games, and the
    earlier checkpoints as opponents.

    Example: unstable-stream fork quickstart-2026 --at 10 --set learner.learning_rate=1e-4

    Args:
        run: Run to fork: id, or an unambiguous prefix.
        at: Fork after this update. Default: the newest checkpoint.
        dry_run: Check everything; print the resolved configuration and where it would compute.
    """
    from unstable_stream.api.run import fork_run
    from unstable_stream.ui.cli.running import print_dry_run, run_to_end

    forked = fork_run(place, run, at, {}, overrides or [], allow_code or [])
    if dry_run:
        print_dry_run(forked.config)
        return
    run_to_end(forked, quiet=quiet)
