"""Commands that take something out, or keep it: reports, checkpoints, runs, archives, data directories."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

import unstable_stream as us
from unstable_stream.api.output import configure_output, plain, plain_console
from unstable_stream.api.place import Place
from unstable_stream.ui.cli.options import AllowCodeOption, DataPlace, RunArgument, RunsArgument, complete_run
from unstable_stream.ui.cli.output import Format, print_rows, progress_bar


def report_command(
    runs: RunsArgument = None,
    out: Annotated[Path, typer.Option("--out", "-o")] = Path("report.html"),
    samples: Annotated[int, typer.Option(min=0)] = 10,
    tokenizer: str | None = None,
    verify: bool = False,
    *,
    place: Place,
) -> None:
    """Write one HTML page about a run: results, curves, ratings and games to read; opens without a network.

    The curve of its evaluation is in the terminal, too.

    Several runs are compared in the same plots; those of a sweep also by means over seeds.

    Example: unstable-stream report quickstart -o report.html

    Example: unstable-stream report RUN OTHER_RUN -o comparison.html

    Example: unstable-stream report quickstart-3fa1c2

    Args:
        out: The HTML file to write.
        samples: Most games to show of each run.
        tokenizer: Directory of the model's tokenizer, to show tokens as text; by default where the run found
            it.
        verify: Verify each run first, as unstable-stream verify does, and put the result on the page.
    """
    from unstable_stream.api.archived import find_runs, proof_of, read_curve, write_report

    console = plain_console(stderr=True, highlight=False)
    named = find_runs(place.archive, runs or [])
    proofs = {}
    for run in named if verify else ():
        with progress_bar() as progress:
            report = us.open_run(run, **place.named).verify(allow_code=[], progress=progress)
        console.print(f"{run}: {report.verdict}", markup=False)
        proofs[run] = proof_of(report)
    with console.status("writing the report"):
        size = write_report(place.archive, named, out, samples=samples, tokenizer=tokenizer, proofs=proofs)
    for run in named:
        if curve := read_curve(place.archive, run):
            console.print(f"{run}\n{curve.says}", markup=False)
            console.print(curve)
    console.print(f"{out} written, {size / 1e6:.1f} MB: open it in a browser")


def push_command(
    checkpoint: str,
    destination: str,
    merged: bool = False,
    force: bool = False,
    public: bool = False,
    *,
    place: Place,
) -> None:
    """Write a checkpoint as files that transformers, PEFT and vLLM load, with a model card.

    Example: unstable-stream push RUN@20 tictactoe-adapter

    Example: unstable-stream push RUN hf://me/tictactoe-player --merged

    Args:
        checkpoint: RUN@UPDATE, RUN@best, RUN@-1, or RUN for its newest checkpoint.
        destination: A directory, or hf://OWNER/NAME on the Hugging Face Hub.
        merged: The base model with the adapter merged into it, not the adapter alone.
        force: Replace what is there.
        public: Let anybody on the Hub read it; else it is private.
    """
    from unstable_stream.api.push import push

    with plain_console(stderr=True, highlight=False).status("pushing"):
        done = push(checkpoint, destination, merged=merged, replace=force, public=public, **place.named)
    kinds = {"adapter": "adapter", "merged": "merged model", "whole": "whole model"}
    size = sum(done.files.values()) / 1e6
    typer.echo(
        f"{done.destination}: {kinds[done.form]} {plain(done.checkpoint)}, {len(done.files)} files, "
        f"{size:,.1f} MB"
    )


def export_command(
    run: RunArgument,
    out: Annotated[str, typer.Option("--out", "-o")] = "",
    tables: Annotated[str, typer.Option(metavar="NAMES")] = "",
    batches: Literal["csv", "parquet"] | None = None,
    dataset: Annotated[Path | None, typer.Option(metavar="DIR")] = None,
    force: bool = False,
    *,
    place: DataPlace,
) -> None:
    """Write a run to Parquet files, one per table and one of its raw events, with a manifest of row counts.

    Example: unstable-stream export RUN -o run-parquet

    Example: unstable-stream export RUN -o s3://bucket/run-parquet

    Example: unstable-stream export RUN -o curves --tables learning_curve,payoff_matrix

    Example: unstable-stream export RUN -o batches --batches csv

    Example: unstable-stream export RUN --dataset my-games

    Args:
        out: Directory for the files; for tables also an address, s3://bucket/name.
        tables: Tables or views, comma between; all tables by default.
        batches: Instead of tables, the batch of each update: train_data_step_N.csv, or .parquet.
        dataset: Instead of tables, the finished games as a data set with a card, which datasets.load_dataset
            and unstable-stream import read: a row for each move.
        force: Replace an export that is there already.
    """
    from unstable_stream.api.archived import export_batches, export_run

    console = plain_console(stderr=True, highlight=False)
    if (dataset is None) == (not out) or (dataset is not None and (batches or tables)):
        raise typer.BadParameter("give --out, or --dataset alone", param_hint="--out")
    if dataset is not None:
        with console.status("exporting"):
            moves = us.export_dataset(run, dataset, force=force, data=place.root)
        listed = ", ".join(f"{count:,} moves of split {split}" for split, count in moves.items())
        console.print(f"{listed} in {dataset}", soft_wrap=True, markup=False)
        return
    if batches and tables:
        raise typer.BadParameter("--batches and --tables exclude each other", param_hint="--batches")
    if batches and "://" in out:
        raise typer.BadParameter("batches are written to a directory", param_hint="--out")
    if batches:
        with console.status("exporting"):
            written = export_batches(place.archive, run, out, batches, force=force)
        console.print(f"{len(written):,} batches in {out}", soft_wrap=True, markup=False)
        return
    names = [name.strip() for name in tables.split(",") if name.strip()]
    with console.status("exporting"):
        manifest = export_run(place.archive, run, out, tables=names, force=force)
    files = manifest.tables.values()
    rows, size = sum(file.rows for file in files), sum(file.bytes for file in files) / 1e6
    told = f"run {manifest.run_id}: {rows:,} rows of {len(files)} tables, {size:,.1f} MB, in {out}"
    console.print(told, soft_wrap=True, markup=False)
    if manifest.missing:
        lacking = f"note: deleted from the log before they were archived: {', '.join(manifest.missing)}"
        console.print(lacking, soft_wrap=True, markup=False)


def import_command(
    file: Path,
    mapping: Annotated[Path, typer.Option("--mapping", metavar="TOML")],
    name: str | None = None,
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
) -> None:
    """Record the games of a file, played elsewhere, as a run: rated, archived, and searchable like any other.

    All games are recorded or none; a file that was imported before adds nothing. They are in split imported.

    Example: unstable-stream import my-games/data/train-00000-of-00001.parquet --mapping my-games/mapping.toml

    Example: unstable-stream import traces.jsonl --mapping textarena.toml --name published

    Args:
        file: JSON Lines, JSON or Parquet; a row for each move, or with a list of them.
        mapping: The columns that hold what is recorded: docs/how-to/share-games.md.
        name: Name of the run. Default: that of the file.
    """
    with plain_console(stderr=True, highlight=False).status("importing"):
        done = us.import_games(file, mapping, name=name, allow_code=allow_code or [], **place.named)
    told = f"{done.games:,} games" if done.games else "nothing new, its games are there already"
    print(plain(f"{done.run_id}: {told}"))


def archive_command(
    rebuild: bool = False,
    compact: bool = False,
    follow: Annotated[bool, typer.Option("--follow", "-f")] = False,
    *,
    place: Place,
) -> None:
    """Archive what the log holds and the archive does not. A run does this by itself while it trains.

    Example: unstable-stream archive --data unstable-data

    Example: unstable-stream archive --log kafka://127.0.0.1:9092 --follow

    Several archivers may fill a shared archive, which UNSTABLE_STREAM_ARCHIVE names, e.g.
    delta:s3://bucket/archive.

    Example: unstable-stream archive --compact

    Args:
        rebuild: Keep the present archive as archive.duckdb.old and fill a new one.
        compact: Merge the small files of a shared archive, and archive nothing.
        follow: Go on archiving until Ctrl-C or SIGTERM.
    """
    from unstable_stream.api.serving import archive, compact_archive

    console = plain_console(stderr=True, highlight=False)
    if compact and (rebuild or follow):
        raise typer.BadParameter("--compact is done without --rebuild and --follow")
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


def rm_command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", autocompletion=complete_run)],
    dry_run: bool = False,
    force: bool = False,
    *,
    place: Place,
) -> None:
    """Remove runs for good: records in log and archive, checkpoints, output of processes, what-ifs.

    It says what that frees, and asks. A run that is going on is refused, and one that others were forked
    from, evaluate or play against. Export a run first to be able to look at it later: the directory that
    unstable-stream export makes is read like a data directory, with --data.

    Kafka lets no record go before its time: there the archive and the files are freed.

    Example: unstable-stream rm quickstart-2026 --dry-run

    Example: unstable-stream rm 3 5 --force

    Args:
        runs: Runs, each: id, the beginning of it, name, or number in 'unstable-stream runs'.
        dry_run: Only say what would be freed.
        force: Do not ask.
    """
    from unstable_stream.api.removal import look_at_runs, remove_runs

    console = plain_console(stderr=True, highlight=False)
    found = look_at_runs(place, runs)
    for each in found:
        run = each.run
        log_size = "nothing of" if each.log_bytes is None else f"{each.log_bytes / 1e6:,.1f} MB of"
        typer.echo(
            f"{plain(run.run_id)}: {run.records:,} records, {log_size} the log, about "
            f"{each.archive_bytes / 1e6:,.1f} MB of the archive, {each.checkpoint_bytes / 1e6:,.1f} MB of "
            f"checkpoints, {each.other_bytes / 1e6:,.1f} MB of other files",
            err=True,
        )
        if each.elsewhere:
            typer.echo(f"note: its checkpoints at {plain(each.elsewhere)} stay", err=True)
        if run.unasked_logs:
            typer.echo(
                f"note: of its log {', '.join(run.unasked_logs)} it is not known whether all of the run is "
                "archived: name that log with --log, unless it is gone. Later records of the run are passed "
                "over",
                err=True,
            )
    if dry_run:
        return
    if not force:
        typer.confirm("Remove this for good?", abort=True, err=True)
    with console.status("removing"):
        done = remove_runs(place, found)
    typer.echo(
        f"removed {sum(each.records for each in done.dropped):,} records of {len(found)} runs; {place.root} "
        f"had {done.bytes_before / 1e6:,.1f} MB and has {done.bytes_after / 1e6:,.1f} MB now"
    )
    if done.log_in_use:
        typer.echo(
            "the log keeps its size, since another process uses it, and uses the space again; later: "
            f"unstable-stream topics trim --shrink{place.options}",
            err=True,
        )
    if done.deleted_later:
        console.print(
            "files that are not needed any more are deleted after six hours, since somebody may still read "
            "them: by archivers now and then, or with unstable-stream archive --compact",
            soft_wrap=True,
        )


def backup_command(target: Annotated[Path, typer.Argument(metavar="DIR")], *, place: DataPlace) -> None:
    """Copy a data directory while runs write to it. Checkpoints are linked where the disk is the same.

    Example: unstable-stream backup /backups/monday --data unstable-data

    Args:
        target: Directory for the copy; it must not exist.
    """
    from unstable_stream.api.backup import back_up

    done = back_up(place.root, target)
    typer.echo(
        f"{done.path}: log {done.log_bytes / 1e6:,.1f} MB, archive {done.archive_bytes / 1e6:,.1f} MB, "
        f"{done.checkpoints} checkpoints"
    )
    if done.elsewhere:
        print(f"{done.elsewhere} checkpoints are elsewhere, and not in the backup", file=sys.stderr)
    for path in done.missing:
        print(f"not there, and so not in the backup: {plain(path)}", file=sys.stderr)


def prune_command(
    run: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...")] = None,
    dry_run: bool = False,
    idle_days: Annotated[float, typer.Option(min=0.05)] = 30.0,
    *,
    place: Place,
) -> None:
    """Forget what the stream processors have saved of runs that are over; a resumed run is folded again.

    A run is over when it has ended, or was killed and nothing was recorded of it for long. The archiver does
    this by itself, seven days after an end, and 30 days after the last record of a run that was killed.

    Example: unstable-stream prune --dry-run

    Args:
        run: Runs that are over; by default all.
        dry_run: Only say what would be forgotten.
        idle_days: A run that never ended is over after so many days without a record.
    """
    from unstable_stream.api.topics import prune_states

    found = prune_states(place, run or (), dry_run=dry_run, idle_days=idle_days)
    done = "would be forgotten" if dry_run else "forgotten"
    runs = len({each.run_id for each in found})
    typer.echo(f"{sum(len(each.names) for each in found):,} saved states of {runs:,} runs {done}")


def disk_command(
    what: Annotated[str | None, typer.Argument(metavar="[DIR|RUN]")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1)] = None,
    *,
    place: Place,
    form: Format,
) -> None:
    """Show what takes the space of a data directory or of a run, the largest first, and what frees each part.

    It looks at the log by topic, the archive by table, files of each run, and caches of this machine.

    Example: unstable-stream disk

    Example: unstable-stream disk latest

    Args:
        what: A data directory, by default that of --data; or a run, named as in 'unstable-stream runs'.
        limit: At most so many, the largest.
    """
    from unstable_stream.api.disk import disk_usage

    is_directory = what is not None and Path(what).is_dir()
    if is_directory:
        place = Place.at(what, place.log)
    used = disk_usage(place, None if is_directory else what)
    if form is not Format.TABLE:
        print_rows(("what", "bytes", "freed_by"), used[:limit], form)
        return
    rows = [(each.what, round(each.bytes / 1e6, 1), each.frees) for each in used[:limit]]
    print_rows(("what", "MB", "freed by"), rows, form)
    print(f"{sum(each.bytes for each in used) / 1e6:,.1f} MB in all", file=sys.stderr)
