"""``unstable-stream monitor``: what is going on, for Prometheus."""

import sys
from typing import Annotated, Literal

import typer

from unstable_stream.api.place import Place


def command(
    port: Annotated[int, typer.Option(min=0, max=65535)] = 9108,
    host: str = "127.0.0.1",
    start: Annotated[Literal["beginning", "end"], typer.Option("--from")] = "beginning",
    *,
    place: Place,
) -> None:
    """Serve Prometheus metrics of a log: lag, throughput, dead letters, learner updates, services. See
    docs/monitoring.md.

    Example: unstable-stream monitor --port 9108 --log kafka://127.0.0.1:9092

    Args:
        port: Port to serve on; 0 takes a free one.
        host: Address to serve on; 0.0.0.0 for all.
        start: Count all the log holds, or only what comes from now on.
    """
    from unstable_stream.api.output import configure_output
    from unstable_stream.api.serving import monitor

    configure_output("monitor")

    def say(listening_on: int) -> None:
        print(f"serving http://{host}:{listening_on}/metrics", file=sys.stderr, flush=True)

    monitor(place, port=port, host=host, start=start, on_ready=say)
