"""Write to a shared archive beside others: each batch is a commit, made on top of what its writer has seen.

A batch's commit:

1. write a file for each relation, one of them the positions after the batch, without the rows of runs that
   were dropped;
2. learn what others have committed: compare the positions of the batch's partitions with those that it was
   built on; if a run was dropped since, do 1 again;
3. commit the files together with the positions: this makes the next version of the table, or fails because
   somebody else made it, and 2 is done again.

A run is dropped in one commit, too: files with its rows are replaced by others without them, and
``dropped_runs`` has the run. How often one was dropped is an application transaction of the table, committed
with that: a writer looks at one number before each commit.

A kill before the commit leaves files that are of no version. They are deleted hours later, like those that
were replaced: somebody may still read them (:mod:`.compaction`).
"""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from unstable_stream.archive.batch import EVENTS, ArchivedRecord, RowBatch, build_batch
from unstable_stream.archive.shared.compaction import compact
from unstable_stream.archive.shared.relations import DROPPED, RELATIONS, as_rows, rows_of
from unstable_stream.archive.shared.standing import (
    WriterStanding,
    crowded,
    give_slots,
    position_name,
    read_standings,
    write_standings,
)
from unstable_stream.archive.shared.table import SharedTable, TableFile
from unstable_stream.archive.writing import DroppedRun, LogPartition, Tidied
from unstable_stream.console import get_logger
from unstable_stream.errors import ArchiveError
from unstable_stream.log.stores.archive_address import ArchiveAddress

DROPS: Final = "runs-dropped-or-put-back"
"""The name of the application transaction that counts how often runs were dropped; an older package also put
some back.
"""
_FILES_AT_ONCE: Final = 4
"""Files of a batch that are written at the same time: an object store takes some milliseconds for each."""
_COMPACT_EVERY: Final = 50
"""Versions. Whoever makes one of these looks for small files to merge."""
_VACUUM_EVERY: Final = 1000

_log = get_logger(__name__)


class _Dropped(NamedTuple):
    """The runs that were dropped, at one moment."""

    times: int
    """The number committed as :data:`DROPS`."""
    run_ids: Collection[str]


class _Without(NamedTuple):
    """A file as it is once a run is gone from it."""

    rows: int
    """Rows of the run; 0: the file stays."""
    kept: TableFile | None
    """A file with the other rows; ``None``: there are none."""


