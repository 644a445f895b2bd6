"""``unstable-stream archive``: bring the archive up to date with the log, once or for as long as it runs."""

import sys

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import DataOption, LogOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("archive", help=_archive.__doc__)(_archive)


def _archive(
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
    rebuild: bool = typer.Option(
        False, "--rebuild", help="Keep the present archive as archive.duckdb.old and fill a new one."
    ),
    compact: bool = typer.Option(
        False, "--compact", help="Merge the small files of a shared archive, and archive nothing."
    ),
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on archiving until Ctrl-C or SIGTERM."),
) -> None:
    """Archive what the log holds and the archive does not. A run does this by itself while it trains.

    Example: unstable-stream archive --data unstable-data

    Example: unstable-stream archive --log kafka://127.0.0.1:9092 --follow

    Several archivers may fill a shared archive, which UNSTABLE_STREAM_ARCHIVE names, e.g.
    delta:s3://bucket/archive.

    Example: unstable-stream archive --compact
    """
    from rich.console import Console

    from unstable_stream.api.output import configure_output
    from unstable_stream.api.place import Place
    from unstable_stream.api.serving import archive, compact_archive

    place = Place.at(data, log)
    console = Console(stderr=True, highlight=False)
    if compact:
        tidied = compact_archive(place)
        console.print(
            f"{tidied.merged:,} small files merged into {tidied.into:,}, {tidied.deleted:,} old ones deleted"
        )
        return
    if follow:
        configure_output("archiver")
        done = archive(place, rebuild=rebuild, follow=True)
    else:
        with console.status("archiving"):
            done = archive(place, rebuild=rebuild)
    if done.old is not None:
        print(f"the old archive is kept as {done.old}", file=sys.stderr)
    console.print(
        f"{done.records:,} records archived, {done.rejected:,} of them could not be decoded "
        "(see dead_letters)"
    )
