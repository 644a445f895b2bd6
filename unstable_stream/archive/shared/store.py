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
were replaced: somebody may still read them.

Each batch leaves a small file for every relation, and a reader opens all that it asks for. So files of about
one size are merged once there are several of them: a row is written anew a few times until it is in a file
that is large enough, however long the archive grows.
"""

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from unstable_stream.archive import store
from unstable_stream.archive.batch import EVENTS, RowBatch, build_batch
from unstable_stream.archive.shared.relations import (
    DROPPED,
    NUMBER,
    POSITIONS,
    RELATIONS,
    as_rows,
    conformed,
    first_number,
    rows_of,
)
from unstable_stream.archive.shared.table import SharedTable, TableFile
from unstable_stream.archive.writing import DroppedRun, LogPartition, Tidied
from unstable_stream.console import get_logger
from unstable_stream.errors import ArchiveBusyError, ArchiveError, RunError
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.stores.archive_address import ArchiveAddress

DROPS: Final = "runs-dropped"
"""The name of the application transaction that counts how often runs were dropped."""
_FILES_AT_ONCE: Final = 4
"""Files of a batch that are written at the same time: an object store takes some milliseconds for each."""
_COMPACT_EVERY: Final = 50
"""Versions. Whoever makes one of these looks for small files to merge."""
_VACUUM_EVERY: Final = 1000

_LARGE: Final = 32 * 1024 * 1024
"""Bytes. A merge has its rows in memory, several times as large as the file."""
_SMALLEST: Final = 64 * 1024
_TIER: Final = 4
"""The files of the next tier are so many times as large."""
_SEVERAL: Final = 8

_log = get_logger(__name__)


class WriterStanding(NamedTuple):
    """The position of a partition; of two the larger is the later one."""

    next_offset: int
    """The offset of the next record to archive, committed as the partition's application transaction."""
    slot: int


def position_name(place: LogPartition) -> str:
    """Return the name of the application transaction of a partition."""
    return f"{place.topic}/{place.partition}/{place.log_id}"


def read_standings(table: SharedTable) -> dict[LogPartition, WriterStanding]:
    """Return the standing of every partition that has one, in the version of the table that is known."""
    found: dict[LogPartition, WriterStanding] = {}
    for file in table.files(POSITIONS):
        # ``Any``: the values of a row.
        rows: list[dict[str, Any]] = table.read(file)[POSITIONS].to_pylist()
        for row in rows:
            place = LogPartition(row["log_id"], row["topic"], row["partition"])
            standing = WriterStanding(row["next_offset"], row["slot"])
            found[place] = max(standing, found.get(place, standing))
    return found


def write_standings(table: SharedTable, standings: Mapping[LogPartition, WriterStanding]) -> TableFile:
    """Write a file with these standings."""
    rows = [place._asdict() | standing._asdict() for place, standing in standings.items()]
    return table.write(POSITIONS, as_rows(POSITIONS, rows))


def give_slots(table: SharedTable, places: Collection[LogPartition]) -> dict[LogPartition, int]:
    """Give a slot to each of these partitions that has none; return all slots then.

    Raises:
        ArchiveBusyError: others committed all the time.
    """
    deadline = time.monotonic() + store.PATIENCE_S
    while True:
        version = table.refresh()
        slots = {place: standing.slot for place, standing in read_standings(table).items()}
        first = max(slots.values(), default=-1) + 1
        given = {place: slot for slot, place in enumerate(sorted(set(places) - slots.keys()), first)}
        new = {place: WriterStanding(0, slot) for place, slot in given.items()}
        if not new or table.commit([write_standings(table, new)], upon=version):
            return slots | given
        if time.monotonic() >= deadline:
            raise crowded(table)


def crowded(table: SharedTable) -> ArchiveBusyError:
    """Return the error of one whose commits were all made after somebody else's."""
    return ArchiveBusyError(
        f"others committed to the archive {table.archive} all the time for {store.PATIENCE_S:g} s; try again"
    )


