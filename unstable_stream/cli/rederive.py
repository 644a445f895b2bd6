"""``unstable-stream rederive``: rewards and advantages as they would be under other transformations."""

from dataclasses import astuple, fields
from pathlib import Path

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import AllowCodeOption, DataOption, LogOption
from unstable_stream.cli.query_output import CsvOption, JsonOption, TableOption, pick_format, print_rows

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rederive", help=_rederive.__doc__)(_rederive)


def _rederive(
    run: str = typer.Argument(..., help="Run id, or an unambiguous prefix."),
    rewards: Path = typer.Option(
        ..., "--rewards", metavar="TOML", help="File whose table `rewards` has the stages to change."
    ),
    label: str | None = typer.Option(
        None, "--label", help="Name of the new set. Default: the file's name without .toml."
    ),
    replace: bool = typer.Option(False, "--replace", help="Replace the set of that --label."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Store nothing, only compare."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
    allow_code: AllowCodeOption = None,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
    as_table: TableOption = False,
) -> None:
    """Shape a run's rewards anew and compare them, stage by stage, with those it was trained on.

    Prints new minus used by stage and role: how many differ, how many change sign, and how they are spread.
    The new rewards and advantages are stored as Parquet in the data directory, under what-if/RUN/LABEL.

    Example: unstable-stream rederive quickstart-2026 --rewards new.toml --label no-baseline
    """
    from unstable_stream.api.place import Place
    from unstable_stream.api.what_if import RewardChange, rederive_run

    form = pick_format(as_csv, as_json, as_table)
    done, directory = rederive_run(
        Place.at(data, log),
        run,
        rewards,
        label=label,
        replace=replace,
        dry_run=dry_run,
        allow_code=allow_code or [],
    )
    names = [field.name for field in fields(RewardChange)]
    print_rows(names, [astuple(change) for change in done.changes], form)
    typer.echo(
        f"{done.steps:,} steps and {done.updates:,} batches in {done.seconds:.1f} s; the reward of "
        f"{done.differing:,} steps differs from the one used"
        + ("" if directory is None else f"; the new ones are in {directory}"),
        err=True,
    )
