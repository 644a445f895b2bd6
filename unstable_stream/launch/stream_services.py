"""The services that need neither a model nor games: processors, archiver, monitor, consumers."""

import asyncio
from typing import TYPE_CHECKING

from unstable_stream.loading import loading
from unstable_stream.log.port import EventLog
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.history import run_started
from unstable_stream.tracking.service_reports import ARCHIVER, Reporter, archived_values, reporting

if TYPE_CHECKING:
    from unstable_stream.archive import Written

__all__ = ["STREAM_SERVICES", "serve_stream"]

_ARCHIVER_REPORTS_S = 60.0

STREAM_SERVICES = ("processors", "archiver", "monitor", "consumers")


async def serve_stream(service: str, log: EventLog, run: RunContext, stop: asyncio.Event) -> None:
    """Serve one of :data:`STREAM_SERVICES` for a run until ``stop``, then drain and return."""
    # Imported here: each service loads only what it needs.
    if service == "processors":
        with loading():
            from unstable_stream.streams.service import run_processors

        runtime = run.config.processors.runtime
        await run_processors(log, run.run_id, stop, runtime=runtime, location=run.config.log)
    elif service == "archiver":
        await _archive(log, run, stop)
    elif service == "consumers":
        with loading():
            from unstable_stream.streams.trackers import serve_beside

        await serve_beside(log, run, stop)
    else:
        with loading():
            from unstable_stream.tracking.prometheus import run_monitor

        began_ms = (await run_started(log, run.run_id)).occurred_at_ms
        await run_monitor(log, port=run.config.metrics_port or 0, start=began_ms, stop=stop)


async def _archive(log: EventLog, run: RunContext, stop: asyncio.Event) -> None:
    with loading():
        from unstable_stream.workers.archiver import run_archiver

    stored = 0

    def count(written: "Written") -> None:
        nonlocal stored
        stored += written.records

    # Rarely, because every report is also a record to archive.
    reporter = Reporter(
        log, run.run_id, ARCHIVER, lambda: archived_values(stored), every_s=_ARCHIVER_REPORTS_S
    )
    async with reporting(reporter, stop) as silent:
        await run_archiver(log, run.data.archive, stop=silent, on_flush=count)
