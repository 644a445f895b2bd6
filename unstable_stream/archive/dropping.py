"""Drop a run from the archive: its rows go, the disk comes back, and the archiver does not archive it again.

A kill at any moment leaves the archive with the whole run or without it (:meth:`.writing.Store.take_out`).
What stays is a row of ``dropped_runs``, which writers heed, and by which readers know the run.
"""

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from unstable_stream.archive.opening import open_archive, open_store
from unstable_stream.archive.read import query
from unstable_stream.archive.store import Connection, WritableArchive
from unstable_stream.archive.writing import DroppedRun
from unstable_stream.errors import ArchiveError, RunError
from unstable_stream.events.run_ids import KnownRun, pick_run
from unstable_stream.log.stores.archive_address import ArchiveAddress


def drop_run(archive: ArchiveAddress, run_id: str) -> DroppedRun:
    """Take out all rows of a run. It must be over: what comes of it later is passed over.

    Args:
        archive: the archive.
        run_id: the run.

    Raises:
        RunError: no record of it is archived.
        ArchiveBusyError: others held the file, or committed to the shared archive, past the deadline; or the
            shared archive cannot be reached. The run may have been dropped if the store went away during the
            commit: ask again.
        ArchiveError: there is no archive, or it could not be written; nothing was changed.
    """
    with open_archive(archive) as connection:
        ((name, started_at),) = connection.execute(_ABOUT, [run_id]).fetchall()
    dropped = DroppedRun(run_id, name, started_at, datetime.now(tz=UTC).replace(tzinfo=None), 0)
    with closing(open_store(archive)) as store:
        records = store.take_out(dropped)
    return dropped._replace(records=records)


def dropped_runs(archive: ArchiveAddress) -> list[DroppedRun]:
    """Return the runs that were dropped, the latest first.

    Raises:
        ArchiveBusyError: another process held the archive past the deadline.
        ArchiveError: there is no archive.
    """
    return [DroppedRun(*row) for row in query(archive, _DROPPED).rows]


def dropped_ids(archive: ArchiveAddress) -> frozenset[str]:
    """Return the ids of the runs that were dropped; none if the archive cannot be read."""
    try:
        with open_archive(archive, records_only=True) as connection:
            return frozenset(row[0] for row in connection.execute(_DROPPED).fetchall())
    except ArchiveError:
        return frozenset()  # whoever needs the archive is told what is wrong with it


def dropped_error(connection: Connection, wanted: str) -> RunError | None:
    """Return the error for one who asks for a run that was dropped: by its id, a beginning of it, its name.

    ``None``: nothing that was dropped is called so.
    """
    runs = [DroppedRun(*row) for row in connection.execute(_DROPPED).fetchall()]
    found = [run for run in runs if run.run_id == wanted]
    if not found and wanted:
        found = [run for run in runs if run.run_id.startswith(wanted) or run.name == wanted]
    return RunError("; ".join(run.told for run in found)) if found else None


def known_runs(connection: Connection) -> list[KnownRun]:
    """Return the runs of an archive in the order in which they began; dropped ones have a number only."""
    return [KnownRun(*row) for row in connection.execute(_KNOWN).fetchall()]


def find_archived_run(connection: Connection, wanted: str) -> str:
    """Return the id of the run that is meant; see :func:`~unstable_stream.events.run_ids.pick_run`.

    Raises:
        RunError: no such run, or several, or it was dropped.
    """
    try:
        return pick_run(wanted, known_runs(connection), "this archive")
    except RunError as error:
        raise dropped_error(connection, wanted) or error from None


def keep_dropped(archive: Path, runs: Sequence[DroppedRun]) -> None:
    """Tell a new archive which runs are not to be archived.

    Raises:
        ArchiveBusyError: another process holds it.
    """
    writable = WritableArchive(archive)
    try:
        with writable.held() as connection:
            connection.executemany("INSERT INTO dropped_runs VALUES (?, ?, ?, ?, ?)", runs)
            connection.execute("CHECKPOINT")
    finally:
        writable.close()


_DROPPED: Final = "SELECT * FROM dropped_runs ORDER BY dropped_at DESC, run_id"
_KNOWN: Final = """
SELECT run_id, name, trains, number FROM (
    SELECT *, row_number() OVER (ORDER BY started_at, run_id DESC) AS number FROM (
        SELECT run_id, name, trains, started_at, false AS dropped FROM runs
        UNION ALL SELECT run_id, name, false, started_at, true FROM dropped_runs
    )
) WHERE NOT dropped ORDER BY number
"""
_ABOUT: Final = "SELECT any_value(name), any_value(started_at) FROM runs WHERE run_id = ?"
