"""``unstable-stream rederive``: rewards and advantages as they would be under other transformations."""

import asyncio
from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from unstable_stream.cli.options import AllowCodeOption, DataOption, LogOption
from unstable_stream.cli.query_output import CsvOption, JsonOption, TableOption, pick_format, print_rows
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR

if TYPE_CHECKING:
    from unstable_stream.hindsight.rederive import Rederived

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rederive", help=_rederive.__doc__)(_rederive)


def _rederive(
    run: str = typer.Argument(..., help="Run id, or an unambiguous prefix."),
    rewards: Path = typer.Option(
        ..., "--rewards", metavar="TOML", help="File whose [rewards] table has the stages to change."
    ),
    label: str | None = typer.Option(
        None, "--label", help="Name of the new set.  [default: the file's name without .toml]"
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
    from unstable_stream.archive.what_if import open_set, set_directory
    from unstable_stream.hindsight.rederive import RewardChange, load_rewards, rederive
    from unstable_stream.log.open import opened_log
    from unstable_stream.runs.code import confine_to_own, patterns_of
    from unstable_stream.runs.data_dir import DataDir
    from unstable_stream.runs.history import find_run

    form = pick_format(as_csv, as_json, as_table)

    async def shape() -> "tuple[Rederived, Path]":
        async with opened_log(log, DataDir(data).log, existing=True) as opened:
            run_id, config = await find_run(opened, run)
            new = load_rewards(rewards, config)
            theirs = patterns_of(config.model_copy(update={"rewards": new}), besides=config)
            confine_to_own(DataDir(data).own_code(run_id), [*theirs, *(allow_code or [])])
            directory = set_directory(data, run_id, label or rewards.stem)
            with open_set(None if dry_run else directory, replace=replace or label is None) as out:
                return await rederive(opened, run_id, config, new, out), directory

    done, directory = asyncio.run(shape())
    names = [field.name for field in fields(RewardChange)]
    print_rows(names, [astuple(change) for change in done.changes], form)
    typer.echo(
        f"{done.steps:,} steps and {done.updates:,} batches in {done.seconds:.1f} s; the reward of "
        f"{done.differing:,} steps differs from the one used"
        + ("" if dry_run else f"; the new ones are in {directory}"),
        err=True,
    )
