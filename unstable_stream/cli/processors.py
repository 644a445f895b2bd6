"""``unstable-stream processors``: serve stream processors until they are stopped."""

import asyncio
import signal
from pathlib import Path

import typer

from unstable_stream.cli.options import AllowCodeOption, DataOption, LogOption
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR

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
    from unstable_stream.errors import ConfigError
    from unstable_stream.extensions import confine
    from unstable_stream.launch.service_output import configure_output

    if runtime not in ("generic", "faust"):
        raise ConfigError(f"--runtime {runtime!r}: expected generic or faust")
    configure_output("processors")
    confine(allow_code or [])
    asyncio.run(_serve(log, run, runtime, data))


async def _serve(location: str, run: str | None, runtime: str, data: Path) -> None:
    from unstable_stream.log.open import opened_log
    from unstable_stream.runs.data_dir import DataDir
    from unstable_stream.runs.history import find_run
    from unstable_stream.streams.processors import run_processors

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with opened_log(location, DataDir(data).log, existing=True) as log:
        run_id = None if run is None else (await find_run(log, run))[0]
        whose = "all runs" if run_id is None else f"run {run_id}"

        def say_ready() -> None:
            print(f"processors ready: {whose}, {runtime} runtime, log {location}", flush=True)

        await run_processors(
            log,
            run_id,
            stop,
            runtime="faust" if runtime == "faust" else "generic",
            location=location,
            drain=False,
            on_ready=say_ready,
        )
