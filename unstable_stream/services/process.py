"""Entry point of a service process: ``python -m unstable_stream.services.process NAME --run RUN --data DIR``.

The configuration comes from the run's events in the log, so every service of a run has the same.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import structlog

from unstable_stream.errors import UnstableStreamError
from unstable_stream.services.data_dir import DataDir, open_log, open_log_at
from unstable_stream.services.runs import find_run

__all__ = ["SERVICES", "main"]

SERVICES = ("collector", "learner", "processors", "archiver")


def main() -> int:
    """Run one service until its work is done (status 0), SIGTERM (status 0) or a failure (status 1)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("service", choices=SERVICES)
    parser.add_argument("--run", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--log", default="local", help="where the event log is")
    parser.add_argument("--die-with-parent", action="store_true", help="end when standard input closes")
    arguments = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(colors=False),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    structlog.contextvars.bind_contextvars(service=arguments.service, run=arguments.run)
    if arguments.die_with_parent:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        asyncio.run(_serve(arguments.service, arguments.run, DataDir(arguments.data), arguments.log))
    except UnstableStreamError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _end_with_parent() -> None:
    # Not sys.stdin: its lock, held by this thread, would abort the interpreter's shutdown.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


async def _serve(service: str, run_id: str, data: DataDir, log_url: str) -> None:
    log = open_log_at(log_url, data)
    try:
        _, config = await find_run(log, run_id)
    finally:
        await log.close()
    # Imported here: each service loads only what it needs.
    if service in ("collector", "learner"):
        from unstable_stream.services.cluster import connect, resolve_model

        connect()
        stop = _stop_on_signals()
        model_path = resolve_model(config.model)
        if service == "collector":
            from unstable_stream.services.collector import run_collector

            await run_collector(config, run_id, data, model_path, stop)
        else:
            from unstable_stream.services.learner_actor import run_learner

            await run_learner(config, run_id, data, model_path, stop)
        return
    stop = _stop_on_signals()
    if service == "processors":
        from unstable_stream.services.processors import run_processors

        await run_processors(config, run_id, data, stop)
    else:
        from unstable_stream.services.archiver import run_archiver

        log = open_log(config, data)
        try:
            await run_archiver(log, data.archive, stop=stop)
        finally:
            await log.close()


def _stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set; call it after Ray has put its own handlers in place."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


if __name__ == "__main__":
    sys.exit(main())
