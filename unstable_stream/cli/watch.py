"""``unstable-stream watch``: the live view of a run, from any terminal."""

import asyncio

import typer

from unstable_stream.cli.options import DataOption, LogOption
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch", help=_watch.__doc__)(_watch)


def _watch(
    run: str = typer.Argument(..., help="Run id, or an unambiguous prefix."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
) -> None:
    """Follow a run live: progress, throughput, win rates, ratings. Ctrl-C closes the view, not the run.

    Example: unstable-stream watch quickstart-2026
    """
    from unstable_stream.log.open import opened_log
    from unstable_stream.runs.data_dir import DataDir
    from unstable_stream.runs.history import find_run
    from unstable_stream.tracking.terminal_interface import watch_run

    async def follow() -> None:
        async with opened_log(log, DataDir(data).log, existing=True) as opened:
            run_id, config = await find_run(opened, run)
            await watch_run(opened, run_id, config)

    try:
        asyncio.run(follow())
    except KeyboardInterrupt:
        return
