"""Put a run back into a shared archive from an export, while its archivers go on.

In this order:

1. give slots to partitions of the export that have none, in a commit of its own: the archive of a log that is
   gone may not know them;
2. compare the export with one version of the table, as :mod:`~unstable_stream.archive.restoring` says;
3. write files with the rows of the records that are not there, and files of the archive's own relations anew
   where something changes: the run is not among ``dropped_runs`` any more, but among ``restored_runs``, and
   what is not missing any more is struck from ``missing_records``;
4. commit.

A kill before 4 leaves the archive as it was. When somebody else commits first, 4 is done again, unless they
changed what 2 and 3 looked at; then all is done again.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import duckdb
import pyarrow as pa

from unstable_stream.archive.batch import EVENTS, build_batch
from unstable_stream.archive.newest import Newest, added
from unstable_stream.archive.records import ArchivedRow
from unstable_stream.archive.restoring import (
    EXPORTED,
    Export,
    RestoredRun,
    compare,
    lacking_records,
    note_of,
    refuse_beyond,
    refuse_rejected,
)
from unstable_stream.archive.shared.dropped import DROPS
from unstable_stream.archive.shared.dropping import without_run
from unstable_stream.archive.shared.relations import (
    DROPPED,
    MISSING,
    NUMBER,
    RESTORED,
    Place,
    as_rows,
    rows_of,
)
from unstable_stream.archive.shared.snapshot import open_table
from unstable_stream.archive.shared.standing import (
    Standing,
    crowded,
    give_slots,
    position_name,
    read_standings,
    times_set_back,
    write_standings,
)
from unstable_stream.archive.shared.table import SharedTable, TableFile
from unstable_stream.archive.store import Connection
from unstable_stream.archive_address import ArchiveAddress
from unstable_stream.errors import ArchiveError

__all__ = ["restore_to_shared"]

_OWN: Final = (MISSING, DROPPED, RESTORED)


class _Seen(NamedTuple):
    """The state that a call has looked at and built on."""

    drops: int
    set_back: Mapping[Place, int]
    """The number of times that each partition of the export was set back; records go only so."""
    moved: Mapping[Place, int]
    """The positions that will be others, by their marks."""
    own: Sequence[str]
    """The files of relations that are written anew."""


class _Work(NamedTuple):
    """The change that is to be committed."""

    added: Sequence[TableFile]
    removed: Sequence[TableFile]
    marks: Mapping[str, int]
    seen: _Seen
    done: RestoredRun


def restore_to_shared(
    archive: ArchiveAddress, export: Export, log_id: str | None, log_gone: bool, timeout_s: float
) -> RestoredRun:
    """Put the run of an export back.

    Args:
        archive: the address; the archive is made if there is none.
        export: the export.
        log_id: the log that the archive has just been brought up to date with; ``None``: there is none.
        log_gone: the log that the export is of will not be archived any more.
        timeout_s: how long to try again while others commit.

    Raises:
        ArchiveBusyError: others committed all the time, or the store cannot be reached. The run may have been
            put back if the store went away during the commit: the same call may be repeated.
        ArchiveError: the export does not fit the archive, or that cannot be written. Nothing was changed.
    """
    table = SharedTable(archive, create=True)
    deadline: float | None = None
    while True:
        version = table.refresh()
        try:
            with open_table(table, records_only=True) as connection:
                work = _Restoring(table, connection, export, log_id, log_gone).prepared()
        except (duckdb.Error, pa.ArrowException) as error:
            raise ArchiveError(f"could not put back {export.address} into {archive}: {error}") from error
        if isinstance(work, set):
            give_slots(table, work, timeout_s)
            continue
        while True:
            if table.commit(work.added, work.removed, work.marks, upon=version):
                return work.done
            # From the first time on: before, all was read and written, and others commit in that time.
            deadline = time.monotonic() + timeout_s if deadline is None else deadline
            if time.monotonic() >= deadline:
                raise crowded(table, timeout_s)
            version = table.refresh()
            if _look(table, work.seen.set_back, work.seen.moved) != work.seen:
                break


def _look(table: SharedTable, places: Mapping[Place, int], moved: Mapping[Place, int]) -> _Seen:
    marks = {place: table.position(position_name(place)) or 0 for place in places}
    return _Seen(
        table.position(DROPS) or 0,
        {place: times_set_back(mark) for place, mark in marks.items()},
        {place: marks[place] for place in moved},
        [file.name for relation in _OWN for file in table.files(relation)],
    )


class _Restoring:
    """One attempt, on one version of the table."""

    def __init__(
        self,
        table: SharedTable,
        connection: Connection,
        export: Export,
        log_id: str | None,
        log_gone: bool,
    ) -> None:
        self._table = table
        self._connection = connection
        self._export = export
        self._log_id = log_id
        self._log_gone = log_gone
        self._run = export.manifest.run_id
        self._added: list[TableFile] = []
        self._removed: list[TableFile] = []

    def prepared(self) -> _Work | set[Place]:
        """Do steps 2 and 3; or return the partitions to which slots must be given first."""
        self._connection.execute(EXPORTED.format(file=str(self._export.file).replace("'", "''")))
        self._connection.execute(_THERE)
        ended = compare(self._connection, self._export)
        standings = read_standings(self._table)
        ends = self._ends()
        before = self._to_move(ends, standings)
        if lacking := ends.keys() - standings.keys():
            return lacking
        records, newest = self._write_rows(standings)
        after = {
            place: standing._replace(next_offset=ends[place], newest=newest[place])
            for place, standing in before.items()
        }
        if after:
            self._added.append(write_standings(self._table, after))
        self._strike({place: (standing.next_offset, ends[place]) for place, standing in before.items()})
        for relation in (DROPPED, RESTORED):
            for file in self._table.files(relation):
                self._replace(file, *without_run(self._table, file, self._run))
        before_now = self._connection.execute(
            "SELECT records FROM restored_runs WHERE run_id = ?", [self._run]
        ).fetchall()
        note = note_of(self._export, records + sum(row[0] for row in before_now), ended=ended)
        self._added.append(self._table.write(RESTORED, as_rows(RESTORED, [note])))
        seen = _look(
            self._table,
            {place: standings[place].times_set_back for place in ends},
            {place: standing.mark for place, standing in before.items()},
        )
        marks = {position_name(place): standing.mark for place, standing in after.items()}
        manifest = self._export.manifest
        there = manifest.tables[EVENTS.name].rows - records
        done = RestoredRun(self._run, manifest.run_name, records, there, manifest.missing)
        return _Work(self._added, self._removed, {**marks, DROPS: seen.drops + 1}, seen, done)

    def _ends(self) -> dict[Place, int]:
        """Return where the records of the export end that are not there."""
        rows = self._connection.execute(_ENDS).fetchall()
        return {Place(log_id, topic, partition): end for log_id, topic, partition, end in rows}

    def _to_move(
        self, ends: Mapping[Place, int], standings: Mapping[Place, Standing]
    ) -> dict[Place, Standing]:
        """Return the standings that are before the export's end: those of a log that is gone."""
        before: dict[Place, Standing] = {}
        for place, end in sorted(ends.items()):
            standing = standings.get(place, _NOTHING)
            if end > standing.next_offset:
                begin = standing.next_offset
                refuse_beyond(self._export, place, begin, end, self._log_id, log_gone=self._log_gone)
                before[place] = standing
        return before

    def _write_rows(self, standings: Mapping[Place, Standing]) -> tuple[int, Mapping[Place, Newest]]:
        """Write what is not there; return how many records, and the last of each partition by content."""
        count, newest = 0, dict[Place, Newest]()
        for by_log in lacking_records(self._connection, self._export):
            for log_id, records in by_log.items():
                places = [Place(log_id, row.topic, row.partition) for row in records]
                of_place: dict[Place, list[ArchivedRow]] = {}
                for place, row in zip(places, records, strict=True):
                    of_place.setdefault(place, []).append(row)
                for place, rows in of_place.items():
                    newest[place] = added(newest.get(place, {}), rows)
                numbers = [
                    standings[place].first_number + row.offset
                    for place, row in zip(places, records, strict=True)
                ]
                # The archive may have an event from another position: readers see which comes first.
                batch = build_batch(records, None, log_id, numbers=numbers)
                refuse_rejected(self._export, batch)
                for relation, made in batch.tables.items():
                    # Sorted, as all files are: a reader of one partition passes over the rest.
                    sorted_rows = rows_of(relation, made).sort_by(NUMBER)
                    self._added.append(self._table.write(relation, sorted_rows))
                count += len(records)
        return count, newest

    def _strike(self, gaps: Mapping[Place, tuple[int, int]]) -> None:
        """Write ``missing_records`` anew where it changes.

        Args:
            gaps: for each position that moves, the offsets that it passes over.
        """
        noted = [
            {**place._asdict(), "first_offset": first, "next_offset": end, "since_ms": None}
            for place, (first, end) in gaps.items()
        ]
        self._connection.register("gaps", _columns(as_rows(MISSING, noted)))
        found = {tuple(row) for row in self._connection.execute(_STRUCK).fetchall()}
        self._connection.unregister("gaps")
        for file in self._table.files(MISSING):
            rows = self._table.read(file)
            stays = [_range(row) not in found for row in rows[MISSING].to_pylist()]
            if not all(stays):
                kept = rows.filter(pa.array(stays))
                new = self._table.write(MISSING, kept) if kept.num_rows else None
                self._replace(file, rows.num_rows - kept.num_rows, new)
        still = [row for row in noted if _range(row) not in found]
        if still:
            self._added.append(self._table.write(MISSING, as_rows(MISSING, still)))

    def _replace(self, file: TableFile, gone: int, kept: TableFile | None) -> None:
        if gone:
            self._removed.append(file)
        if kept is not None:
            self._added.append(kept)


