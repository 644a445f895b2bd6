"""Drop a run from the archive: its rows go, the disk comes back, and the archiver does not archive it again.

A DuckDB file is written anew without the run's rows (:meth:`.store.WritableArchive.rewrite`): DuckDB would
use the place of deleted rows for new ones, but seldom give it back. Of a shared archive the files with rows
of the run are (:mod:`.shared.dropping`). Either way a kill at any moment leaves the archive with the whole
run or without it. What stays is a row of ``dropped_runs``, which writers heed, and by which readers know the
run.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.read import query
from unstable_stream.archive.store import Connection, WritableArchive
from unstable_stream.archive.tables import TABLES
from unstable_stream.archive_address import ArchiveAddress, is_export, is_shared
from unstable_stream.errors import ArchiveError, RunError

__all__ = [
    "NOTE_BEGINNINGS",
    "DroppedRun",
    "drop_run",
    "dropped_error",
    "dropped_runs",
    "keep_dropped",
]

_OWN: Final = ("schema_version", "positions", "missing_records", "dropped_runs")


class DroppedRun(NamedTuple):
    """A run that was dropped."""

    run_id: str
    name: str | None
    started_at: datetime | None
    """UTC, as the archive had it."""
    dropped_at: datetime
    """UTC."""
    records: int
    """Records that were taken out."""

    @property
    def told(self) -> str:
        """The message to a reader who asks for the run."""
        return (
            f"run {self.run_id} was dropped from the archive on {self.dropped_at:%Y-%m-%d %H:%M} UTC, with "
            f"{self.records:,} records"
        )


def drop_run(archive: ArchiveAddress, run_id: str, *, timeout_s: float = 60.0) -> DroppedRun:
    """Take out all rows of a run. It must be over: what comes of it later is passed over.

    Args:
        archive: the archive.
        run_id: the run.
        timeout_s: how long to wait while another process holds the file, whose writers and readers wait for
            this call; or how long to try again while others commit to the shared archive.

    Raises:
        RunError: no record of it is archived.
        ArchiveBusyError: others held the file, or committed to the shared archive, past the deadline; or the
            shared archive cannot be reached.
        ArchiveError: there is no archive, or it could not be written; nothing was changed.
    """
    if is_shared(archive):
        # Imported here: deltalake may not be installed.
        from unstable_stream.archive.shared.dropping import drop_from_shared

        return drop_from_shared(archive, run_id, timeout_s)
    if is_export(archive):
        raise ArchiveError(f"{archive} is an export, which is only read: delete the directory instead")
    if not Path(archive).is_file():
        raise ArchiveError(f"no archive at {archive}: name the data directory with --data")

    def fill(connection: Connection) -> DroppedRun:
        ((records,),) = connection.execute(
            "SELECT count(*) FROM archive.main.events WHERE run_id = ?", [run_id]
        ).fetchall()
        if not records:
            raise RunError(f"the archive {archive} has no record of run {run_id}")
        # The new file begins with a row of its own.
        connection.execute("DELETE FROM schema_version")
        for name in _OWN:
            connection.execute(f'INSERT INTO "{name}" BY NAME SELECT * FROM archive.main."{name}"')
        connection.execute(NOTE_BEGINNINGS.format(events="archive.main.events"))
        for table in (EVENTS, *TABLES):
            connection.execute(
                f'INSERT INTO "{table.name}" BY NAME SELECT * FROM archive.main."{table.name}" '
                "WHERE run_id IS DISTINCT FROM ?",
                [run_id],
            )
        connection.execute(_NOTE, [run_id, records])
        (row,) = connection.execute("SELECT * FROM dropped_runs WHERE run_id = ?", [run_id]).fetchall()
        return DroppedRun(*row)

    writable = WritableArchive(Path(archive), timeout_s=timeout_s)
    try:
        return writable.rewrite(fill)
    finally:
        writable.close()


def dropped_runs(archive: ArchiveAddress, *, timeout_s: float = 30.0) -> list[DroppedRun]:
    """Return the runs that were dropped, the latest first.

    Raises:
        ArchiveBusyError: another process held the archive past the deadline.
        ArchiveError: there is no archive.
    """
    return [DroppedRun(*row) for row in query(archive, _DROPPED, timeout_s=timeout_s).rows]


def dropped_error(connection: Connection, wanted: str, *, exact: bool = False) -> RunError | None:
    """Return the error for one who asks for a run that was dropped: by its id, a beginning of it, its name.

    ``None``: nothing that was dropped is called so. With ``exact`` only the whole id counts.
    """
    runs = [DroppedRun(*row) for row in connection.execute(_DROPPED).fetchall()]
    found = [run for run in runs if run.run_id == wanted]
    if not found and wanted and not exact:
        found = [run for run in runs if run.run_id.startswith(wanted) or run.name == wanted]
    return RunError("; ".join(run.told for run in found)) if found else None


def keep_dropped(archive: Path, runs: Sequence[DroppedRun]) -> None:
    """Tell a new archive which runs are not to be archived.

    Raises:
        ArchiveBusyError: another process holds it.
    """
    writable = WritableArchive(archive, timeout_s=60.0)
    try:
        with writable.held() as connection:
            connection.executemany("INSERT INTO dropped_runs VALUES (?, ?, ?, ?, ?)", runs)
            connection.execute("CHECKPOINT")
    finally:
        writable.close()


_DROPPED: Final = "SELECT * FROM dropped_runs ORDER BY dropped_at DESC, run_id"
_NOTE: Final = """
INSERT INTO dropped_runs
SELECT $1, any_value(name), any_value(started_at), (now() AT TIME ZONE 'UTC')::TIMESTAMP, $2
FROM archive.main.runs WHERE run_id = $1
"""
# An older version of the package did not note what the log had deleted before: it shows by where a partition
# begins. From now on that says nothing, since what is not there may be of a dropped run. So what shows now is
# noted.
NOTE_BEGINNINGS: Final = """
INSERT INTO missing_records
SELECT p.log_id, p.topic, p."partition", 0, coalesce(e.first, p.next_offset) AS begun, NULL
FROM positions AS p LEFT JOIN (
    SELECT log_id, topic, "partition", min("offset") AS first FROM {events} GROUP BY ALL
) AS e USING (log_id, topic, "partition")
WHERE coalesce(e.first, p.next_offset) > 0
    AND NOT EXISTS (SELECT 1 FROM dropped_runs)
    AND NOT EXISTS (
        SELECT 1 FROM missing_records AS m
        WHERE (m.log_id, m.topic, m."partition") = (p.log_id, p.topic, p."partition") AND m.first_offset = 0
    )
"""
