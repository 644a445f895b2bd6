"""``unstable-stream archive``: bring the archive up to date with the log, once or for as long as it runs."""

import asyncio
import signal
import sys
from pathlib import Path

import typer

from unstable_stream.cli.options import DataOption, LogOption
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("archive", help=_archive.__doc__)(_archive)


def _archive(
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
    rebuild: bool = typer.Option(
        False, "--rebuild", help="Keep the present archive as archive.duckdb.old and fill a new one."
    ),
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on archiving until Ctrl-C or SIGTERM."),
) -> None:
    """Archive what the log holds and the archive does not. A run does this by itself while it trains.

    Example: unstable-stream archive --data unstable-data

    Example: unstable-stream archive --log kafka://127.0.0.1:9092 --follow
    """
    from rich.console import Console

    from unstable_stream.archive import Written
    from unstable_stream.launch.service_output import configure_output
    from unstable_stream.log.open import opened_log
    from unstable_stream.runs.data_dir import DataDir
    from unstable_stream.workers.archiver import run_archiver

    directory = DataDir(data)
    records = rejected = 0

    def count(written: Written) -> None:
        nonlocal records, rejected
        records += written.records
        rejected += len(written.rejected)

    async def archive() -> None:
        stop = asyncio.Event()
        if follow:
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
        else:
            stop.set()
        async with opened_log(log, directory.log, existing=True) as opened:
            await opened.topics()  # an unreachable log is found here, before the archive is set aside
            if rebuild:
                _set_aside(directory.archive)
            await run_archiver(opened, directory.archive, stop=stop, on_flush=count)

    console = Console(stderr=True, highlight=False)
    if follow:
        configure_output("archiver")
        asyncio.run(archive())
    else:
        with console.status("archiving"):
            asyncio.run(archive())
    console.print(
        f"{records:,} records archived, {rejected:,} of them could not be decoded (see dead_letters)"
    )


def _set_aside(archive: Path) -> None:
    """Rename the archive with its write-ahead log, if there is one, so that a new one takes its place."""
    from unstable_stream.archive import open_archive
    from unstable_stream.errors import ArchiveError

    if not archive.exists():
        return
    old = archive.with_name(archive.name + ".old")
    if old.exists():
        raise ArchiveError(f"{old} is there from an earlier rebuild: move it away or delete it first")
    # Nobody is writing it, and the write-ahead log is folded in.
    with open_archive(archive, read_only=False) as connection:
        connection.execute("CHECKPOINT")
    archive.rename(old)
    print(f"the old archive is kept as {old}", file=sys.stderr)
