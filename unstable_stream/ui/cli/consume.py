"""``unstable-stream consume``: run a plug-in consumer."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from unstable_stream.api.place import Place
from unstable_stream.ui.cli.moments import parse_moment
from unstable_stream.ui.cli.repeating import every

if TYPE_CHECKING:
    from unstable_stream.api.serving import Start

_SHOW_EVERY_S: Final = 0.5


def command(
    plugin: Annotated[str | None, typer.Argument()] = None,
    start: Annotated[str, typer.Option("--from", metavar="WHERE")] = "beginning",
    run: str | None = None,
    until_end: bool = False,
    reset: bool = False,
    list_all: Annotated[bool, typer.Option("--list")] = False,
    *,
    place: Place,
) -> None:
    """Run a plug-in consumer: all history first, then every event as it comes, until Ctrl-C.

    It goes on where it was when it was stopped or killed. See docs/consumers.md.

    Example: unstable-stream consume examples/consumers/language_drift.py:repetition --until-end

    Args:
        plugin: module:name, path/to/file.py:name, or a name of --list.
        start: Where to begin if it has never run: beginning, end, or a time such as 2026-01-31T12:00 (UTC).
        run: Only this run (id or prefix), in a group of its own.
        until_end: Handle what is there now, then exit.
        reset: Forget where it was and its state; begin at --from.
        list_all: List the plug-ins that installed packages announce.
    """
    from unstable_stream.errors import ConfigError

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
    from unstable_stream.api.output import configure_output, plain_console
    from unstable_stream.api.serving import PluginCounters, consume, load_plugin

    configure_output("consumer")
    loaded = load_plugin(plugin)
    counted = PluginCounters()

    def show() -> None:
        if counted.position_ms:
            moment = datetime.fromtimestamp(counted.position_ms / 1000, tz=UTC)
            done = f"{counted.handled:,} events, {counted.emitted:,} metrics"
            status.update(f"{loaded.name}: {done}, at {moment:%Y-%m-%d %H:%M:%S}")

    console = plain_console(stderr=True, highlight=False)
    with console.status(loaded.name) as status, every(_SHOW_EVERY_S, show):
        consume(place, loaded, start=begin, run=run, until_end=until_end, reset=reset, counters=counted)
    print(
        f"{loaded.name}: {counted.handled:,} events, {counted.emitted:,} metrics, "
        f"{counted.rejected:,} set aside",
        file=sys.stderr,
    )


def _print_discovered() -> None:
    from unstable_stream.api.serving import PLUGIN_GROUP, installed_plugins

    found = installed_plugins()
    for plugin in found:
        print(f"{plugin.name}\t{plugin.target}\t{plugin.package}")
    if not found:
        print(
            f"no installed package announces a plug-in in the entry point group {PLUGIN_GROUP!r}; run one "
            "from a file: unstable-stream consume path/to/file.py:name",
            file=sys.stderr,
        )
