"""``unstable-stream monitor``: what is going on, for Prometheus."""

import sys
from typing import Literal

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import DataOption, LogOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("monitor", help=_monitor.__doc__)(_monitor)


def _monitor(
    port: int = typer.Option(9108, "--port", min=0, max=65535, help="Port to serve on; 0 takes a free one."),
    host: str = typer.Option("127.0.0.1", "--host", help="Address to serve on; 0.0.0.0 for all."),
    start: Literal["beginning", "end"] = typer.Option(
        "beginning", "--from", help="Count all the log holds, or only what comes from now on."
    ),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
) -> None:
    """Serve Prometheus metrics of a log: lag, throughput, dead letters, learner updates, services. See
    docs/monitoring.md.

    Example: unstable-stream monitor --port 9108 --log kafka://127.0.0.1:9092
    """
    from unstable_stream.api.output import configure_output
    from unstable_stream.api.place import Place
    from unstable_stream.api.serving import monitor

    configure_output("monitor")

    def say(listening_on: int) -> None:
        print(f"serving http://{host}:{listening_on}/metrics", file=sys.stderr, flush=True)

    monitor(Place.at(data, log), port=port, host=host, start=start, on_ready=say)
