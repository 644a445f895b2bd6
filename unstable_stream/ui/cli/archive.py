"""``unstable-stream archive``: bring the archive up to date with the log, once or for as long as it runs."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from unstable_stream.api.place import Place

if TYPE_CHECKING:
    from rich.console import Console


def command(
    rebuild: bool = False,
    compact: bool = False,
    follow: Annotated[bool, typer.Option("--follow", "-f")] = False,
    drop: Annotated[str, typer.Option(metavar="RUN")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
    idle_days: Annotated[float, typer.Option(min=0.0)] = 30.0,
    *,
    place: Place,
) -> None:
    """Archive what the log holds and the archive does not. A run does this by itself while it trains.

    Example: unstable-stream archive --data unstable-data

    Example: unstable-stream archive --log kafka://127.0.0.1:9092 --follow

    Several archivers may fill a shared archive, which UNSTABLE_STREAM_ARCHIVE names, e.g.
    delta:s3://bucket/archive.

    Example: unstable-stream archive --compact

    A run that nobody needs any more is dropped from the archive. Export it first to be able to look at it
    later: the directory that unstable-stream export makes is read like a data directory, with --data.

    Example: unstable-stream archive --drop RUN

    Args:
        rebuild: Keep the present archive as archive.duckdb.old and fill a new one.
        compact: Merge the small files of a shared archive, and archive nothing.
        follow: Go on archiving until Ctrl-C or SIGTERM.
        drop: Take a run that is over out of the archive for good, give its disk space back, and archive
            nothing.
        yes: With --drop: do not ask.
        idle_days: With --drop: a run that never ended is over after so many days without a record.
    """

    from unstable_stream.api.output import configure_output, plain, plain_console
    from unstable_stream.api.serving import archive, compact_archive

    console = plain_console(stderr=True, highlight=False)
    if sum([rebuild or follow, compact, bool(drop)]) > 1:
        raise typer.BadParameter(
            "--compact and --drop are done one at a time, and without --rebuild and --follow"
        )
    if yes and not drop:
        raise typer.BadParameter("--yes is an answer to --drop, which is not given")
    if drop:
        _drop(place, drop, console, yes=yes, idle_days=idle_days)
        return
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
    if done.dropped:
        print(f"dropped runs are not archived again: {plain(', '.join(done.dropped))}", file=sys.stderr)
    console.print(
        f"{done.records:,} records archived, {done.rejected:,} of them could not be decoded "
        "(see dead_letters)"
    )


def _drop(place: "Place", run: str, console: "Console", *, yes: bool, idle_days: float) -> None:
    from unstable_stream.api.dropping import drop_run, look_at_run
    from unstable_stream.api.output import plain

    found = look_at_run(place, run, idle_days=idle_days)
    named = f"{found.run_id} ({found.name})" if found.name else found.run_id
    typer.echo(
        f"run {plain(named)}: {found.records:,} records, {found.share:.1%} of the archive of "
        f"{found.archive_bytes / 1e6:,.1f} MB",
        err=True,
    )
    if found.forks:
        typer.echo(f"forked from it, and not dropped with it: {plain(', '.join(found.forks))}", err=True)
    if found.unasked_logs:
        typer.echo(
            f"note: of its log {', '.join(found.unasked_logs)} it is not known whether all of the run is "
            "archived: name that log with --log, unless it is gone. Later records of the run are passed over",
            err=True,
        )
    if not yes:
        typer.confirm(
            "Without an export the run is gone once its log has expired. Drop it?", abort=True, err=True
        )
    with console.status("writing the archive anew"):
        done = drop_run(place, found.run_id, idle_days=idle_days)
    console.print(
        f"dropped {done.records:,} records; the archive had {done.bytes_before / 1e6:,.1f} MB and has "
        f"{done.bytes_after / 1e6:,.1f} MB now"
    )
    if done.deleted_later:
        console.print(
            "files that are not needed any more are deleted after six hours, since somebody may still read "
            "them: by archivers now and then, or with unstable-stream archive --compact",
            soft_wrap=True,
        )
