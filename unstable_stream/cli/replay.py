"""``unstable-stream replay``: history again, to standard output, a log, a plug-in or a learner."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from unstable_stream.cli.moments import parse_moment
from unstable_stream.cli.options import DataOption, LogOption, SetOption
from unstable_stream.errors import ConfigError
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR

if TYPE_CHECKING:
    from rich.console import Console

    from unstable_stream.hindsight.offline import OfflineProgress
    from unstable_stream.log.port import EventLog, TopicPartition
    from unstable_stream.runs.data_dir import DataDir
    from unstable_stream.streams.history import History, Merged, Slice

__all__ = ["register"]

_RANGE: Final = re.compile(r"(?P<topic>[\w.-]+)\[(?P<partition>\d+)\]@(?P<start>\d*)\.\.(?P<end>\d*)")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay", help=_replay.__doc__)(_replay)


def _replay(
    run: str | None = typer.Argument(None, help="Only this run (id or prefix)."),
    topics: str | None = typer.Option(None, "--topics", metavar="A,B", help="Only these topics."),
    start: str | None = typer.Option(
        None, "--from", metavar="TIME", help="First time, e.g. 2026-01-31T12:00 (UTC)."
    ),
    end: str | None = typer.Option(None, "--to", metavar="TIME", help="The time after the last."),
    ranges: list[str] | None = typer.Option(
        None, "--offsets", metavar="TOPIC[P]@A..B", help="Only from offset A to before B; may be repeated."
    ),
    where: list[str] | None = typer.Option(
        None,
        "--where",
        metavar="KEY=VALUE",
        help="Only events whose field fits: env=…, model=ckpt-*, split=eval, type!=step; may be repeated.",
    ),
    speed: str = typer.Option("max", "--speed", help="'max', or times as fast as it happened: 1, 10, 0.5."),
    into_log: str | None = typer.Option(
        None, "--into-log", metavar="LOG", help="Copy to kafka://HOST:PORT, a .sqlite file or a directory."
    ),
    consumer: str | None = typer.Option(
        None, "--consumer", metavar="PLUGIN", help="Give it to a plug-in; print its metrics as JSON lines."
    ),
    learner: Path | None = typer.Option(
        None, "--learner", metavar="TOML", help="Train a new run on RUN's steps; what differs in its config."
    ),
    overrides: SetOption = None,
    epochs: int = typer.Option(1, "--epochs", min=1, help="With --learner: times to go through the steps."),
    source: str = typer.Option("log", "--source", help="'log' or 'archive'."),
    log_id: str | None = typer.Option(
        None, "--log-id", help="Whose records, if the archive holds several logs."
    ),
    log: LogOption = "local",
    data: DataOption = DEFAULT_DATA_DIR,
) -> None:
    """Stream a slice of history in its original order; without a target, as JSON lines.

    Example: unstable-stream replay quickstart-2026 --topics game-outcomes --where split=eval --speed 10
    """
    given = {"--into-log": into_log, "--consumer": consumer, "--learner": learner}
    targets = [name for name, value in given.items() if value]
    if len(targets) > 1:
        raise ConfigError(f"{' and '.join(targets)}: give one of them")
    if source not in ("log", "archive"):
        raise ConfigError(f"--source {source!r}: expected log or archive")
    if learner is None and (overrides or epochs != 1):
        raise ConfigError("--set and --epochs go with --learner")
    options = _Options(
        run=run,
        topics=tuple(topics.split(",")) if topics else (),
        from_ms=None if start is None else parse_moment(start, "--from"),
        to_ms=None if end is None else parse_moment(end, "--to"),
        ranges=tuple(ranges or ()),
        where=tuple(where or ()),
        speed=_speed(speed),
        source=source,
        log_id=log_id,
        log=log,
        data=data,
    )
    if learner is not None:
        if run is None or options.speed is not None:
            raise ConfigError(
                "--learner trains on the steps of one run as fast as it can: unstable-stream replay RUN "
                "--learner FILE, without --speed"
            )
        work = _train(options, learner, overrides or [], epochs)
    elif consumer is not None:
        work = _rehearse(options, consumer)
    elif into_log is not None:
        work = _copy(options, into_log)
    else:
        work = _print(options)
    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; there is nobody to tell


@dataclass(frozen=True)
class _Options:
    run: str | None
    topics: tuple[str, ...]
    from_ms: int | None
    to_ms: int | None
    ranges: tuple[str, ...]
    where: tuple[str, ...]
    speed: float | None
    source: str
    log_id: str | None
    log: str
    data: Path


def _speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise ConfigError(f"--speed {text!r}: expected max, or a number above 0 such as 1 or 10")
    return speed


def _range(text: str) -> "tuple[TopicPartition, tuple[int | None, int | None]]":
    from unstable_stream.log.port import TopicPartition

    match = _RANGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--offsets {text!r}: expected TOPIC[PARTITION]@FROM..TO, e.g. steps[3]@100..200")
    start, end = match["start"], match["end"]
    return (
        TopicPartition(match["topic"], int(match["partition"])),
        (int(start) if start else None, int(end) if end else None),
    )


async def _open(options: _Options) -> "tuple[History, EventLog | None]":
    """Return the history, and the log it is from if it is not an archive."""
    from unstable_stream.log.open import open_existing_log
    from unstable_stream.runs.data_dir import DataDir
    from unstable_stream.streams.history import ArchiveHistory, LogHistory

    directory = DataDir(options.data)
    if options.source == "archive":
        return ArchiveHistory(directory.archive, options.log_id), None
    log = open_existing_log(options.log, directory.log)
    return LogHistory(log), log


async def _slice(options: _Options, history: "History") -> "Slice":
    from unstable_stream.hindsight.offline import find_recorded_run
    from unstable_stream.streams.history import Slice
    from unstable_stream.streams.record_filter import RecordFilter, parse_condition

    run_id = None if options.run is None else (await find_recorded_run(history, options.run))[0]
    conditions = [parse_condition(text) for text in options.where]
    return Slice(
        topics=options.topics,
        ranges=dict(map(_range, options.ranges)),
        filter=RecordFilter(run_id, options.from_ms, options.to_ms, conditions),
    )


async def _stream(
    options: _Options, history: "History", wanted: "Slice", *, shown: bool
) -> "AsyncIterator[Merged]":
    """Yield the slice when it is due, with progress on standard error if it is ``shown``."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from unstable_stream.hindsight.replay import paced
    from unstable_stream.streams.history import merged

    chosen = await wanted.of(history)
    total = sum(end - start for start, end in chosen.values())
    console = _console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    disable = not shown or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as progress:
        task = progress.add_task("records read", total=total)
        async for piece in paced(merged(history, wanted), options.speed):
            yield piece
            progress.update(task, completed=piece.read)


