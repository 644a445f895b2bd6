"""``unstable-stream watch``: the live view of a run, from any terminal."""

import asyncio
from pathlib import Path

import typer

from unstable_stream.cli.options import DataOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch", help=_watch.__doc__)(_watch)


def _watch(
    run: str = typer.Argument(..., help="Run id, or an unambiguous prefix."),
    data: DataOption = Path("unstable-data"),
) -> None:
    """Follow a run live: progress, throughput, win rates, ratings. Ctrl-C closes the view, not the run.

    Example: unstable-stream watch quickstart-2026
    """
    from unstable_stream.errors import RunError
    from unstable_stream.services.data_dir import DataDir, open_log_at
    from unstable_stream.services.runs import find_run
    from unstable_stream.services.terminal_interface import watch_run

    directory = DataDir(data)
    if not directory.log.is_file():
        raise RunError(
            f"no event log at {directory.log}: start a run first, or name its directory with --data"
        )

    async def follow() -> None:
        log = open_log_at("local", directory)
        try:
            run_id, config = await find_run(log, run)
            await watch_run(log, run_id, config)
        finally:
            await log.close()

    try:
        asyncio.run(follow())
    except KeyboardInterrupt:
        return
