"""``unstable-stream track``: the metrics of a run to TensorBoard, Weights & Biases or a file."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import DataOption, LogOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("track", help=_track.__doc__)(_track)


def _track(
    run: str = typer.Argument(help="The run: id or prefix."),
    to: str = typer.Option(
        ...,
        "--to",
        metavar="TRACKER",
        help='jsonl, tensorboard, wandb, \'wandb(project="UB", mode="offline")\', or path/to/file.py:Name.',
    ),
    directory: Path | None = typer.Option(
        None, "--directory", help="Write to DIRECTORY/RUN; by default to tracking/RUN in the data directory."
    ),
    follow: bool = typer.Option(False, "--follow", help="Go on until the run ends."),
    source: str = typer.Option("log", "--source", help="'log' or 'archive'."),
    log: LogOption = "local",
    data: DataOption = DEFAULT_DATA_DIR,
) -> None:
    """Give the metrics of a run, live or finished, to TensorBoard, Weights & Biases or a file.

    Called again, it goes on where it was and writes nothing twice. See docs/metrics.md.

    Example: unstable-stream track quickstart-2026 --to tensorboard --directory curves
    """
    from unstable_stream.api.output import configure_output
    from unstable_stream.api.place import Place
    from unstable_stream.api.tracking import track_run
    from unstable_stream.errors import ConfigError

    if source not in ("log", "archive"):
        raise ConfigError(f"--source {source!r}: expected log or archive")
    configure_output("tracker")
    place = Place.at(data, log)
    try:
        with _progress() as progress:
            done = track_run(
                place,
                run,
                to,
                directory,
                follow=follow,
                source="archive" if source == "archive" else "log",
                progress=progress,
            )
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was", file=sys.stderr)
        raise typer.Exit(130) from None
    home = (place.data.root / "tracking" if directory is None else directory) / done.run_id
    known = f", {done.known:,} were there before" if done.known else ""
    print(
        f"{done.run_id}: {done.given:,} metrics events up to update {done.update:,}{known}; {home}",
        file=sys.stderr,
    )
    if to == "tensorboard" or to.startswith("tensorboard("):
        print(f"look at it: tensorboard --logdir {home.parent}", file=sys.stderr)


@contextmanager
def _progress() -> "Iterator[Callable[[int, int], None]]":
    """Show on standard error, if it is a terminal, how many records are read."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from unstable_stream.api.output import plain_console

    console = plain_console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("records read", total=None)
        yield lambda read, total: bar.update(task, completed=read, total=total)
