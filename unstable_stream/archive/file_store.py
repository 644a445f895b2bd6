"""Write to a DuckDB file: one transaction for each batch, and each event in the typed tables once.

A batch's transaction, while the file's write lock is held:

1. compare the stored positions with those the batch was built on, and the events that other processes have
   stored since with those of the batch;
2. number the records from the next number on; insert the raw rows and the typed rows, but of runs that were
   dropped;
3. store the next position of every partition, and the next record number; commit, and let go of the file.

An event published twice, at two positions or on two logs, is recognised by its id. In memory an id is known
by 8 bytes, its hash, however long the archive grows: a hash that is not known proves the id new, one that is
known is a suspicion, to be looked up in the archive.

A run is dropped by writing the file anew without its rows (:meth:`.store.WritableArchive.rewrite`): DuckDB
would use the place of deleted rows for new ones, but seldom give it back.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unstable_stream.archive.batch import EVENTS, RowBatch, build_batch
from unstable_stream.archive.store import Connection, WritableArchive, connect_file, naming_damage
from unstable_stream.archive.tables import DROPPED, MISSING, POSITIONS, TABLES
from unstable_stream.archive.writing import DroppedRun, LogPartition, Tidied, lacks_records
from unstable_stream.errors import ArchiveError, RunError
from unstable_stream.events.id_sets import KeySet
from unstable_stream.log.port import StoredRecord


class FileStore:
    """A DuckDB file that is written. See :class:`.writing.Store`."""

    flush_interval_s = 1.0

    def __init__(self, path: Path) -> None:
        """``path``: the file, which is made when it is first asked."""
        self.path = path
        self.archive_id = ""
        self._archive = WritableArchive(path)
        # Hashes strings the way the file's engine does, without the file.
        self._hasher = duckdb.connect(config={"threads": 1})
        self._stored_up_to = 0
        """The archive's next record number when it was last held."""
        self._others_up_to = 0
        """The record number up to which the events of other processes are in ``_seen``."""
        # These two are ahead of the file by batches that are built and not yet stored.
        self._seen = KeySet[np.uint64]()
        self._unstored: set[str] = set()
        self._ids_lock = threading.Lock()

    def positions(self, *, forget: bool = True) -> dict[LogPartition, int]:
        """Return the stored positions; see :class:`.writing.Store`."""
        with self._archive.held() as connection:
            ((archive_id, next_record),) = connection.execute(
                "SELECT archive_id, next_record FROM schema_version"
            ).fetchall()
            if self.archive_id not in ("", archive_id):
                raise lacks_records(self.path)
            self.archive_id = archive_id
            stored = _positions(connection)
            self._learn_of_others(connection, next_record)
        if forget:
            with self._ids_lock:
                self._unstored.clear()
        return stored

    def build(self, records: Sequence[StoredRecord], log_id: str) -> RowBatch:
        """Build rows; see :class:`.writing.Store`."""
        # Before the events are looked up: more of others may be learned of while this builds.
        others_up_to = self._others_up_to
        batch = build_batch(records, self._unseen, log_id)
        hashes = self._hashes(batch.event_ids)
        with self._ids_lock:
            self._seen.add(hashes)
            self._unstored.update(batch.event_ids)
        return replace(batch, others_up_to=others_up_to)

    def append(
        self, batch: RowBatch, before: Mapping[LogPartition, int], after: Mapping[LogPartition, int]
    ) -> bool:
        """Store rows and positions in one transaction; see :class:`.writing.Store`."""
        with self._archive.held() as connection:
            stored = _positions(connection)
            ((next_record,),) = connection.execute("SELECT next_record FROM schema_version").fetchall()
            self._learn_of_others(connection, next_record)
            fits = all(stored.get(place, 0) == offset for place, offset in before.items()) and not (
                batch.others_up_to < self._others_up_to and _overlap(connection, batch)
            )
            if fits:
                try:
                    self._insert(connection, batch, after, next_record)
                except duckdb.Error as error:
                    raise ArchiveError(f"could not write to the archive {self.path}: {error}") from error
                self._stored_up_to = next_record + batch.records
        with self._ids_lock:
            self._unstored.difference_update(batch.event_ids)
        return fits

    def take_out(self, dropped: DroppedRun) -> int:
        """Write the file anew without a run; see :class:`.writing.Store`."""

        def fill(connection: Connection) -> int:
            ((records,),) = connection.execute(
                "SELECT count(*) FROM archive.main.events WHERE run_id = ?", [dropped.run_id]
            ).fetchall()
            if not records:
                raise RunError(f"the archive {self.path} has no record of run {dropped.run_id}")
            connection.execute(_SAME_ARCHIVE)
            for own in (POSITIONS, MISSING, DROPPED):
                connection.execute(f"INSERT INTO {own.name} BY NAME SELECT * FROM archive.main.{own.name}")
            for table in (EVENTS, *TABLES):
                connection.execute(
                    f'INSERT INTO "{table.name}" BY NAME SELECT * FROM archive.main."{table.name}" '
                    "WHERE run_id IS DISTINCT FROM ?",
                    [dropped.run_id],
                )
            connection.execute(
                "INSERT INTO dropped_runs VALUES (?, ?, ?, ?, ?)", dropped._replace(records=records)
            )
            return int(records)

        return self._archive.rewrite(fill)

    def tidy(self) -> Tidied:
        """Refuse: a file needs none of this."""
        raise ArchiveError(
            f"the archive {self.path} is one file: only a shared archive has files to merge, see "
            "docs/how-to/shared-archive.md"
        )

    def close(self) -> None:
        """Fold the write-ahead log into the file, so that it can be copied alone.

        Raises:
            ArchiveBusyError: others held the file past the deadline.
            ArchiveError: the disk is full, for one. What was stored stays stored.
        """
        try:
            if self.archive_id:  # else it was not written
                with self._archive.held() as connection:
                    connection.execute("CHECKPOINT")
        except duckdb.Error as error:
            raise ArchiveError(f"could not write to the archive {self.path}: {error}") from error
        finally:
            self._hasher.close()
            self._archive.close()

    def _learn_of_others(self, connection: Connection, next_record: int) -> None:
        """Note the events that came into the archive since it was last held."""
        if next_record == self._stored_up_to:
            return
        found = connection.execute(_HASHES, [self._stored_up_to, next_record]).fetchnumpy()["h"]
        with self._ids_lock:
            self._seen.add(np.asarray(found, dtype=np.uint64))
        self._others_up_to = self._stored_up_to = next_record

    def _hashes(self, event_ids: Sequence[str]) -> NDArray[np.uint64]:
        if not event_ids:
            return np.empty(0, dtype=np.uint64)
        self._hasher.register("ids", pa.table({"id": pa.array(event_ids, pa.string())}))
        hashes = self._hasher.execute("SELECT hash(id) AS h FROM ids").fetchnumpy()["h"]
        return np.asarray(hashes, dtype=np.uint64)

    def _unseen(self, event_ids: Sequence[str]) -> Sequence[bool]:
        hashes = self._hashes(event_ids)
        with self._ids_lock:
            suspects = self._seen.contains(hashes)
        if not suspects.any():
            return [True] * len(event_ids)
        names = [event_id for event_id, suspect in zip(event_ids, suspects, strict=True) if suspect]
        with self._ids_lock:
            known = self._unstored.intersection(names)
        connection = connect_file(self.path, read_only=True, files=False)
        with naming_damage(self.path, connection):
            connection.register("suspects", pa.table({"id": pa.array(names, pa.string())}))
            stored = connection.execute(
                "SELECT event_id FROM events WHERE type IS NOT NULL AND event_id IN (SELECT id FROM suspects)"
            )
            known.update(row[0] for row in stored.fetchall())
        return [event_id not in known for event_id in event_ids]

    def _insert(
        self, connection: Connection, batch: RowBatch, after: Mapping[LogPartition, int], first_number: int
    ) -> None:
        connection.execute("BEGIN")
        # Asked here, under the lock: a run may have been dropped since the batch was built.
        ((dropped,),) = connection.execute("SELECT count(*) FROM dropped_runs").fetchall()
        for name, table in batch.tables.items():
            connection.register("batch", table)
            kept = _NOT_DROPPED if dropped and "run_id" in table.column_names else ""
            numbered = f"REPLACE (record_number + {first_number} AS record_number)" if batch.records else ""
            connection.execute(f'INSERT INTO "{name}" BY NAME SELECT * {numbered} FROM batch{kept}')
            connection.unregister("batch")
        connection.executemany(
            'INSERT OR REPLACE INTO positions (log_id, topic, "partition", next_offset) VALUES (?, ?, ?, ?)',
            [(*place, offset) for place, offset in after.items()],
        )
        connection.execute("UPDATE schema_version SET next_record = next_record + ?", [batch.records])
        connection.execute("COMMIT")