class SharedStore:
    """A shared archive that is written. See :class:`.writing.Store`."""

    flush_interval_s = 5.0
    """Each time leaves a file for every table."""

    def __init__(self, archive: ArchiveAddress, *, create: bool, timeout_s: float) -> None:
        """Open the archive; with ``create`` it is made if there is none. Others may commit first for
        ``timeout_s``.
        """
        self._timeout_s = timeout_s
        self._table = SharedTable(archive, create=create)
        self.archive_id = self._table.archive_id
        self._threads = ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="archive")
        self._lock = threading.Lock()
        self._standings: dict[LogPartition, WriterStanding] = {}
        """Only what never changes of them is used: their slots, and how often they were set back."""
        self._dropped = self._read_dropped()

    def positions(self) -> dict[LogPartition, int]:
        """Return the committed positions; see :class:`.writing.Store`."""
        self._table.refresh()
        standings = read_standings(self._table)
        with self._lock:
            self._standings |= standings
        return {place: standing.next_offset for place, standing in standings.items() if standing.next_offset}

    def build(self, records: Sequence[ArchivedRecord], log_id: str) -> RowBatch:
        """Build rows; see :class:`.writing.Store`. Only readers see which record of an event comes first."""
        places = [LogPartition(log_id, record.topic, record.partition) for record in records]
        standings = self._slots(set(places))
        numbers = [
            standings[place].first_number + record.offset
            for place, record in zip(places, records, strict=True)
        ]
        return build_batch(records, None, log_id, numbers)

    def append(
        self, batch: RowBatch, before: Mapping[LogPartition, int], after: Mapping[LogPartition, int]
    ) -> bool:
        """Commit rows and positions; see :class:`.writing.Store`."""
        known = self._slots(after.keys())
        moved = {place: known[place].moved_to(offset) for place, offset in after.items()}
        marks = {position_name(place): standing.mark for place, standing in moved.items()}
        expected = {
            position_name(place): known[place].moved_to(offset).mark for place, offset in before.items()
        }
        dropped = self._dropped
        files = self._files(batch, moved, dropped.run_ids)
        deadline = time.monotonic() + self._timeout_s
        while True:
            version = self._table.refresh()
            if any((self._table.position(name) or 0) != mark for name, mark in expected.items()):
                return False
            if (self._table.position(DROPS) or 0) != dropped.times:
                # A run was dropped since the files were written.
                dropped = self._dropped = self._read_dropped()
                files = self._files(batch, moved, dropped.run_ids)
                continue
            if self._table.commit(files, positions=marks, upon=version):
                self._tidy_now_and_then()
                return True
            if time.monotonic() >= deadline:
                raise crowded(self._table, self._timeout_s)

    def take_out(self, dropped: DroppedRun) -> int:
        """Replace the files that have rows of a run; see :class:`.writing.Store`.

        When somebody else commits first, only the files that came meanwhile are looked at.
        """
        looked_at: dict[str, _Without] = {}
        deadline: float | None = None
        while True:
            version = self._table.refresh()
            files = self._table.files()
            for file in files:
                if file.name not in looked_at:
                    looked_at[file.name] = self._without_run(file, dropped.run_id)
            changed = [file for file in files if looked_at[file.name].rows]
            records = sum(looked_at[file.name].rows for file in changed if file.relation == EVENTS.name)
            if not records:
                return 0
            rewritten = [looked_at[file.name].kept for file in changed]
            kept = [file for file in rewritten if file is not None]
            note = dropped._replace(records=records)._asdict()
            noted = self._table.write(DROPPED, as_rows(DROPPED, [note]))
            times = (self._table.position(DROPS) or 0) + 1
            if self._table.commit([*kept, noted], changed, {DROPS: times}, upon=version):
                return records
            # From the first time on: before, all files were read, and others commit in that time.
            deadline = time.monotonic() + self._timeout_s if deadline is None else deadline
            if time.monotonic() >= deadline:
                raise crowded(self._table, self._timeout_s)

    def tidy(self) -> Tidied:
        """Merge and delete files; see :class:`.writing.Store`."""
        merged, into = compact(self._table, everything=True)
        return Tidied(merged, into, self._table.vacuum())

    def close(self) -> None:
        """Let go of the threads; everything stored is whole."""
        self._threads.shutdown()

    def _slots(self, places: Collection[LogPartition]) -> Mapping[LogPartition, WriterStanding]:
        """Return the standings of these partitions, once each has a slot."""
        with self._lock:
            if set(places) <= self._standings.keys():
                return self._standings
        standings = give_slots(self._table, places, self._timeout_s)
        with self._lock:
            self._standings = {**standings, **self._standings}
            return self._standings

    def _files(
        self, batch: RowBatch, standings: Mapping[LogPartition, WriterStanding], dropped: Collection[str]
    ) -> list[TableFile]:
        """Write the files of a batch, without the rows of runs that were dropped."""
        work = [self._threads.submit(write_standings, self._table, standings)]
        for relation, rows in batch.tables.items():
            if dropped and "run_id" in rows.column_names:
                gone = pc.is_in(rows["run_id"], value_set=pa.array(dropped, pa.string()))
                rows = rows.filter(pc.invert(gone))
            if rows.num_rows:
                work.append(self._threads.submit(self._write, relation, rows))
        return [each.result() for each in work]

    def _write(self, relation: str, rows: pa.Table) -> TableFile:
        return self._table.write(relation, rows_of(relation, rows))

    def _read_dropped(self) -> _Dropped:
        # The number first. If another thread learns of a newer version in between, it is too small, and that
        # is found before the next commit.
        times = self._table.position(DROPS) or 0
        found: set[str] = set()
        for file in self._table.files(DROPPED):
            rows = self._table.read(file, [f"{DROPPED}.run_id"])
            found.update(row["run_id"] for row in rows[DROPPED].to_pylist())
        return _Dropped(times, sorted(found))

    def _without_run(self, file: TableFile, run_id: str) -> _Without:
        """Write a file anew without the rows of a run, if it has any."""
        if "run_id" not in RELATIONS.get(file.relation, _NOT_KNOWN):
            return _Without(0, None)
        runs = self._table.read(file, [f"{file.relation}.run_id"])
        if not runs.num_columns or not pc.any(_of_run(runs, file.relation, run_id)).as_py():
            return _Without(0, None)
        # The whole rows only now: most files have none of the run.
        rows = self._table.read(file)
        others = rows.filter(pc.invert(_of_run(rows, file.relation, run_id)))
        kept = self._table.write(file.relation, others) if others.num_rows else None
        return _Without(rows.num_rows - others.num_rows, kept)

    def _tidy_now_and_then(self) -> None:
        """Merge small files, now and then; the batch is stored, and nothing of it fails here."""
        version = self._table.version + 1  # the one that was made
        if version % _COMPACT_EVERY == 0:
            try:
                compact(self._table)
                if version % _VACUUM_EVERY == 0:
                    self._table.vacuum()
            except ArchiveError as error:
                _log.warning("small files of the archive are merged later", reason=str(error))


def _of_run(rows: pa.Table, relation: str, run_id: str) -> pa.Array:
    runs = pc.struct_field(rows[relation].combine_chunks(), "run_id")
    return pc.fill_null(pc.equal(runs, run_id), False)


# Of a relation of a newer package it is not known whether it tells of runs: its files are asked.
_NOT_KNOWN: Final = {"run_id": ""}
