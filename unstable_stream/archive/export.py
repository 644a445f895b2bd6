"""Write a run as Parquet files: one per table, and a manifest that lists them.

The files are written beside the target and moved there once all are whole: a target with a manifest holds a
complete export. All come from one moment: while they are written, the archive is held and a writer waits.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

import duckdb
import msgspec

from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.dropping import find_archived_run
from unstable_stream.archive.exported import ExportedTable, Manifest
from unstable_stream.archive.opening import open_archive
from unstable_stream.archive.store import quoted
from unstable_stream.archive.tables import TABLES
from unstable_stream.archive.view_files import load_views
from unstable_stream.errors import ArchiveError
from unstable_stream.log.stores.address import checked_address, is_address
from unstable_stream.log.stores.archive_address import MANIFEST, ArchiveAddress
from unstable_stream.log.stores.store import Store
from unstable_stream.version import __version__

# Rows of `events` and `turns` are kilobytes; whoever reads a file has a group of them in memory at a time.
_ROW_GROUP_ROWS: Final = 20_480
BatchFormat: TypeAlias = Literal["csv", "parquet"]

_BATCH_OPTIONS: Final[dict[str, str]] = {
    "csv": "FORMAT csv, HEADER",
    "parquet": "FORMAT parquet, COMPRESSION zstd",
}


def default_tables() -> list[str]:
    """Return the names of the tables that are exported unless others are asked for: all that know runs."""
    return [table.name for table in (EVENTS, *TABLES)]


def export_run(
    archive: ArchiveAddress,
    run: str,
    directory: Path | str,
    *,
    tables: Sequence[str] = (),
    force: bool = False,
) -> Manifest:
    """Write the rows of one run to Parquet files (zstd).

    Args:
        archive: the DuckDB file.
        run: the run: id, beginning of it, name, number or ``latest``.
        directory: where the files go, made if it does not exist; or an address in a store.
        tables: names of tables or views; by default :func:`default_tables`.
        force: replace an export that is there already.

    Raises:
        RunError: no such run, or several; lists what is there.
        ArchiveError: no such table, the directory is in use, or it cannot be written.
        ArchiveBusyError: another process held the archive past the deadline.
        StoreError: the store refuses, or cannot be reached.
    """
    names = _known(tables or default_tables())
    if is_address(str(directory)):
        store = Store(checked_address(str(directory), "export"))
        old = store.read(MANIFEST)
        # With ``force`` what has no manifest is the rest of an export that was interrupted.
        replaced = _replaced(store.address, bool(old or (not force and store.names())), old, force)
        with tempfile.TemporaryDirectory(prefix="unstable-stream-export-") as made:
            with open_archive(archive, files=True) as connection:
                manifest = _write(connection, run, names, Path(made))
            for name in replaced:
                store.remove(name)
            for file in [*(table.file for table in manifest.tables.values()), MANIFEST]:
                store.put(Path(made, file), file)
        return manifest
    target = Path(directory).absolute()
    there = target.exists() and not (target.is_dir() and not any(target.iterdir()))
    manifest_there = target / MANIFEST
    old = manifest_there.read_bytes() if manifest_there.is_file() else None
    replaced = _replaced(str(target), there, old, force)
    with written_beside(target) as partial:
        with open_archive(archive, files=True) as connection:
            manifest = _write(connection, run, names, partial)
        for name in replaced:
            (target / name).unlink(missing_ok=True)
        target.mkdir(exist_ok=True)
        # The manifest comes last: with it the export is whole.
        for file in [*(table.file for table in manifest.tables.values()), MANIFEST]:
            (partial / file).rename(target / file)
    return manifest


def _known(tables: Sequence[str]) -> list[str]:
    known = [*default_tables(), *(view.name for view in load_views() if "run_id" in view.columns)]
    if unknown := [name for name in tables if name not in known]:
        raise ArchiveError(f"no table {', '.join(unknown)} to export; there are: {', '.join(sorted(known))}")
    return list(dict.fromkeys(tables))


def _replaced(where: str, there: bool, manifest: bytes | None, force: bool) -> list[str]:
    """Return the files of an earlier export; raise if anything else is ``there``, or without ``force``."""
    if not there:
        return []
    try:
        old = msgspec.json.decode(manifest or b"", type=Manifest)
    except msgspec.DecodeError as error:
        raise ArchiveError(f"{where} is there already and is no export; choose another with -o") from error
    if not force:
        raise ArchiveError(f"{where} holds an export of run {old.run_id}; replace it with --force")
    # The manifest goes first: without it what is left is no export. Names only: nothing outside is touched.
    return [MANIFEST, *(Path(table.file).name for table in old.tables.values())]


@contextmanager
def written_beside(target: Path) -> Iterator[Path]:
    """Give a new directory beside ``target`` to write to; it is removed, and failures name ``target``."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except (OSError, duckdb.Error) as error:
        raise ArchiveError(f"could not export to {target}: {error}") from error


