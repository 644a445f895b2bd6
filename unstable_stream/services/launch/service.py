"""Entry point of a service process: ``python -m unstable_stream.services.launch.service NAME --run RUN --data
DIR``.

The configuration comes from the run's events in the log, so all services of a run have the same one.
"""

import argparse
import asyncio
import os
import signal
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from unstable_stream.console import get_logger
from unstable_stream.errors import FencedError, UnstableStreamError
from unstable_stream.extensions import confine
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog
from unstable_stream.runs.base_model import base_model_path
from unstable_stream.runs.code import find_code
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.history import read_history, run_started
from unstable_stream.services.launch.service_output import configure_output, write_death
from unstable_stream.services.launch.supervisor import FENCED_STATUS
from unstable_stream.services.streams.costs import CostMeter, reported
from unstable_stream.services.streams.reports import Reporter
from unstable_stream.services.tracking.service_reports import ARCHIVER, archived_values
from unstable_stream.services.workers.loading import loading

if TYPE_CHECKING:
    from unstable_stream.archive import Written

_ARCHIVER_REPORTS_S = 60.0

STREAM_SERVICES = ("processors", "archiver", "monitor", "consumers")


async def serve_stream(
    service: str, log: EventLog, run: RunContext, stop: asyncio.Event, meter: CostMeter | None = None
) -> None:
    """Serve one of :data:`STREAM_SERVICES` for a run until ``stop``, then drain and return.

    ``meter``: of a process that serves nothing else, which reports what it uses.
    """
    if meter is not None and service != "archiver":
        async with reported(log, meter):
            await serve_stream(service, log, run, stop)
        return
    # Imported here: each service loads only what it needs.
    if service == "processors":
        with loading():
            from unstable_stream.services.streams.service import run_processors

        runtime = run.config.processors.runtime
        await run_processors(log, run.run_id, stop, runtime=runtime, location=run.config.log)
    elif service == "archiver":
        await _archive(log, run, stop, meter)
    elif service == "consumers":
        with loading():
            from unstable_stream.services.streams.trackers import serve_beside

        await serve_beside(log, run, stop)
    else:
        with loading():
            from unstable_stream.services.tracking.prometheus import run_monitor

        began_ms = (await run_started(log, run.run_id)).occurred_at_ms
        await run_monitor(log, port=run.config.metrics_port or 0, start=began_ms, stop=stop)


async def _archive(log: EventLog, run: RunContext, stop: asyncio.Event, meter: CostMeter | None) -> None:
    with loading():
        from unstable_stream.services.workers.archiver import run_archiver

    stored = 0

    def count(written: "Written") -> None:
        nonlocal stored
        stored += written.records

    # Rarely, because every report is also a record to archive.
    reporter = Reporter(
        log, run.run_id, ARCHIVER, lambda: archived_values(stored), every_s=_ARCHIVER_REPORTS_S
    )
    silent = asyncio.Event()

    async def report() -> None:
        try:
            async with reported(log, meter) if meter else nullcontext():
                await reporter.run(stop)
        finally:
            silent.set()

    reporting = asyncio.ensure_future(report())
    try:
        # It stops once nothing more is reported: the last report is archived, too.
        await run_archiver(log, run.data.archive, stop=silent, on_flush=count)
        await reporting  # if it failed, so does the service
    finally:
        reporting.cancel()


SERVICES = ("collector", "learner", *STREAM_SERVICES)


def main() -> int:
    """Run one service until its work is done (status 0), SIGTERM (status 0) or a failure (status 1).

    Status 3: another launcher's learner or collector has taken over the run.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("service", choices=SERVICES)
    parser.add_argument("--run", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--log", default="local", help="where the event log is")
    parser.add_argument("--die-with-parent", action="store_true", help="end when standard input closes")
    arguments = parser.parse_args()
    if arguments.die_with_parent:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    data = DataDir(arguments.data.absolute())
    output = data.service_logs(arguments.run) / f"{arguments.service}.log"
    try:
        configure_output(arguments.service, arguments.run)
        asyncio.run(_serve(arguments.service, arguments.run, data, arguments.log))
    except UnstableStreamError as error:
        write_death(output, error)  # the supervisor shows it
        get_logger(__name__).error("service failed", error=f"{type(error).__name__}: {error}")
        # These have no second in a run: processors take over from each other in peace.
        alone = arguments.service in ("learner", "collector")
        return FENCED_STATUS if isinstance(error, FencedError) and alone else 1
    except Exception as error:
        write_death(output, error)
        raise
    return 0


def _end_with_parent() -> None:
    # Not sys.stdin: its lock, held by this thread, would abort the interpreter's shutdown.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


async def _serve(service: str, run_id: str, data: DataDir, log_url: str) -> None:
    async with opened_log(log_url, data.log) as log:
        config = (await read_history(log)).run(run_id).config()
    # This process may reach the log at another location than the launcher: another host, another listener.
    config = config.model_copy(update={"log": log_url})
    # The configuration is a recorded one. The launcher's environment variables tell which code may be loaded.
    confine()
    find_code(config)
    run = RunContext(run_id, config, data)
    if service in STREAM_SERVICES:
        stop = _stop_on_signals()
        async with run.opened_log() as log:
            await serve_stream(service, log, run, stop, CostMeter(run_id, service))
        return
    # Imported here: the other services need no Ray.
    with loading():
        from unstable_stream.services.launch.ray.cluster import connect

    connect()
    stop = _stop_on_signals()
    model_path = base_model_path(config)
    # The learner itself is an actor, which this process holds on to.
    meter = CostMeter(run_id, "collector" if service == "collector" else "learner-host")
    async with run.opened_log() as log, reported(log, meter):
        if service == "collector":
            with loading():
                from unstable_stream.services.launch.ray.engine_pool import run_collector

            await run_collector(run, model_path, stop)
        else:
            with loading():
                from unstable_stream.services.launch.ray.actors import run_learner

            await run_learner(run, model_path, stop)


def _stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set; call this after Ray has set its own handlers."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


if __name__ == "__main__":
    sys.exit(main())
