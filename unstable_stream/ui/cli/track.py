"""``unstable-stream track``: the metrics of a run to TensorBoard, Weights & Biases or a file."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from unstable_stream.api.place import Place
from unstable_stream.ui.cli.repeating import records_read


def command(
    run: str,
    to: Annotated[str, typer.Option(metavar="TRACKER")],
    directory: Path | None = None,
    follow: bool = False,
    source: str = "log",
    *,
    place: Place,
) -> None:
    """Give the metrics of a run, live or finished, to TensorBoard, Weights & Biases or a file.

    Called again, it goes on where it was and writes nothing twice. See docs/metrics.md.

    Example: unstable-stream track quickstart-2026 --to tensorboard --directory curves

    Args:
        run: The run: id or prefix.
        to: jsonl, tensorboard, wandb, 'wandb(project="UB", mode="offline")', or path/to/file.py:Name.
        directory: Write to DIRECTORY/RUN; by default to tracking/RUN in the data directory.
        follow: Go on until the run ends.
        source: 'log' or 'archive'.
    """
    from unstable_stream.api.output import configure_output
    from unstable_stream.api.tracking import track_run
    from unstable_stream.errors import ConfigError

    if source not in ("log", "archive"):
        raise ConfigError(f"--source {source!r}: expected log or archive")
    configure_output("tracker")
    try:
        with records_read() as progress:
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