def _write(
    connection: duckdb.DuckDBPyConnection, run: str, names: Sequence[str], directory: Path
) -> Manifest:
    run_id = find_archived_run(connection, run)
    ((run_name,),) = connection.execute("SELECT name FROM runs WHERE run_id = ?", [run_id]).fetchall()
    connection.execute("SET VARIABLE run = ?", [run_id])
    exported = {}
    for name in names:
        path = directory / f"{name}.parquet"
        copied = connection.execute(
            f'COPY (SELECT {with_plain_json(connection, name)} FROM "{name}" '
            f"WHERE run_id = getvariable('run')) TO {quoted(path)} "
            f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROW_GROUP_ROWS})"
        )
        ((rows,),) = copied.fetchall()
        exported[name] = ExportedTable(path.name, rows, path.stat().st_size)
    ((version,),) = connection.execute("SELECT version FROM schema_version").fetchall()
    logs = "SELECT DISTINCT log_id FROM events WHERE run_id = getvariable('run') ORDER BY 1"
    manifest = Manifest(
        run_id=run_id,
        run_name=run_name,
        exported_at=datetime.now(tz=UTC).isoformat(timespec="seconds"),
        package_version=__version__,
        schema_version=version,
        log_ids=[row[0] for row in connection.execute(logs).fetchall()],
        tables=exported,
        missing=[told for (told,) in connection.execute(_MISSING_OF_RUN).fetchall()],
    )
    (directory / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    return manifest


def with_plain_json(connection: duckdb.DuckDBPyConnection, relation: str) -> str:
    """Return what selects all columns of ``relation``, those of JSON as text.

    A Parquet file would call them JSON, which not every reader takes for text: Polars shows bytes.
    """
    described = connection.execute(f'DESCRIBE "{relation}"').fetchall()
    texts = [
        f'"{name}"::{kind.replace("JSON", "VARCHAR")} AS "{name}"'
        for name, kind, *_ in described
        if "JSON" in kind
    ]
    return f"* REPLACE ({', '.join(texts)})" if texts else "*"


_MISSING_OF_RUN: Final = """
SELECT format('{}[{}]@{} to {}', topic, "partition", first_offset, next_offset - 1) FROM missing_of_runs
WHERE run_id = getvariable('run') ORDER BY topic, "partition", first_offset
"""


def export_batches(
    archive: ArchiveAddress,
    run: str,
    directory: Path | str,
    file_format: BatchFormat = "csv",
    *,
    force: bool = False,
) -> list[Path]:
    """Write the view ``training_batches`` of one run as a file for each update, in the order of the batch.

    Args:
        archive: the DuckDB file.
        run: the run: id, beginning of it, name, number or ``latest``.
        directory: where ``train_data_step_N.csv``, or ``.parquet``, go; made if it does not exist.
        file_format: ``csv`` or ``parquet``.
        force: replace files that are there already.

    Returns:
        The files, by update; none for a run without updates.

    Raises:
        RunError: no such run, or several; lists what is there.
        ArchiveError: the format is another, a file is there already, or one cannot be written.
        ArchiveBusyError: another process held the archive past the deadline.
    """
    if file_format not in _BATCH_OPTIONS:
        raise ArchiveError(f"batches as {file_format!r}: expected one of {', '.join(_BATCH_OPTIONS)}")
    target = Path(directory).absolute()
    with written_beside(target) as partial:
        with open_archive(archive, files=True) as connection:
            run_id = find_archived_run(connection, run)
            # Joined once: the texts are kilobytes, and there may be thousands of updates.
            connection.execute(
                "CREATE OR REPLACE TEMP TABLE exported_batches AS SELECT * EXCLUDE (run_id) "
                "FROM training_batches WHERE run_id = ? ORDER BY update, batch_position",
                [run_id],
            )
            updates = connection.execute("SELECT DISTINCT update FROM exported_batches ORDER BY 1").fetchall()
            files = [f"train_data_step_{update}.{file_format}" for (update,) in updates]
            there = [name for name in files if (target / name).exists()]
            if there and not force:
                raise ArchiveError(f"{target} has {there[0]} already; replace such files with --force")
            rows = f"SELECT {with_plain_json(connection, 'exported_batches')} FROM exported_batches"
            for (update,), name in zip(updates, files, strict=True):
                connection.execute(
                    f"COPY ({rows} WHERE update = {update:d} ORDER BY batch_position) "
                    f"TO {quoted(partial / name)} ({_BATCH_OPTIONS[file_format]})"
                )
        target.mkdir(exist_ok=True)
        for name in files:
            (partial / name).replace(target / name)
    return [target / name for name in files]