def _columns(rows: pa.Table) -> pa.Table:
    return pa.Table.from_struct_array(rows[MISSING].combine_chunks())


def _range(row: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in ("log_id", "topic", "partition", "first_offset", "next_offset"))


_NOTHING: Final = Standing(0, 0, 0, {})
_SAME: Final = '(log_id, topic, "partition", "offset")'
# Read once: each look goes through the files of all runs.
_THERE: Final = f"""
CREATE TEMP TABLE there AS
SELECT log_id, topic, "partition", "offset", run_id, event_id FROM events
WHERE {_SAME} IN (SELECT {_SAME} FROM exported)
"""
_ENDS: Final = f"""
SELECT log_id, topic, "partition", max("offset") + 1 FROM exported
WHERE {_SAME} NOT IN (SELECT {_SAME} FROM there) GROUP BY ALL
"""
_STRUCK: Final = """
WITH missing AS (
    SELECT DISTINCT log_id, topic, "partition", first_offset, next_offset
    FROM (SELECT * FROM missing_records UNION ALL BY NAME SELECT * FROM gaps)
), here AS (
    SELECT log_id, topic, "partition", "offset" FROM events
    WHERE (log_id, topic, "partition") IN (SELECT log_id, topic, "partition" FROM missing)
    UNION SELECT log_id, topic, "partition", "offset" FROM exported
)
SELECT m.* FROM missing AS m JOIN here AS h
    ON h.log_id = m.log_id AND h.topic = m.topic AND h."partition" = m."partition"
    AND h."offset" >= m.first_offset AND h."offset" < m.next_offset
GROUP BY ALL HAVING count(*) = m.next_offset - m.first_offset
"""
