"""``unstable-stream export``: take a run along as Parquet files."""

from typing import Annotated, cast

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.ui.cli.options import DataOption


def command(
    run: str,
    out: Annotated[str, typer.Option("--out", "-o")],
    tables: Annotated[str, typer.Option(metavar="NAMES")] = "",
    batches: Annotated[str, typer.Option(metavar="FORMAT")] = "",
    force: bool = False,
    data: DataOption = DEFAULT_DATA_DIR,
) -> None:
    """Write a run to Parquet files, one per table and one of its raw events, with a manifest of row counts.

    Example: unstable-stream export RUN -o run-parquet

    Example: unstable-stream export RUN -o s3://bucket/run-parquet

    Example: unstable-stream export RUN -o curves --tables learning_curve,payoff_matrix

    Example: unstable-stream export RUN -o batches --batches csv

    Args:
        run: Run id, or its beginning.
        out: Directory for the files; for tables also an address, s3://bucket/name.
        tables: Tables or views, comma between; all tables by default.
        batches: Instead of tables, the batch of each update: train_data_step_N.csv, or .parquet.
        force: Replace an export that is there already.
    """
    from unstable_stream.api.archived import BatchFormat, export_batches, export_run
    from unstable_stream.api.output import plain_console
    from unstable_stream.api.place import Place

    console = plain_console(stderr=True, highlight=False)
    if batches and tables:
        raise typer.BadParameter("--batches and --tables exclude each other", param_hint="--batches")
    if batches and "://" in out:
        raise typer.BadParameter("batches are written to a directory", param_hint="--out")
    if batches:
        with console.status("exporting"):
            written = export_batches(
                Place.at(data).archive, run, out, cast(BatchFormat, batches), force=force
            )
        told = f"{len(written):,} batches in {out}"
        console.print(told, soft_wrap=True, markup=False)
        return
    names = [name.strip() for name in tables.split(",") if name.strip()]
    with console.status("exporting"):
        manifest = export_run(Place.at(data).archive, run, out, tables=names, force=force)
    files = manifest.tables.values()
    rows, size = sum(file.rows for file in files), sum(file.bytes for file in files) / 1e6
    told = f"run {manifest.run_id}: {rows:,} rows of {len(files)} tables, {size:,.1f} MB, in {out}"
    console.print(told, soft_wrap=True, markup=False)
    if manifest.missing:
        lacking = f"note: deleted from the log before they were archived: {', '.join(manifest.missing)}"
        console.print(lacking, soft_wrap=True, markup=False)
