"""``unstable-stream processors``: serve stream processors until they are stopped."""

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import AllowCodeOption, DataOption, LogOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("processors", help=_processors.__doc__)(_processors)


def _processors(
    log: LogOption = "local",
    run: str | None = typer.Option(None, "--run", help="Only this run (id or prefix); by default all runs."),
    runtime: str = typer.Option(
        "generic", "--runtime", help="'generic', or 'faust' (faust-streaming) on a Kafka log."
    ),
    data: DataOption = DEFAULT_DATA_DIR,
    allow_code: AllowCodeOption = None,
) -> None:
    """Shape rewards and rate models of all runs, until SIGTERM or Ctrl-C.

    Start as many as you like: they share the partitions. Runs that leave the work to them have
    external = ["processors"]. The records of a run that names code which is not allowed here are set aside.

    Example: unstable-stream processors --log kafka://127.0.0.1:9092
    """
    from unstable_stream.api.output import configure_output
    from unstable_stream.api.place import Place
    from unstable_stream.api.serving import processors

    configure_output("processors")

    def say_ready(whose: str) -> None:
        print(f"processors ready: {whose}, {runtime} runtime, log {log}", flush=True)

    processors(Place.at(data, log), run, runtime=runtime, allow_code=allow_code or [], on_ready=say_ready)
