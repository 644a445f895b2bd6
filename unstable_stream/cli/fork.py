"""``unstable-stream fork``: a new run from a point of another's history."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from unstable_stream.cli.options import AllowCodeOption, DataOption, LogOption, SetOption
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR

if TYPE_CHECKING:
    from unstable_stream.runs.config import RunConfig
    from unstable_stream.runs.fork import Fork

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("fork", help=_fork.__doc__)(_fork)


def _fork(
    run: str = typer.Argument(..., help="Run to fork: id, or an unambiguous prefix."),
    at: int | None = typer.Option(
        None,
        "--at",
        min=0,
        metavar="UPDATE",
        help="Fork after this update.  [default: the newest checkpoint]",
    ),
    overrides: SetOption = None,
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Check everything and print the resolved configuration."
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No live view."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
    allow_code: AllowCodeOption = None,
) -> None:
    """Start a new run from a checkpoint of another, with other settings.

    It goes on with the weights, optimizer state and update number of that checkpoint, new games, and the
    earlier checkpoints as opponents.

    Example: unstable-stream fork quickstart-2026 --at 10 --set learner.learning_rate=1e-4
    """
    from unstable_stream.cli.running import run_config

    fork, config = asyncio.run(_find(run, at, overrides or [], data, log, allow_code or []))
    run_config(config, data, fork=fork, quiet=quiet, dry_run=dry_run)


async def _find(
    run: str, at: int | None, overrides: list[str], data: Path, location: str, allow_code: list[str]
) -> "tuple[Fork, RunConfig]":
    from unstable_stream.log.open import opened_log
    from unstable_stream.runs.code import confine_to_own, patterns_of
    from unstable_stream.runs.data_dir import DataDir
    from unstable_stream.runs.fork import find_fork, fork_config

    async with opened_log(location, DataDir(data).log, existing=True) as log:
        fork, config = await find_fork(log, run, at)
    forked = fork_config(fork, config, [*overrides, f"log={location}"])
    allowed = [*allow_code, *patterns_of(forked, besides=config)]
    confine_to_own(DataDir(data).own_code(fork.parent_run_id), allowed)
    return fork, forked