class SharedStore:
    """A shared archive that is written. See :class:`.writing.Store`."""

    flush_interval_s = 5.0
    """Each time leaves a file for every table."""

    def __init__(self, archive: ArchiveAddress, *, create: bool) -> None:
        """Open the archive; with ``create`` it is made if there is none."""
        self._table = SharedTable(archive, create=create)
        self.archive_id = self._table.archive_id
        self._threads = ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="archive")
        self._slots: dict[LogPartition, int] = {}
        self._drops, self._dropped = self._read_dropped()

    def positions(self, *, forget: bool = True) -> dict[LogPartition, int]:
        """Return the committed positions; see :class:`.writing.Store`."""
        self._table.refresh()
        standings = read_standings(self._table)
        return {place: standing.next_offset for place, standing in standings.items() if standing.next_offset}

    def build(self, records: Sequence[StoredRecord], log_id: str) -> RowBatch:
        """Build rows; see :class:`.writing.Store`. Only readers see which record of an event comes first."""
        places = [LogPartition(log_id, record.topic, record.partition) for record in records]
        slots = self._slots_of(set(places))
        numbers = [
            first_number(slots[place]) + record.offset for place, record in zip(places, records, strict=True)
        ]
        return build_batch(records, None, log_id, numbers)

    def append(
        self, batch: RowBatch, before: Mapping[LogPartition, int], after: Mapping[LogPartition, int]
    ) -> bool:
        """Commit rows and positions; see :class:`.writing.Store`."""
        slots = self._slots_of(after.keys())
        moved = {place: WriterStanding(offset, slots[place]) for place, offset in after.items()}
        positions = {position_name(place): offset for place, offset in after.items()}
        files = self._files(batch, moved)
        deadline = time.monotonic() + store.PATIENCE_S
        while True:
            version = self._table.refresh()
            if any(self._position(place) != offset for place, offset in before.items()):
                return False
            if (self._table.position(DROPS) or 0) != self._drops:
                # A run was dropped since the files were written.
                self._drops, self._dropped = self._read_dropped()
                files = self._files(batch, moved)
                continue
            if self._table.commit(files, positions=positions, upon=version):
                self._tidy_now_and_then()
                return True
            if time.monotonic() >= deadline:
                raise crowded(self._table)

    def take_out(self, dropped: DroppedRun) -> int:
        """Replace the files that have rows of a run; see :class:`.writing.Store`.

        When somebody else commits first, only the files that came meanwhile are looked at.
        """
        looked_at: dict[str, tuple[int, TableFile | None]] = {}
        deadline: float | None = None
        while True:
            version = self._table.refresh()
            files = self._table.files()
            for file in files:
                if file.name not in looked_at:
                    looked_at[file.name] = self._without_run(file, dropped.run_id)
            changed = [file for file in files if looked_at[file.name][0]]
            records = sum(looked_at[file.name][0] for file in changed if file.relation == EVENTS.name)
            if not records:
                raise RunError(f"the archive {self._table.archive} has no record of run {dropped.run_id}")
            rewritten = [looked_at[file.name][1] for file in changed]
            kept = [file for file in rewritten if file is not None]
            note = dropped._replace(records=records)._asdict()
            noted = self._table.write(DROPPED, as_rows(DROPPED, [note]))
            times = (self._table.position(DROPS) or 0) + 1
            if self._table.commit([*kept, noted], changed, {DROPS: times}, upon=version):
                return records
            # From the first time on: before, all files were read, and others commit in that time.
            deadline = time.monotonic() + store.PATIENCE_S if deadline is None else deadline
            if time.monotonic() >= deadline:
                raise crowded(self._table)

    def tidy(self) -> Tidied:
        """Merge and delete files; see :class:`.writing.Store`."""
        merged, into = compact(self._table, everything=True)
        return Tidied(merged, into, self._table.vacuum())

    def close(self) -> None:
        """Let go of the threads; everything stored is whole."""
        self._threads.shutdown()

    def _position(self, place: LogPartition) -> int:
        return self._table.position(position_name(place)) or 0

    def _slots_of(self, places: Collection[LogPartition]) -> Mapping[LogPartition, int]:
        """Return the slots of these partitions, once each has one; they never change."""
        if not set(places) <= self._slots.keys():
            found = give_slots(self._table, places)
            self._slots = {**self._slots, **found}  # the other thread may have asked for others
        return self._slots

    def _files(self, batch: RowBatch, standings: Mapping[LogPartition, WriterStanding]) -> list[TableFile]:
        """Write the files of a batch, without the rows of runs that were dropped."""
        work = [self._threads.submit(write_standings, self._table, standings)]
        for relation, rows in batch.tables.items():
            if self._dropped and "run_id" in rows.column_names:
                gone = pc.is_in(rows["run_id"], value_set=pa.array(self._dropped, pa.string()))
                rows = rows.filter(pc.invert(gone))
            if rows.num_rows:
                work.append(self._threads.submit(self._write, relation, rows))
        return [each.result() for each in work]

    def _write(self, relation: str, rows: pa.Table) -> TableFile:
        return self._table.write(relation, rows_of(relation, rows))

    def _read_dropped(self) -> tuple[int, Sequence[str]]:
        """Return how often runs were dropped, and which."""
        # The number first. If another thread learns of a newer version in between, it is too small, and that
        # is found before the next commit.
        drops = self._table.position(DROPS) or 0
        files = [self._table.read(file, [f"{DROPPED}.run_id"]) for file in self._table.files(DROPPED)]
        return drops, sorted({row["run_id"] for rows in files for row in rows[DROPPED].to_pylist()})

    def _without_run(self, file: TableFile, run_id: str) -> tuple[int, TableFile | None]:
        """Write a file anew without the rows of a run, if it has any.

        Returns:
            The number of rows of the run, 0 if the file stays; and a file with the others, if there are any.
        """
        if "run_id" not in RELATIONS.get(file.relation, _NOT_KNOWN):
            return 0, None
        runs = self._table.read(file, [f"{file.relation}.run_id"])
        if not runs.num_columns or not pc.any(_of_run(runs, file.relation, run_id)).as_py():
            return 0, None
        # The whole rows only now: most files have none of the run.
        rows = self._table.read(file)
        others = rows.filter(pc.invert(_of_run(rows, file.relation, run_id)))
        kept = self._table.write(file.relation, others) if others.num_rows else None
        return rows.num_rows - others.num_rows, kept

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


