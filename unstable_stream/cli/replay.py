"""``unstable-stream replay``: history again, to standard output, a log, a plug-in or a learner."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.moments import parse_moment
from unstable_stream.cli.options import DataOption, LogOption, SetOption
from unstable_stream.cli.repeating import every
from unstable_stream.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from unstable_stream.api.replaying import Replay

__all__ = ["register"]

_SHOW_EVERY_S: Final = 0.5


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
    from unstable_stream.api.place import Place
    from unstable_stream.api.replaying import Replay

    place = Place.at(data, log)
    with _progress(shown=learner is None and (into_log is not None or not sys.stdout.isatty())) as progress:
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


@contextmanager
def _progress(*, shown: bool) -> "Iterator[Callable[[int, int], None]]":
    """Show on standard error, if it is a terminal, how many records are read; it goes away at the end."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = _console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    disable = not shown or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as bar:
        task = bar.add_task("records read", total=None)
        yield lambda read, total: bar.update(task, completed=read, total=total)


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
