"""Write the batches that a run was trained on as files, one per update: ``train_data_step_N.csv``."""

from pathlib import Path
from typing import Final, Literal, TypeAlias

from unstable_stream.archive.export import find_exported_run, with_plain_json, written_beside
from unstable_stream.archive.opening import open_archive
from unstable_stream.archive_address import ArchiveAddress
from unstable_stream.errors import ArchiveError

__all__ = ["BatchFormat", "export_batches"]

BatchFormat: TypeAlias = Literal["csv", "parquet"]

_OPTIONS: Final[dict[str, str]] = {"csv": "FORMAT csv, HEADER", "parquet": "FORMAT parquet, COMPRESSION zstd"}


def export_batches(
    archive: ArchiveAddress,
    run: str,
    directory: Path | str,
    file_format: BatchFormat = "csv",
    *,
    force: bool = False,
    timeout_s: float = 30.0,
) -> list[Path]:
    """Write the view ``training_batches`` of one run as a file for each update, in the order of the batch.

    Args:
        archive: the DuckDB file.
        run: the run's id, or an unambiguous beginning of it.
        directory: where ``train_data_step_N.csv``, or ``.parquet``, go; made if it does not exist.
        file_format: ``csv`` or ``parquet``.
        force: replace files that are there already.
        timeout_s: how long to wait while another process writes to the archive.

    Returns:
        The files, by update; none for a run without updates.

    Raises:
        RunError: no such run, or several; lists what is there.
        ArchiveError: the format is another, a file is there already, or one cannot be written.
        ArchiveBusyError: another process held the archive past the deadline.
    """
    if file_format not in _OPTIONS:
        raise ArchiveError(f"batches as {file_format!r}: expected one of {', '.join(_OPTIONS)}")
    target = Path(directory).absolute()
    with written_beside(target) as partial:
        with open_archive(archive, files=True, timeout_s=timeout_s) as connection:
            run_id, _ = find_exported_run(connection, run)
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
                quoted = str(partial / name).replace("'", "''")
                connection.execute(
                    f"COPY ({rows} WHERE update = {update:d} ORDER BY batch_position) "
                    f"TO '{quoted}' ({_OPTIONS[file_format]})"
                )
        target.mkdir(exist_ok=True)
        for name in files:
            (partial / name).replace(target / name)
    return [target / name for name in files]