def _console() -> "Console":
    from rich.console import Console

    return Console(stderr=True, highlight=False)


# -- targets --------------------------------------------------------------------------------------


async def _print(options: _Options) -> None:
    from unstable_stream.hindsight.replay import write_lines

    history, _ = await _open(options)

    def write(lines: bytes) -> None:
        sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()

    try:
        wanted = await _slice(options, history)
        await write_lines(_stream(options, history, wanted, shown=not sys.stdout.isatty()), write)
    finally:
        await history.close()


async def _copy(options: _Options, location: str) -> None:
    from unstable_stream.hindsight.replay import copy_into

    history, source = await _open(options)
    try:
        wanted = await _slice(options, history)
        topics: dict[str, int] = {}
        for where in await wanted.of(history):
            topics[where.topic] = max(topics.get(where.topic, 0), where.partition + 1)
        if source is not None:
            topics = {name: count for name, count in (await source.topics()).items() if name in topics}
        target = _open_target(location)
        try:
            count = await copy_into(_stream(options, history, wanted, shown=True), source, target, topics)
        finally:
            await target.close()
    finally:
        await history.close()
    print(f"{count:,} records copied to {location}", file=sys.stderr)


def _open_target(location: str) -> "EventLog":
    from unstable_stream.log.open import open_log_at
    from unstable_stream.runs.data_dir import DataDir

    path = Path(location)
    kafka = "://" in location
    return open_log_at(
        location if kafka else "local", path if path.suffix == ".sqlite" else DataDir(path).log
    )


async def _rehearse(options: _Options, target: str) -> None:
    from unstable_stream.events import encode_event
    from unstable_stream.hindsight.replay import rehearse
    from unstable_stream.streams.plugins import load_plugin

    plugin = load_plugin(target)
    history, _ = await _open(options)
    try:
        wanted = await _slice(options, history)
        done = await rehearse(
            _stream(options, history, wanted, shown=not sys.stdout.isatty()),
            plugin,
            lambda metrics: [print(encode_event(event).decode()) for event in metrics],
        )
    finally:
        await history.close()
    print(f"{plugin.name}: {done.handled:,} events, {done.emitted:,} metrics", file=sys.stderr)
    if done.failed:
        print(f"error: it failed at {done.failed:,} events; first: {done.first_failure}", file=sys.stderr)
        raise typer.Exit(1)


async def _train(options: _Options, path: Path, overrides: Sequence[str], epochs: int) -> None:
    from unstable_stream.hindsight.offline import (
        OfflineProgress,
        find_recorded_run,
        load_offline_config,
        train_offline,
    )
    from unstable_stream.log.open import open_log_at
    from unstable_stream.runs.data_dir import DataDir

    assert options.run is not None
    directory = DataDir(options.data)
    history, source = await _open(options)
    try:
        wanted = await _slice(options, history)
        _, recorded = await find_recorded_run(history, options.run)
        config = load_offline_config(recorded, path, overrides, log=options.log)
        log = source or open_log_at(options.log, directory.log)
        progress = OfflineProgress()
        shown = asyncio.ensure_future(_show(progress, config.learner.iterations))
        try:
            run_id = await train_offline(
                history,
                wanted,
                config,
                directory,
                log,
                epochs=epochs,
                progress=progress,
                on_start=lambda run_id: print(f"run {run_id}", file=sys.stderr),
            )
            if source is None:
                await history.close()  # reading and writing the archive exclude each other
            await _archive(log, directory, options.log)
        finally:
            shown.cancel()
            if log is not source:
                await log.close()
    finally:
        await history.close()
    print(f"{run_id}: {progress.updates:,} updates, {progress.published:,} steps replayed", file=sys.stderr)
    print(run_id)


async def _show(progress: "OfflineProgress", iterations: int) -> None:
    with _console().status("loading the model") as status:
        while True:
            if progress.published:
                status.update(
                    f"{progress.updates:,} of {iterations:,} updates, {progress.published:,} steps replayed"
                )
            await asyncio.sleep(0.5)


async def _archive(log: "EventLog", directory: "DataDir", location: str) -> None:
    """Put the new run into the archive too; on a shared log its archiver does."""
    from unstable_stream.workers.archiver import run_archiver

    if location == "local":
        stop = asyncio.Event()
        stop.set()
        await run_archiver(log, directory.archive, stop=stop)
