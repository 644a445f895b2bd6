"""Write records into the archive, each position of each log and each event once.

One batch is one transaction, in this order:

1. decode the batch and build its columns, without holding the file;
2. take the write lock and compare the stored positions with those the batch was built on;
3. insert the raw rows and the typed rows;
4. store the next position of every partition;
5. commit, let go of the file.

A kill before 5 leaves the archive as it was, and the same records come again; after 5 they are recognised by
position. An event published twice, at two positions or on two logs, is recognised by its id. One thread may
prepare a batch while another stores the one before.

Records of a run that was dropped (:mod:`.dropping`) are passed over in step 3: no row is made, and the
position goes on.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unstable_stream.archive.batch import ArchivedRecord, build_batch
from unstable_stream.archive.known_ids import KnownIds
from unstable_stream.archive.store import WritableArchive, open_archive
from unstable_stream.archive.writing import Prepared, Written
from unstable_stream.errors import ArchiveError
from unstable_stream.log_lines import get_logger

__all__ = ["ArchiveWriter"]

_log = get_logger(__name__)

_Where: TypeAlias = tuple[str, str, int]
"""Log id, topic and partition."""
_Positions: TypeAlias = dict[_Where, int]
"""The next offset of every partition of every log the archive knows."""


class ArchiveWriter:
    """Writes one log into an archive file. Batches are stored in the order they were prepared."""

    def __init__(self, path: Path | str, log_id: str = "", *, timeout_s: float = 60.0) -> None:
        """Create or open the archive; one that an older version of the package wrote is upgraded in place.

        Args:
            path: the file; made with its directory if it does not exist.
            log_id: what tells the log from any other: positions mean something only together with it.
            timeout_s: how long to wait for readers to let go of the file.

        Raises:
            ArchiveBusyError: it was held for longer than that.
            ArchiveError: it is not an archive, or a newer version of the package wrote it.
        """
        self.path = Path(path)
        self.log_id = log_id
        self._timeout_s = timeout_s
        self._archive = WritableArchive(self.path, timeout_s=timeout_s)
        # Hashes strings the way the file's engine does, without the file.
        self._hasher = duckdb.connect(config={"threads": 1})
        # Guards what follows, which is ahead of the file by the batches that are prepared and not yet stored.
        self._lock = threading.RLock()
        self._unstored: set[str] = set()
        self._positions: _Positions = {}
        self._next_record = 0
        with self._archive.held() as connection:
            ((self.archive_id,),) = connection.execute("SELECT archive_id FROM schema_version").fetchall()
            state = self._read_state(connection)
        self._seen = state.seen
        self._begin_at(state)

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def positions(self) -> Mapping[tuple[str, int], int]:
        """(topic, partition) of this log to the next offset to prepare; a partition never seen is absent."""
        return self._positions_of(self.log_id)

    def refresh(self) -> None:
        """Do nothing: a file has one writer, who knows all."""

    def note_missing(self, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> None:
        """Note offsets that the log deleted before they were archived; the archive goes on behind them.

        Everything that was prepared must have been stored.

        Args:
            ranges: by topic and partition, the first missing offset and the one after the last.

        Raises:
            ArchiveBusyError: others held the file past the deadline.
            ArchiveError: DuckDB failed; nothing was changed.
        """
        rows: list[tuple[object, ...]]
        rows = [(self.log_id, *where, *offsets, self.log_id, *where) for where, offsets in ranges.items()]
        self._advance({where: end for where, (_, end) in ranges.items()}, rows)

    def pass_over(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Move positions past offsets without records, such as Kafka's transaction markers.

        A log that deletes them later then deletes nothing that is missing here. See :meth:`note_missing`.
        """
        self._advance(positions, ())

    def _advance(self, ends: Mapping[tuple[str, int], int], missing: Sequence[tuple[object, ...]]) -> None:
        with self._lock:
            later: dict[_Where, int] = {}
            for (topic, partition), end in ends.items():
                where = (self.log_id, topic, partition)
                if end > self._positions.get(where, 0):
                    later[where] = end
        if not later:
            return
        with self._archive.held() as connection:
            try:
                connection.execute("BEGIN")
                if missing:
                    connection.executemany(_NOTE_MISSING, missing)
                _put_positions(connection, later)
                connection.execute("COMMIT")
            except duckdb.Error as error:
                raise ArchiveError(f"could not write to the archive {self.path}: {error}") from error
        with self._lock:
            self._positions = {**self._positions, **later}

    def write(self, records: Sequence[ArchivedRecord]) -> Written:
        """Archive a batch in one transaction: :meth:`store` of :meth:`prepare`."""
        return self.store(self.prepare(records))

    def prepare(
        self, records: Sequence[ArchivedRecord], read_up_to: Mapping[tuple[str, int], int] | None = None
    ) -> Prepared:
        """Decode a batch and build its rows, without holding the file (step 1).

        Args:
            records: in offset order within each partition; each may come any number of times.
            read_up_to: by topic and partition, the next offset to read after them. It may lie behind offsets
                without records, such as Kafka's transaction markers: the archive goes on there.

        Raises:
            ArchiveBusyError: an event looked familiar, and others held the file past the deadline.
        """
        with self._lock:
            positions = dict(self._positions)
            new = []
            touched: set[_Where] = set()
            for record in records:
                where = (self.log_id, record.topic, record.partition)
                if record.offset >= positions.get(where, 0):
                    new.append(record)
                    touched.add(where)
                    positions[where] = record.offset + 1
            read_up_to = {} if read_up_to is None else read_up_to
            for where in touched:
                positions[where] = max(positions[where], read_up_to.get(where[1:], 0))
            batch = build_batch(new, self._unseen, self.log_id, self._next_record)
            changed = {where: positions[where] for where in touched}
            prepared = Prepared(records, read_up_to, new, batch, self._positions, changed)
            self._positions = positions
            self._next_record += len(new)
            self._seen.add(self._hashes(batch.event_ids))
            self._unstored.update(batch.event_ids)
        return prepared

    def store(self, prepared: Prepared) -> Written:
        """Store a prepared batch in one transaction (steps 2 to 5).

        Raises:
            ArchiveBusyError: others held the file past the deadline; the same call may be repeated.
            ArchiveError: DuckDB failed, e.g. the disk is full; nothing of the batch is stored. Or the file is
                behind what this writer stored: somebody deleted or replaced it. Open a new writer.
        """
        while prepared.new:
            with self._archive.held() as connection:
                stored = _stored_positions(connection)
                if stored == prepared.based_on:
                    ((next_record,),) = connection.execute(
                        "SELECT next_record FROM schema_version"
                    ).fetchall()
                    self._insert(connection, prepared)
                    # Not under the lock: whoever prepares holds it, and may be waiting for the file.
                    self._seen.settle(connection, next_record + len(prepared.new))
                    break
                if any(stored.get(where, 0) < offset for where, offset in prepared.based_on.items()):
                    raise ArchiveError(
                        f"the archive {self.path} lacks records that were stored in it: it was deleted, "
                        "replaced, or an earlier batch failed. Start the archiver again: it fills it from "
                        "the log."
                    )
                stored_state = self._read_state(connection)
            _log.warning("the archive was written by another process", path=str(self.path))
            # In one hold: a batch that another thread prepares in between would move past this one.
            with self._lock:
                self._begin_at(stored_state)
                prepared = self.prepare(prepared.records, prepared.read_up_to)
        with self._lock:
            self._unstored.difference_update(prepared.batch.event_ids)
        return Written(
            records=len(prepared.new),
            redelivered=len(prepared.records) - len(prepared.new),
            duplicates=prepared.batch.duplicates,
            rows={name: table.num_rows for name, table in prepared.batch.tables.items()},
            rejected=prepared.batch.rejected,
        )

    def close(self) -> None:
        """Fold the write-ahead log into the file, so that it can be copied alone.

        Raises:
            ArchiveBusyError: others held the file past the deadline.
            ArchiveError: the disk is full, for one. What was stored stays stored.
        """
        try:
            with self._archive.held() as connection:
                connection.execute("CHECKPOINT")
        except duckdb.Error as error:
            raise ArchiveError(f"could not write to the archive {self.path}: {error}") from error
        finally:
            self._seen.close()
            self._hasher.close()
            self._archive.close()

    def _read_state(self, connection: duckdb.DuckDBPyConnection) -> "_State":
        ((next_record,),) = connection.execute("SELECT next_record FROM schema_version").fetchall()
        seen = KnownIds(connection, self.path, self.archive_id)
        return _State(_stored_positions(connection), next_record, seen)

    def _begin_at(self, state: "_State") -> None:
        """Go on from what the file holds; batches that are prepared and not stored are forgotten."""
        with self._lock:
            if self._seen is not state.seen:
                self._seen.close()
            self._positions, self._next_record, self._seen = state
            self._unstored.clear()

    def _positions_of(self, log_id: str) -> dict[tuple[str, int], int]:
        with self._lock:
            return {
                (topic, partition): offset
                for (of_log, topic, partition), offset in self._positions.items()
                if of_log == log_id
            }

    def _hashes(self, event_ids: Sequence[str]) -> NDArray[np.uint64]:
        if not event_ids:
            return np.empty(0, dtype=np.uint64)
        self._hasher.register("ids", pa.table({"id": pa.array(event_ids, pa.string())}))
        hashes = self._hasher.execute("SELECT hash(id) AS h FROM ids").fetchnumpy()["h"]
        return np.asarray(hashes, dtype=np.uint64)

    def _unseen(self, event_ids: Sequence[str]) -> Sequence[bool]:
        suspects = self._seen.contains(self._hashes(event_ids))
        if not suspects.any():
            return [True] * len(event_ids)
        names = [event_id for event_id, suspect in zip(event_ids, suspects, strict=True) if suspect]
        known = self._unstored.intersection(names)
        with open_archive(self.path, timeout_s=self._timeout_s) as connection:
            connection.register("suspects", pa.table({"id": pa.array(names, pa.string())}))
            stored = connection.execute(
                "SELECT event_id FROM events WHERE type IS NOT NULL AND event_id IN (SELECT id FROM suspects)"
            )
            known.update(row[0] for row in stored.fetchall())
        return [event_id not in known for event_id in event_ids]

    def _insert(self, connection: duckdb.DuckDBPyConnection, prepared: Prepared) -> None:
        try:
            connection.execute("BEGIN")
            # Asked here, under the lock: a run may have been dropped since the batch was prepared.
            ((dropped,),) = connection.execute("SELECT count(*) FROM dropped_runs").fetchall()
            for name, table in prepared.batch.tables.items():
                connection.register("batch", table)
                connection.execute(
                    f'INSERT INTO "{name}" BY NAME SELECT * FROM batch{_NOT_DROPPED if dropped else ""}'
                )
                connection.unregister("batch")
            _put_positions(connection, prepared.positions)
            connection.execute("UPDATE schema_version SET next_record = next_record + ?", [len(prepared.new)])
            connection.execute("COMMIT")
        except duckdb.Error as error:
            raise ArchiveError(f"could not write to the archive {self.path}: {error}") from error


def _put_positions(connection: duckdb.DuckDBPyConnection, positions: Mapping[_Where, int]) -> None:
    connection.executemany(
        'INSERT OR REPLACE INTO positions (log_id, topic, "partition", next_offset) VALUES (?, ?, ?, ?)',
        [(*where, offset) for where, offset in positions.items()],
    )


_NOTE_MISSING = """
INSERT INTO missing_records
SELECT ?, ?, ?, ?, ?, (
    SELECT max(timestamp_ms) FROM events WHERE log_id = ? AND topic = ? AND "partition" = ?
)
"""
_NOT_DROPPED = " WHERE run_id IS NULL OR run_id NOT IN (SELECT run_id FROM dropped_runs)"


class _State(NamedTuple):
    positions: _Positions
    next_record: int
    seen: KnownIds


def _stored_positions(connection: duckdb.DuckDBPyConnection) -> _Positions:
    rows = connection.execute('SELECT log_id, topic, "partition", next_offset FROM positions').fetchall()
    return {(log_id, topic, partition): offset for log_id, topic, partition, offset in rows}
