"""``unstable-stream monitor``: what is going on, for Prometheus."""

import asyncio
import signal
import sys
from enum import StrEnum

import typer

from unstable_stream.cli.options import DataOption, LogOption
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR

__all__ = ["register"]


class From(StrEnum):
    """Where counting begins."""

    BEGINNING = "beginning"
    END = "end"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("monitor", help=_monitor.__doc__)(_monitor)


def _monitor(
    port: int = typer.Option(9108, "--port", min=0, max=65535, help="Port to serve on; 0 takes a free one."),
    host: str = typer.Option("127.0.0.1", "--host", help="Address to serve on; 0.0.0.0 for all."),
    start: From = typer.Option(
        From.BEGINNING, "--from", help="Count all the log holds, or only what comes from now on."
    ),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
) -> None:
    """Serve Prometheus metrics of a log: lag, throughput, dead letters, learner updates, services. See
    docs/monitoring.md.

    Example: unstable-stream monitor --port 9108 --log kafka://127.0.0.1:9092
    """
    from unstable_stream.launch.service_output import configure_output
    from unstable_stream.log.open import opened_log
    from unstable_stream.runs.data_dir import DataDir
    from unstable_stream.tracking.prometheus import run_monitor

    configure_output("monitor")

    def say(listening_on: int) -> None:
        print(f"serving http://{host}:{listening_on}/metrics", file=sys.stderr, flush=True)

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with opened_log(log, DataDir(data).log, existing=True) as opened:
            await run_monitor(opened, port=port, host=host, start=start.value, stop=stop, on_ready=say)

    asyncio.run(serve())