# -- small files -----------------------------------------------------------------------------------


def compact(table: SharedTable, *, everything: bool = False) -> tuple[int, int]:
    """Merge small files, each group in a commit of its own; return how many were merged, and into how many.

    Args:
        table: the table.
        everything: merge whatever is small, however few.

    Raises:
        ArchiveError: the table cannot be read or written.
    """
    table.refresh()
    before, after = 0, 0
    for relation in RELATIONS:
        for group in list(_groups(table.files(relation), everything)):
            if _merge(table, relation, group):
                before += len(group)
                after += 1
    return before, after


def _groups(files: Sequence[TableFile], everything: bool) -> Iterator[list[TableFile]]:
    """Yield files to merge, together no larger than a large file."""
    tiers: dict[int, list[TableFile]] = {}
    for file in files:
        if file.size < _LARGE / 2:
            tier = 0 if everything else max(0, int(math.log(file.size / _SMALLEST, _TIER)))
            tiers.setdefault(tier, []).append(file)
    for alike in tiers.values():
        if len(alike) < (2 if everything else _SEVERAL):
            continue
        gathered: list[TableFile] = []
        for file in alike:
            if gathered and sum(each.size for each in gathered) + file.size > _LARGE:
                yield gathered
                gathered = []
            gathered.append(file)
        yield gathered


def _merge(table: SharedTable, relation: str, group: Sequence[TableFile]) -> bool:
    """Merge files into one; ``False``: this was not needed, or cannot be done here."""
    if len(group) < 2:
        return False
    # Of a version that may be newer than the one that the group was found in, but has all of it.
    version = table.refresh()
    if not set(group) <= set(table.files(relation)):
        return False
    if relation == POSITIONS:
        # Of each partition the last row counts.
        group = table.files(POSITIONS)
        merged = write_standings(table, read_standings(table))
    else:
        parts = [conformed(relation, table.read(file)) for file in group]
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            return False  # a newer package wrote some, and will merge them
        rows = pa.concat_tables(whole)
        merged = table.write(relation, rows.sort_by(NUMBER))
    while not table.commit([merged], group, upon=version, changes=False):
        version = table.refresh()
        if not set(group) <= set(table.files(relation)):
            return False  # another archiver merged them, or took records out
    table.refresh()
    return True
