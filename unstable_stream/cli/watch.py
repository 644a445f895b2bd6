"""``unstable-stream watch``: the live view of a run, from any terminal."""

import asyncio
from pathlib import Path

import typer

from unstable_stream.cli.options import DataOption, LogOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch", help=_watch.__doc__)(_watch)


def _watch(
    run: str = typer.Argument(..., help="Run id, or an unambiguous prefix."),
    data: DataOption = Path("unstable-data"),
    log: LogOption = "local",
) -> None:
    """Follow a run live: progress, throughput, win rates, ratings. Ctrl-C closes the view, not the run.

    Example: unstable-stream watch quickstart-2026
    """
    from unstable_stream.runs.data_dir import DataDir, open_existing_log
    from unstable_stream.runs.records import find_run
    from unstable_stream.tracking.terminal_interface import watch_run

    async def follow() -> None:
        opened = open_existing_log(log, DataDir(data))
        try:
            run_id, config = await find_run(opened, run)
            await watch_run(opened, run_id, config)
        finally:
            await opened.close()

    try:
        asyncio.run(follow())
    except KeyboardInterrupt:
        return
