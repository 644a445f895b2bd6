"""Archivers at work."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self

from unstable_stream.archive import Written
from unstable_stream.events import Event
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import record_from_event
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.services.workers.archiver import run_archiver


async def publish(log: EventLog, events: Sequence[Event]) -> None:
    """Append events."""
    await log.append([record_from_event(event) for event in events])


class Archiver:
    """An archiver at work, for at most two minutes; what is left is archived at the end of ``async with``."""

    def __init__(self, log: EventLog, archive: ArchiveAddress, **settings: Any) -> None:
        self.records = 0
        """Those that it has stored."""
        self.stop = asyncio.Event()
        running = run_archiver(
            log, archive, stop=self.stop, flush_interval_s=0.02, on_flush=self._count, **settings
        )
        self.task = asyncio.create_task(asyncio.wait_for(running, 120))

    def _count(self, written: Written) -> None:
        self.records += written.records

    async def end(self) -> None:
        self.stop.set()
        await self.task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.end()


async def until(condition: Callable[[], bool], *archivers: Archiver) -> None:
    """Wait until a condition holds, while these are at work."""
    tasks = [each.task for each in archivers]
    while not condition():
        ended, _ = await asyncio.wait(tasks, timeout=0.02, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()


async def archive_all(
    log: EventLog, path: ArchiveAddress, on_flush: Callable[[Written], None] | None = None, **settings: Any
) -> list[int]:
    """Archive to the present end; return how many records each transaction stored."""
    stop = asyncio.Event()
    stop.set()
    stored: list[int] = []

    def count(written: Written) -> None:
        stored.append(written.records)

    await run_archiver(log, path, stop=stop, flush_interval_s=0.02, on_flush=on_flush or count, **settings)
    return stored
