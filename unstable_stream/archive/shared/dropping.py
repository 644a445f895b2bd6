"""Drop a run from a shared archive while its archivers go on.

In this order:

1. write the files anew that have rows of the run, without these;
2. commit: the old files go, the new ones come, and ``dropped_runs`` has the run.

This is one commit. So a kill at any moment leaves the archive with the whole run or without it, and readers
see it whole or dropped. When somebody else commits first, only the files that came meanwhile are looked at,
and 2 is done again. Archivers look at what was dropped before each commit of theirs (:mod:`.writer`).

The old files stay for hours, since somebody may still read them, and are deleted as those that were merged
are (:mod:`.compaction`). So are files that a killed call left.
"""

import time
from datetime import UTC, datetime
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.dropping import DroppedRun
from unstable_stream.archive.shared.dropped import DROPS
from unstable_stream.archive.shared.relations import DROPPED, RELATIONS, as_rows
from unstable_stream.archive.shared.snapshot import open_shared
from unstable_stream.archive.shared.standing import crowded
from unstable_stream.archive.shared.table import SharedTable, TableFile
from unstable_stream.archive_address import ArchiveAddress
from unstable_stream.errors import RunError

__all__ = ["Without", "drop_from_shared", "without_run"]


class Without(NamedTuple):
    """A file as it is once a run is gone from it."""

    rows: int
    """Rows of the run; 0: the file stays."""
    kept: TableFile | None
    """A file with the other rows; ``None``: there are none."""


def drop_from_shared(archive: ArchiveAddress, run_id: str, timeout_s: float) -> DroppedRun:
    """Take out all rows of a run.

    Args:
        archive: the address.
        run_id: the run.
        timeout_s: how long to try again while others commit.

    Raises:
        RunError: no record of it is archived.
        ArchiveBusyError: others committed all the time, or the store cannot be reached. The run may have been
            dropped if the store went away during the commit: ask again.
        ArchiveError: there is no archive, or it cannot be written.
    """
    with open_shared(archive) as connection:
        ((name, started_at),) = connection.execute(_ABOUT, [run_id]).fetchall()
    # Only now: it would make an archive where there is none, and adds the relation that an older one lacks.
    table = SharedTable(archive, create=True)
    looked_at: dict[str, Without] = {}
    deadline: float | None = None
    while True:
        version = table.refresh()
        files = table.files()
        for file in files:
            if file.name not in looked_at:
                looked_at[file.name] = without_run(table, file, run_id)
        changed = [file for file in files if looked_at[file.name].rows]
        records = sum(looked_at[file.name].rows for file in changed if file.relation == EVENTS.name)
        if not records:
            raise RunError(f"the archive {archive} has no record of run {run_id}")
        rewritten = [looked_at[file.name].kept for file in changed]
        kept = [file for file in rewritten if file is not None]
        dropped_at = datetime.now(tz=UTC).replace(tzinfo=None)
        dropped = DroppedRun(run_id, name, started_at, dropped_at, records)
        noted = table.write(DROPPED, as_rows(DROPPED, [dropped._asdict()]))
        mark = (table.position(DROPS) or 0) + 1
        if table.commit([*kept, noted], changed, {DROPS: mark}, upon=version):
            return dropped
        # From the first time on: before, all files were read, and others commit in that time.
        deadline = time.monotonic() + timeout_s if deadline is None else deadline
        if time.monotonic() >= deadline:
            raise crowded(table, timeout_s)


def without_run(table: SharedTable, file: TableFile, run_id: str) -> Without:
    """Write a file anew without the rows of a run, if it has any."""
    if "run_id" not in RELATIONS.get(file.relation, _NOT_KNOWN):
        return Without(0, None)
    runs = table.read(file, [f"{file.relation}.run_id"])
    if not runs.num_columns or not pc.any(_of_run(runs, file.relation, run_id)).as_py():
        return Without(0, None)
    # The whole rows only now: most files have none of the run.
    rows = table.read(file)
    others = rows.filter(pc.invert(_of_run(rows, file.relation, run_id)))
    kept = table.write(file.relation, others) if others.num_rows else None
    return Without(rows.num_rows - others.num_rows, kept)


def _of_run(rows: pa.Table, relation: str, run_id: str) -> pa.Array:
    runs = pc.struct_field(rows[relation].combine_chunks(), "run_id")
    return pc.fill_null(pc.equal(runs, run_id), False)


# Of a relation of a newer package it is not known whether it tells of runs: its files are asked.
_NOT_KNOWN: Final = {"run_id": ""}
_ABOUT: Final = "SELECT any_value(name), any_value(started_at) FROM runs WHERE run_id = ?"
