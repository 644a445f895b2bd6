"""``unstable-stream replay``: history again, to standard output, a log, a plug-in or a learner."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from unstable_stream.api.place import Place
from unstable_stream.errors import ConfigError
from unstable_stream.ui.cli.moments import parse_moment
from unstable_stream.ui.cli.options import SetOption
from unstable_stream.ui.cli.repeating import every, records_read

if TYPE_CHECKING:
    from rich.console import Console

    from unstable_stream.api.replaying import Replay

_SHOW_EVERY_S: Final = 0.5


def command(
    run: Annotated[str | None, typer.Argument()] = None,
    topics: Annotated[str | None, typer.Option(metavar="A,B")] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="TIME")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME")] = None,
    ranges: Annotated[list[str] | None, typer.Option("--offsets", metavar="TOPIC[P]@A..B")] = None,
    where: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE")] = None,
    speed: str = "max",
    into_log: Annotated[str | None, typer.Option(metavar="LOG")] = None,
    consumer: Annotated[str | None, typer.Option(metavar="PLUGIN")] = None,
    learner: Annotated[Path | None, typer.Option(metavar="TOML")] = None,
    overrides: SetOption = None,
    epochs: Annotated[int, typer.Option(min=1)] = 1,
    source: str = "log",
    log_id: str | None = None,
    *,
    place: Place,
) -> None:
    """Stream a slice of history in its original order; without a target, as JSON lines.

    Example: unstable-stream replay quickstart-2026 --topics game-outcomes --where split=eval --speed 10

    Args:
        run: Only this run (id or prefix).
        topics: Only these topics.
        start: First time, e.g. 2026-01-31T12:00 (UTC).
        end: The time after the last.
        ranges: Only from offset A to before B; may be repeated.
        where: Only events whose field fits: env=…, model=ckpt-*, split=eval, type!=step; may be repeated.
        speed: 'max', or times as fast as it happened: 1, 10, 0.5.
        into_log: Copy to kafka://HOST:PORT, a .sqlite file or a directory.
        consumer: Give it to a plug-in; print its metrics as JSON lines.
        learner: Train a new run on RUN's steps; what differs in its config.
        epochs: With --learner: times to go through the steps.
        source: 'log' or 'archive'.
        log_id: Whose records, if the archive holds several logs.
    """
    given = {"--into-log": into_log, "--consumer": consumer, "--learner": learner}
    targets = [name for name, value in given.items() if value]
    if len(targets) > 1:
        raise ConfigError(f"{' and '.join(targets)}: give one of them")
    if source not in ("log", "archive"):
        raise ConfigError(f"--source {source!r}: expected log or archive")
    if learner is None and (overrides or epochs != 1):
        raise ConfigError("--set and --epochs go with --learner")
    from unstable_stream.api.replaying import Replay

    with records_read(
        shown=learner is None and (into_log is not None or not sys.stdout.isatty())
    ) as progress:
        replayed = Replay(
            place,
            run,
            topics=topics.split(",") if topics else (),
            from_ms=None if start is None else parse_moment(start, "--from"),
            to_ms=None if end is None else parse_moment(end, "--to"),
            offsets=ranges or (),
            where=where or (),
            speed=_speed(speed),
            source="archive" if source == "archive" else "log",
            log_id=log_id,
            progress=progress,
        )
        try:
            if learner is not None:
                _train(replayed, learner, overrides or [], epochs)
            elif consumer is not None:
                _rehearse(replayed, consumer)
            elif into_log is not None:
                print(f"{replayed.copy(into_log):,} records copied to {into_log}", file=sys.stderr)
            else:
                replayed.write(_write)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            sys.stderr.close()  # the reader of our output has gone; there is nobody to tell


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


def _write(lines: bytes) -> None:
    sys.stdout.buffer.write(lines)
    sys.stdout.buffer.flush()


def _console() -> "Console":
    from unstable_stream.api.output import plain_console

    return plain_console(stderr=True, highlight=False)


def _rehearse(replayed: "Replay", target: str) -> None:
    from unstable_stream.api.replaying import encode_event
    from unstable_stream.api.serving import load_plugin

    plugin = load_plugin(target)
    done = replayed.rehearse(
        plugin, lambda metrics: [print(encode_event(event).decode()) for event in metrics]
    )
    print(f"{plugin.name}: {done.handled:,} events, {done.emitted:,} metrics", file=sys.stderr)
    if done.failed:
        print(f"error: it failed at {done.failed:,} events; first: {done.first_failure}", file=sys.stderr)
        raise typer.Exit(1)


def _train(replayed: "Replay", path: Path, overrides: Sequence[str], epochs: int) -> None:
    from unstable_stream.api.replaying import OfflineProgress

    progress = OfflineProgress()
    with _console().status("loading the model") as status, every(_SHOW_EVERY_S, lambda: show()):
        planned = 0

        def show() -> None:
            if progress.published:
                done = f"{progress.updates:,} of {planned:,} updates, {progress.published:,} steps replayed"
                status.update(done)

        def start(run_id: str, iterations: int) -> None:
            nonlocal planned
            planned = iterations
            print(f"run {run_id}", file=sys.stderr)

        run_id = replayed.train(path, overrides=overrides, epochs=epochs, progress=progress, on_start=start)
    print(f"{run_id}: {progress.updates:,} updates, {progress.published:,} steps replayed", file=sys.stderr)
    print(run_id)
