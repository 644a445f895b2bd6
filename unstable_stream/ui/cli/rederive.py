"""``unstable-stream rederive``: rewards and advantages as they would be under other transformations."""

from dataclasses import astuple, fields
from pathlib import Path
from typing import Annotated

import typer

from unstable_stream.api.place import Place
from unstable_stream.ui.cli.options import AllowCodeOption
from unstable_stream.ui.cli.query_output import Format, print_rows


def command(
    run: str,
    rewards: Annotated[Path, typer.Option(metavar="TOML")],
    label: str | None = None,
    replace: bool = False,
    dry_run: bool = False,
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
    form: Format,
) -> None:
    """Shape a run's rewards anew and compare them, stage by stage, with those it was trained on.

    Prints new minus used by stage and role: how many differ, how many change sign, and how they are spread.
    The new rewards and advantages are stored as Parquet in the data directory, under what-if/RUN/LABEL.

    Example: unstable-stream rederive quickstart-2026 --rewards new.toml --label no-baseline

    Args:
        run: Run id, or an unambiguous prefix.
        rewards: File whose table `rewards` has the stages to change.
        label: Name of the new set. Default: the file's name without .toml.
        replace: Replace the set of that --label.
        dry_run: Store nothing, only compare.
    """
    from unstable_stream.api.what_if import RewardChange, rederive_run

    done, directory = rederive_run(
        place, run, rewards, label=label, replace=replace, dry_run=dry_run, allow_code=allow_code or []
    )
    names = [field.name for field in fields(RewardChange)]
    print_rows(names, [astuple(change) for change in done.changes], form)
    typer.echo(
        f"{done.steps:,} steps and {done.updates:,} batches in {done.seconds:.1f} s; the reward of "
        f"{done.differing:,} steps differs from the one used"
        + ("" if directory is None else f"; the new ones are in {directory}"),
        err=True,
    )