def _positions(connection: Connection) -> dict[LogPartition, int]:
    rows = connection.execute('SELECT log_id, topic, "partition", next_offset FROM positions').fetchall()
    return {LogPartition(log_id, topic, partition): offset for log_id, topic, partition, offset in rows}


def _overlap(connection: Connection, batch: RowBatch) -> bool:
    """Whether others have stored an event of the batch since it was built."""
    connection.register("batch", pa.table({"id": pa.array(batch.event_ids, pa.string())}))
    ((found,),) = connection.execute(_OVERLAP, [batch.others_up_to]).fetchall()
    connection.unregister("batch")
    return bool(found)


_NOT_DROPPED: Final = " WHERE run_id IS NULL OR run_id NOT IN (SELECT run_id FROM dropped_runs)"
_HASHES: Final = """
SELECT hash(event_id) AS h FROM events WHERE record_number >= ? AND record_number < ? AND type IS NOT NULL
"""
_OVERLAP: Final = """
SELECT count(*) FROM events
WHERE record_number >= ? AND type IS NOT NULL AND event_id IN (SELECT id FROM batch)
"""
_SAME_ARCHIVE: Final = """
UPDATE schema_version SET archive_id = old.archive_id, next_record = old.next_record
FROM archive.main.schema_version AS old
"""
