"""Data directories with something in them, and commands that ask them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from typer.testing import CliRunner, Result

from tests.archive.history import stored
from tests.history.proofs.recorded_run import record_run
from unstable_stream.api.place import Place
from unstable_stream.api.serving import archive
from unstable_stream.archive import ArchiveWriter
from unstable_stream.events import Event
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.ui.cli import app

T = TypeVar("T")


def on_log(data: Path, work: Callable[[LocalLog], Awaitable[T]]) -> T:
    """Do something on the log of a data directory, made if there is none; return what it returns."""

    async def do() -> T:
        async with LocalLog.open(DataDir(data).log, synchronous="NORMAL") as log:
            return await work(log)

    return asyncio.run(do())


def append(data: Path, events: Sequence[Event]) -> None:
    """Append events to the log of a data directory, in the topics that are declared."""

    async def write(log: LocalLog) -> None:
        if not await log.topics():
            await log.create_topics(list(load_topics().values()))
        await log.append([record_from_event(event) for event in events])

    on_log(data, write)


def archived(data: Path, events: Sequence[Event]) -> Path:
    """Archive events, which are on no log, in the file of a data directory; return the file."""
    path = DataDir(data).archive_file
    with ArchiveWriter(path) as writer:
        writer.write(stored(list(events)))
    return path


def recorded(data: Path, *runs: str, **how: Any) -> Place:
    """Record finished runs of real games, see :func:`record_run`, on the log and in the archive."""
    for run in runs:
        on_log(data, lambda log, run=run: record_run(log, run, **how))  # type: ignore[misc]
    archive(Place.at(data))
    return Place.at(data)


def ask(data: Path, *arguments: str, answer: str = "", width: int = 200) -> Result:
    """Give a command about a data directory; whoever is asked answers ``answer``."""
    environment = {"COLUMNS": str(width), "FORCE_COLOR": None}
    return CliRunner().invoke(app, [*arguments, "--data", str(data)], input=answer, env=environment)
