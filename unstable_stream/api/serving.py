"""Services that run by themselves beside or after runs: archiving, processors, plug-ins, monitoring.

Each ends in order at SIGINT, SIGTERM or SIGHUP, and a third signal ends the process.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unstable_stream.api.loops import stopped
from unstable_stream.api.place import Place
from unstable_stream.errors import ArchiveError
from unstable_stream.extensions import confined
from unstable_stream.log.port import EventLog
from unstable_stream.log.port import Start as Start
from unstable_stream.runs.code import own_patterns
from unstable_stream.runs.history import find_run
from unstable_stream.services.launch.stopping import Stop, stopped_by_signals
from unstable_stream.services.streams.plugins import ENTRY_POINTS as ENTRY_POINTS
from unstable_stream.services.streams.plugins import Plugin
from unstable_stream.services.streams.plugins import discovered_plugins as discovered_plugins
from unstable_stream.services.streams.plugins import load_plugin as load_plugin
from unstable_stream.services.streams.plugins.host import PluginCounters as PluginCounters
from unstable_stream.services.streams.plugins.host import run_plugin

if TYPE_CHECKING:
    from unstable_stream.archive.writing import Tidied


def _serve(place: Place, serve: Callable[[EventLog, asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Open the log and serve it until the event is set, which signals do."""

    async def work() -> None:
        stop = Stop()
        with stopped_by_signals(stop):
            async with place.opened_log() as log:
                await serve(log, stop.asked)

    asyncio.run(work())


@dataclass
class Archived:
    """The result of :func:`archive`."""

    records: int = 0
    rejected: int = 0
    """Records that could not be decoded; see the table dead_letters."""
    old: Path | None = None
    """The archive that was set aside."""
    dropped: Sequence[str] = ()
    """Runs that were dropped from that one, and are not in the new one either."""


def archive(place: Place, *, rebuild: bool = False, follow: bool = False) -> Archived:
    """Bring the archive up to date with the log, once, or until a signal with ``follow``.

    ``rebuild`` sets the present archive aside as ``archive.duckdb.old`` and fills a new one. Runs that were
    dropped stay dropped.

    Raises:
        EventLogError: there is no log.
        ArchiveError: an archive was set aside before, or the archive is ahead of the log.
    """
    from unstable_stream.archive import Written
    from unstable_stream.services.workers.archiver import run_archiver

    done = Archived()

    def count(written: Written) -> None:
        done.records += written.records
        done.rejected += len(written.rejected)

    async def work(log: EventLog, stop: asyncio.Event | None = None) -> None:
        await log.topics()  # an unreachable log is found here, before the archive is set aside
        if rebuild:
            done.old, done.dropped = _set_aside(place)
        await run_archiver(log, place.archive, stop=stop or stopped(), on_flush=count)

    if follow:
        _serve(place, work)
    else:
        place.ask_log(work)
    return done


def compact_archive(place: Place) -> "Tidied":
    """Merge the small files of a shared archive, and delete those that nobody needs any more.

    Raises:
        ArchiveError: the archive is a DuckDB file, which needs none of this; or it cannot be written.
    """
    from unstable_stream.archive.opening import open_store

    with closing(open_store(place.archive, create=False)) as store:
        return store.tidy()


def _set_aside(place: Place) -> tuple[Path | None, Sequence[str]]:
    """Rename the archive with its write-ahead log, if there is one, so that a new one takes its place.

    The new one knows the runs that were dropped from it: whoever wanted them gone is not to have them back.
    """
    from unstable_stream.archive import open_archive
    from unstable_stream.archive.dropping import dropped_runs, keep_dropped

    path = place.data.archive_file
    if place.archive != path:
        raise ArchiveError(
            f"{place.archive} is not the archive of this data directory alone: fill a new one elsewhere"
        )
    if not path.exists():
        return None, ()
    old = path.with_name(path.name + ".old")
    if old.exists():
        raise ArchiveError(f"{old} is there from an earlier rebuild: move it away or delete it first")
    # Nobody is writing it, and the write-ahead log is folded in.
    with open_archive(path, read_only=False) as connection:
        connection.execute("CHECKPOINT")
    dropped = dropped_runs(path)
    path.rename(old)
    if dropped:
        keep_dropped(path, dropped)
    return old, [run.run_id for run in dropped]


def processors(
    place: Place,
    run: str | None = None,
    *,
    runtime: Literal["generic", "faust"] = "generic",
    allow_code: Sequence[str] | None = None,
    on_ready: Callable[[str], None] = lambda whose: None,
) -> None:
    """Shape rewards and rate models of one run, or of all, until a signal.

    Args:
        place: whose log.
        run: id or prefix; ``None``: all runs.
        runtime: ``generic``, or ``faust`` on a Kafka log.
        allow_code: load only code that fits these patterns, and with ``run`` what that run was started with
            from this data directory; ``None``: load all.
        on_ready: told whose they are once they are ready.

    Raises:
        ConfigError: Faust, on a log that is not Kafka.
        RunError: no such run.
    """
    from unstable_stream.services.streams.service import run_processors

    async def serve(log: EventLog, stop: asyncio.Event) -> None:
        run_id = None if run is None else (await find_run(log, run, place.dropped()))[0]
        whose = "all runs" if run_id is None else f"run {run_id}"
        allowed = allow_code
        if allow_code is not None and run_id is not None:
            allowed = [*own_patterns(place.data.own_code(run_id)), *allow_code]
        with confined(allowed):
            await run_processors(
                log,
                run_id,
                stop,
                runtime=runtime,
                location=place.log,
                drain=False,
                on_ready=lambda: on_ready(whose),
            )

    _serve(place, serve)


def monitor(
    place: Place,
    *,
    port: int = 9108,
    host: str = "127.0.0.1",
    start: Start = "beginning",
    on_ready: Callable[[int], None] = lambda port: None,
) -> None:
    """Serve Prometheus metrics of a log until a signal.

    Args:
        place: whose log.
        port: to serve on; 0 takes a free one.
        host: address to serve on.
        start: where counting begins.
        on_ready: told the port once it is served.
    """
    from unstable_stream.services.tracking.prometheus import run_monitor

    _serve(
        place,
        lambda log, stop: run_monitor(log, port=port, host=host, start=start, stop=stop, on_ready=on_ready),
    )


def consume(
    place: Place,
    plugin: Plugin,
    *,
    start: Start = "beginning",
    run: str | None = None,
    until_end: bool = False,
    reset: bool = False,
    counters: PluginCounters | None = None,
) -> None:
    """Give a plug-in all history and then every event as it comes, until a signal.

    Args:
        place: whose history; the plug-in's metrics go to its log.
        plugin: what to run.
        start: where to begin if it has never run: ``beginning``, ``end``, or Unix milliseconds.
        run: only this run, id or prefix, in a group of its own.
        until_end: end when what is there now has been handled.
        reset: forget positions and state first.
        counters: updated on the way.

    Raises:
        PluginError: it does not start, or its state cannot be kept.
    """
    from unstable_stream.history.hindsight.offline import find_recorded_run
    from unstable_stream.services.streams.ordered_history import LogHistory

    async def serve(log: EventLog, stop: asyncio.Event) -> None:
        found = None if run is None else await find_recorded_run(LogHistory(log), run, place.dropped())
        await run_plugin(
            log,
            plugin,
            place.data,
            stop=stop,
            start=start,
            run_id=None if found is None else found.run_id,
            until_end=until_end,
            reset=reset,
            counters=counters,
        )

    _serve(place, serve)
