"""Write records into a shared archive, beside other writers: each position of each log once.

One batch, in this order:

1. decode the batch and build its columns;
2. write a file for each relation, one of them the positions after the batch;
3. learn what others have committed: compare the positions of the batch's partitions with those that it was
   built on, and leave out the rows of runs that were dropped since;
4. commit the files together with the positions: this makes the next version of the table, or fails because
   somebody else made it, and 3 is done again.

A kill before 4 leaves files that are of no version, which are deleted hours later; the same records come
again. A member of the group that lost a partition finds another position in 3. What others have stored is
taken out of its batch. So nothing is stored twice and nothing is left out, whoever believes to own what.
And nothing is stored of a run after the commit that dropped it.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from unstable_stream.archive.batch import ArchivedRecord, build_batch
from unstable_stream.archive.shared.compaction import compact
from unstable_stream.archive.shared.dropped import DROPS, read_dropped
from unstable_stream.archive.shared.relations import MISSING, Place, as_rows, rows_of
from unstable_stream.archive.shared.snapshot import newest_time_ms
from unstable_stream.archive.shared.standing import (
    Standing,
    crowded,
    give_slots,
    position_name,
    read_standings,
    write_standings,
)
from unstable_stream.archive.shared.table import SharedTable, TableFile
from unstable_stream.archive.writing import Prepared, Written
from unstable_stream.archive_address import ArchiveAddress
from unstable_stream.errors import ArchiveError
from unstable_stream.log_lines import get_logger

__all__ = ["SharedWriter"]

_FILES_AT_ONCE: Final = 4
"""Files of a batch that are written at the same time: an object store takes some milliseconds for each."""
_COMPACT_EVERY: Final = 50
"""Versions. Whoever makes one of these looks for small files to merge."""
_VACUUM_EVERY: Final = 1000

_log = get_logger(__name__)


class SharedWriter:
    """Writes one log into a shared archive."""

    def __init__(self, path: ArchiveAddress, log_id: str = "", *, timeout_s: float = 60.0) -> None:
        """Create or open the archive.

        Args:
            path: its address.
            log_id: what tells the log from any other.
            timeout_s: how long to try again while others commit.

        Raises:
            ArchiveBusyError: its store cannot be reached.
            ArchiveError: there is something else, or a newer version of the package wrote it.
        """
        self.path = path
        self.log_id = log_id
        self._timeout_s = timeout_s
        self._table = SharedTable(path, create=True)
        self.archive_id = self._table.archive_id
        self._threads = ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="archive")
        # Guards what follows, which is ahead of the table by batches that are prepared and not yet stored.
        self._lock = threading.RLock()
        self._standings: dict[Place, Standing] = {}
        self._dropped = read_dropped(self._table)
        self.refresh()

    def __enter__(self) -> "SharedWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def positions(self) -> Mapping[tuple[str, int], int]:
        """(topic, partition) of this log to the next offset to prepare; a partition never seen is absent."""
        with self._lock:
            return {
                (place.topic, place.partition): standing.next_offset
                for place, standing in self._standings.items()
                if place.log_id == self.log_id and standing.next_offset
            }

    def refresh(self) -> None:
        """Learn how far other writers are. Everything that was prepared must have been stored."""
        self._table.refresh()
        standings = read_standings(self._table)
        with self._lock:
            self._standings = standings

    def note_missing(self, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> None:
        """Note offsets that the log deleted before they were archived; the archive goes on behind them.

        Everything that was prepared must have been stored.

        Args:
            ranges: by topic and partition, the first missing offset and the one after the last.
        """
        self._advance({where: end for where, (_, end) in ranges.items()}, ranges)

    def pass_over(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Move positions past offsets without records, such as Kafka's transaction markers."""
        self._advance(positions, {})

    def write(self, records: Sequence[ArchivedRecord]) -> Written:
        """Archive a batch: :meth:`store` of :meth:`prepare`."""
        return self.store(self.prepare(records))

    def prepare(
        self, records: Sequence[ArchivedRecord], read_up_to: Mapping[tuple[str, int], int] | None = None
    ) -> Prepared:
        """Decode a batch and build its rows (step 1).

        Args:
            records: in offset order within each partition; each may come any number of times.
            read_up_to: by topic and partition, the next offset to read after them.
        """
        self._give_slots({Place(self.log_id, record.topic, record.partition) for record in records})
        read_up_to = {} if read_up_to is None else read_up_to
        with self._lock:
            at = {place: standing.next_offset for place, standing in self._standings.items()}
            new: list[ArchivedRecord] = []
            touched: set[Place] = set()
            numbers: list[int] = []
            for record in records:
                place = Place(self.log_id, record.topic, record.partition)
                if record.offset >= at[place]:
                    new.append(record)
                    numbers.append(self._standings[place].first_number + record.offset)
                    touched.add(place)
                    at[place] = record.offset + 1
            before = {place: self._standings[place] for place in touched}
            after = {
                place: before[place].moved_to(
                    max(at[place], read_up_to.get((place.topic, place.partition), 0))
                )
                for place in touched
            }
            self._standings |= after
        # Other writers may archive the same event: only readers see which comes first.
        batch = build_batch(new, None, self.log_id, numbers=numbers)
        return Prepared(
            records,
            read_up_to,
            new,
            batch,
            {place: standing.mark for place, standing in before.items()},
            {place: standing.mark for place, standing in after.items()},
        )

    def store(self, prepared: Prepared) -> Written:
        """Store a prepared batch with its positions (steps 2 to 4).

        Raises:
            ArchiveBusyError: others committed all the time, or the store cannot be reached; the same call may
                be repeated.
            ArchiveError: the archive is behind what this writer stored: somebody deleted or replaced it.
        """
        while prepared.new:
            before = {Place(*place): mark for place, mark in prepared.based_on.items()}
            write = partial(self._files, prepared)
            if self._commit(write, before, _marks(prepared.positions)):
                self._tidy()
                break
            _log.info("another archiver stored records of the same partitions", archive=str(self.path))
            fresh = read_standings(self._table)
            for place, mark in before.items():
                if place not in fresh or fresh[place].mark < mark:
                    raise ArchiveError(
                        f"the archive {self.path} lacks records that were stored in it: it was deleted or "
                        "replaced. Start the archiver again: it fills it from the log."
                    )
            with self._lock:
                # Only these: of others there may be batches that are prepared.
                self._standings = {**self._standings, **{place: fresh[place] for place in before}}
                prepared = self.prepare(prepared.records, prepared.read_up_to)
        return Written(
            records=len(prepared.new),
            redelivered=len(prepared.records) - len(prepared.new),
            duplicates=prepared.batch.duplicates,
            rows={name: table.num_rows for name, table in prepared.batch.tables.items()},
            rejected=prepared.batch.rejected,
        )

    def close(self) -> None:
        """Let go of the threads; everything stored is whole."""
        self._threads.shutdown()

    def _give_slots(self, places: Collection[Place]) -> None:
        with self._lock:
            if not set(places) - self._standings.keys():
                return
        standings = give_slots(self._table, places, self._timeout_s)
        with self._lock:
            self._standings = {**standings, **self._standings}

    def _files(self, prepared: Prepared, dropped: Collection[str]) -> list[TableFile]:
        """Write the files of a batch (step 2), without the rows of runs that were dropped."""
        with self._lock:
            standings = {
                place: Standing(mark, self._standings[place].slot)
                for place, mark in _marks(prepared.positions).items()
            }
        work = [self._threads.submit(write_standings, self._table, standings)]
        for relation, rows in prepared.batch.tables.items():
            kept = _without_runs(rows, dropped) if dropped else rows
            if kept.num_rows:
                work.append(self._threads.submit(self._write, relation, kept))
        return [each.result() for each in work]

    def _write(self, relation: str, rows: pa.Table) -> TableFile:
        return self._table.write(relation, rows_of(relation, rows))

    def _commit(
        self,
        write: Callable[[Collection[str]], Sequence[TableFile]],
        before: Mapping[Place, int],
        after: Mapping[Place, int],
    ) -> bool:
        """Commit if the positions are still those before; ``False``: they are not.

        Args:
            write: writes the files, and is told which runs were dropped.
            before: position of each partition that the files are of, by its mark.
            after: the positions that they will have.
        """
        dropped = self._dropped
        files = write(dropped.run_ids)
        deadline = time.monotonic() + self._timeout_s
        while True:
            version = self._table.refresh()
            if any((self._table.position(position_name(place)) or 0) != at for place, at in before.items()):
                return False
            if (self._table.position(DROPS) or 0) != dropped.mark:
                # A run was dropped since the files were written.
                dropped = self._dropped = read_dropped(self._table)
                files = write(dropped.run_ids)
                continue
            marks = {position_name(place): at for place, at in after.items()}
            if self._table.commit(files, positions=marks, upon=version):
                return True
            if time.monotonic() >= deadline:
                raise crowded(self._table, self._timeout_s)

    def _advance(
        self, ends: Mapping[tuple[str, int], int], missing: Mapping[tuple[str, int], tuple[int, int]]
    ) -> None:
        places = {Place(self.log_id, *where): end for where, end in ends.items()}
        self._give_slots(places.keys())
        while True:
            with self._lock:
                before = {
                    place: self._standings[place]
                    for place, end in places.items()
                    if end > self._standings[place].next_offset
                }
            if not before:
                return
            after = {place: standing.moved_to(places[place]) for place, standing in before.items()}
            files = [write_standings(self._table, after)]
            rows = [
                {
                    **place._asdict(),
                    "first_offset": missing[place[1:]][0],
                    "next_offset": missing[place[1:]][1],
                    "since_ms": newest_time_ms(self.path, standing.first_number, standing.end_number),
                }
                for place, standing in before.items()
                if place[1:] in missing
            ]
            if rows:
                files.append(self._table.write(MISSING, as_rows(MISSING, rows)))
            marks = {place: standing.mark for place, standing in before.items()}
            moved = {place: standing.mark for place, standing in after.items()}
            if self._commit(partial(_unchanged, files), marks, moved):
                with self._lock:
                    self._standings |= after
                return
            self.refresh()

    def _tidy(self) -> None:
        """Merge small files, now and then; the batch is stored, and nothing of it fails here."""
        version = self._table.version + 1  # the one that was made
        if version % _COMPACT_EVERY == 0:
            try:
                compact(self._table)
                if version % _VACUUM_EVERY == 0:
                    self._table.vacuum()
            except ArchiveError as error:
                _log.warning("small files of the archive are merged later", reason=str(error))


def _without_runs(rows: pa.Table, dropped: Collection[str]) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows["run_id"], value_set=pa.array(dropped, pa.string()))))


def _unchanged(files: Sequence[TableFile], dropped: Collection[str]) -> Sequence[TableFile]:
    """Return files without rows of runs."""
    return files


def _marks(positions: Mapping[tuple[str, str, int], int]) -> dict[Place, int]:
    return {Place(*where): mark for where, mark in positions.items()}
