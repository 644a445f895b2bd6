"""``unstable-stream backup``: copy a data directory while runs write to it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.ui.cli.options import DataOption


def command(
    target: Annotated[Path, typer.Argument(metavar="DIR")], data: DataOption = DEFAULT_DATA_DIR
) -> None:
    """Copy a data directory while runs write to it. Checkpoints are linked where the disk is the same.

    Example: unstable-stream backup /backups/monday --data unstable-data

    Args:
        target: Directory for the copy; it must not exist.
    """
    from unstable_stream.api.backup import back_up
    from unstable_stream.api.output import plain

    done = back_up(data, target)
    typer.echo(
        f"{done.path}: log {done.log_bytes / 1e6:,.1f} MB, archive {done.archive_bytes / 1e6:,.1f} MB, "
        f"{done.checkpoints} checkpoints"
    )
    if done.stored:
        print(f"{done.stored} checkpoints are in a store, and not in the backup", file=sys.stderr)
    for path in done.left_out:
        print(
            f"left out, for it is in no directory of checkpoints of its run: {plain(path)}", file=sys.stderr
        )
    for path in done.missing:
        print(f"not there, and so not in the backup: {plain(path)}", file=sys.stderr)
