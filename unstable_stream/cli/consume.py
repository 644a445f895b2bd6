"""``unstable-stream consume``: run a plug-in consumer."""

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from unstable_stream.cli.moments import parse_moment
from unstable_stream.cli.options import DataOption, LogOption
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR

if TYPE_CHECKING:
    from unstable_stream.log.port import Start
    from unstable_stream.streams.plugins import Plugin
    from unstable_stream.streams.plugins.host import PluginCounters

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("consume", help=_consume.__doc__)(_consume)


def _consume(
    plugin: str | None = typer.Argument(None, help="module:name, path/to/file.py:name, or a name of --list."),
    start: str = typer.Option(
        "beginning",
        "--from",
        metavar="WHERE",
        help="Where to begin if it has never run: beginning, end, or a time such as 2026-01-31T12:00 (UTC).",
    ),
    run: str | None = typer.Option(
        None, "--run", help="Only this run (id or prefix), in a group of its own."
    ),
    until_end: bool = typer.Option(False, "--until-end", help="Handle what is there now, then exit."),
    reset: bool = typer.Option(False, "--reset", help="Forget where it was and its state; begin at --from."),
    list_all: bool = typer.Option(
        False, "--list", help="List the plug-ins that installed packages announce."
    ),
    log: LogOption = "local",
    data: DataOption = DEFAULT_DATA_DIR,
) -> None:
    """Run a plug-in consumer: all history first, then every event as it comes, until Ctrl-C.

    It goes on where it was when it was stopped or killed. See docs/consumers.md.

    Example: unstable-stream consume examples/consumers/language_drift.py:repetition --until-end
    """
    from unstable_stream.errors import ConfigError
    from unstable_stream.streams.plugins import load_plugin
    from unstable_stream.streams.plugins.host import PluginCounters

    if list_all:
        _print_discovered()
        return
    if plugin is None:
        raise ConfigError(
            "name a plug-in, e.g. unstable-stream consume examples/consumers/language_drift.py:repetition; "
            "--list shows the installed ones"
        )
    begin: Start = "beginning"
    if start in ("beginning", "end"):
        begin = "end" if start == "end" else "beginning"
    else:
        begin = parse_moment(start, "--from")
    from unstable_stream.launch.service_output import configure_output

    configure_output("consumer")
    loaded = load_plugin(plugin)
    counters = PluginCounters()
    asyncio.run(_serve(loaded, begin, run, until_end, reset, log, data, counters))
    print(
        f"{loaded.name}: {counters.handled:,} events, {counters.emitted:,} metrics, "
        f"{counters.rejected:,} set aside"
        + (f"; {counters.archived:,} records from the archive" if counters.archived else ""),
        file=sys.stderr,
    )


async def _serve(
    plugin: "Plugin",
    start: "Start",
    run: str | None,
    until_end: bool,
    reset: bool,
    log_location: str,
    data: Path,
    counters: "PluginCounters",
) -> None:
    from rich.console import Console

    from unstable_stream.hindsight.offline import find_recorded_run
    from unstable_stream.log.open import opened_log
    from unstable_stream.runs.data_dir import DataDir
    from unstable_stream.streams.history import LogHistory
    from unstable_stream.streams.plugins.host import run_plugin

    directory = DataDir(data)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with opened_log(log_location, directory.log, existing=True) as log:
            run_id = None if run is None else (await find_recorded_run(LogHistory(log), run))[0]
            with Console(stderr=True, highlight=False).status(plugin.name) as status:
                shown = asyncio.ensure_future(_show(status.update, plugin.name, counters))
                try:
                    await run_plugin(
                        log,
                        plugin,
                        directory,
                        stop=stop,
                        start=start,
                        run_id=run_id,
                        until_end=until_end,
                        reset=reset,
                        counters=counters,
                    )
                finally:
                    shown.cancel()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _show(update: Callable[[str], None], name: str, counters: "PluginCounters") -> None:
    from datetime import UTC, datetime

    while True:
        if counters.position_ms:
            moment = datetime.fromtimestamp(counters.position_ms / 1000, tz=UTC)
            done = f"{counters.handled:,} events, {counters.emitted:,} metrics"
            update(f"{name}: {done}, at {moment:%Y-%m-%d %H:%M:%S}")
        await asyncio.sleep(0.5)


def _print_discovered() -> None:
    from unstable_stream.streams.plugins import ENTRY_POINTS, discovered_plugins

    found = discovered_plugins()
    for plugin in found:
        print(f"{plugin.name}\t{plugin.target}\t{plugin.package}")
    if not found:
        print(
            f"no installed package announces a plug-in in the entry point group {ENTRY_POINTS!r}; run one "
            "from a file: unstable-stream consume path/to/file.py:name",
            file=sys.stderr,
        )
