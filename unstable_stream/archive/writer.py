"""Write records into the archive, each position of each log once, beside other writers.

One batch, in this order:

1. decode the batch and build its columns, without holding the archive;
2. the store compares the positions of the batch's partitions with those that it was built on, and leaves out
   the rows of runs that were dropped;
3. it stores the rows together with the next positions, all or nothing (:class:`.writing.Store`).

A kill before the end of 3 leaves the archive as it was, and the same records come again; after it they are
recognised by position. A writer that finds other positions in 2 takes what others have stored out of its
batch, and does 1 again. So nothing is stored twice and nothing is left out, whoever believes to own what. One
thread may prepare a batch while another stores the one before.
"""

import threading
from collections.abc import Mapping, Sequence

import pyarrow as pa

from unstable_stream.archive.batch import ARROW_TYPES, RowBatch
from unstable_stream.archive.opening import open_archive, open_store
from unstable_stream.archive.tables import MISSING
from unstable_stream.archive.writing import LogPartition, Prepared, Written, lacks_records
from unstable_stream.console import get_logger
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.stores.archive_address import ArchiveAddress

_log = get_logger(__name__)
_NEWEST = 'SELECT max(timestamp_ms) FROM events WHERE log_id = ? AND topic = ? AND "partition" = ?'
_MISSING = pa.schema([(column.name, ARROW_TYPES[column.sql_type]) for column in MISSING.columns])


class ArchiveWriter:
    """Writes one log into an archive. Batches are stored in the order they were prepared.

    Every call may raise :class:`~unstable_stream.errors.ArchiveBusyError`, and may be repeated then, or
    :class:`~unstable_stream.errors.ArchiveError`.
    """

    def __init__(self, path: ArchiveAddress, log_id: str = "") -> None:
        """Create or open the archive; one that an older version of the package wrote is upgraded in place.

        Args:
            path: the DuckDB file, made with its directory if it does not exist; or the address of a shared
                archive.
            log_id: what tells the log from any other: positions mean something only together with it.
        """
        self.path = path
        self.log_id = log_id
        self._store = open_store(path)
        # Guards the positions, which are ahead of the archive by batches that are prepared and not stored.
        self._lock = threading.RLock()
        self._positions = self._store.positions()
        self.archive_id = self._store.archive_id
        self.flush_interval_s = self._store.flush_interval_s

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def positions(self) -> Mapping[tuple[str, int], int]:
        """(topic, partition) of this log to the next offset to prepare; a partition never seen is absent."""
        # Without the lock, under which the archive is waited for: the mapping is replaced, not changed.
        return {
            (place.topic, place.partition): offset
            for place, offset in self._positions.items()
            if place.log_id == self.log_id
        }

    def refresh(self) -> None:
        """Learn how far other writers are. Everything that was prepared must have been stored."""
        with self._lock:
            self._positions = self._store.positions()

    def note_missing(self, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> None:
        """Note offsets that the log deleted before they were archived; the archive goes on behind them.

        Everything that was prepared must have been stored.

        Args:
            ranges: by topic and partition, the first missing offset and the one after the last.
        """
        self._advance({where: end for where, (_, end) in ranges.items()}, ranges)

    def pass_over(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Move positions past offsets without records, such as Kafka's transaction markers.

        A log that deletes them later then deletes nothing that is missing here. See :meth:`note_missing`.
        """
        self._advance(positions, {})

    def write(self, records: Sequence[StoredRecord]) -> Written:
        """Archive a batch: :meth:`store` of :meth:`prepare`."""
        return self.store(self.prepare(records))

    def prepare(
        self, records: Sequence[StoredRecord], read_up_to: Mapping[tuple[str, int], int] | None = None
    ) -> Prepared:
        """Decode a batch and build its rows, without holding the archive (step 1).

        Args:
            records: in offset order within each partition; each may come any number of times.
            read_up_to: by topic and partition, the next offset to read after them. It may lie behind offsets
                without records, such as Kafka's transaction markers: the archive goes on there.
        """
        read_up_to = {} if read_up_to is None else read_up_to
        with self._lock:
            new: list[StoredRecord] = []
            after: dict[LogPartition, int] = {}
            for record in records:
                place = LogPartition(self.log_id, record.topic, record.partition)
                if record.offset >= after.get(place, self._positions.get(place, 0)):
                    new.append(record)
                    after[place] = record.offset + 1
            after = {place: max(end, read_up_to.get(place[1:], 0)) for place, end in after.items()}
            before = {place: self._positions.get(place, 0) for place in after}
            batch = self._store.build(new, self.log_id)
            self._positions = {**self._positions, **after}
        return Prepared(records, read_up_to, new, batch, before, after)

    def store(self, prepared: Prepared) -> Written:
        """Store a prepared batch with its positions (steps 2 and 3).

        Raises:
            ArchiveBusyError: others held the archive past the deadline; the same call may be repeated.
            ArchiveError: nothing of the batch is stored, e.g. the disk is full. Or the archive is behind what
                this writer stored: somebody deleted or replaced it. Open a new writer.
        """
        while prepared.new:
            # Not under the lock: whoever prepares holds it, and may be waiting for the archive.
            if self._store.append(prepared.batch, prepared.before, prepared.after):
                break
            _log.info("the archive was written by another process", archive=str(self.path))
            # In one hold: a batch that another thread prepares in between would move past this one.
            with self._lock:
                stored = self._store.positions(forget=False)  # another batch may be prepared
                if any(stored.get(place, 0) < offset for place, offset in prepared.before.items()):
                    raise lacks_records(self.path)
                # Only these: of others there may be batches that are prepared.
                back = {place: stored.get(place, 0) for place in prepared.before}
                self._positions = {**self._positions, **back}
                prepared = self.prepare(prepared.records, prepared.read_up_to)
        return Written(
            records=len(prepared.new),
            redelivered=len(prepared.records) - len(prepared.new),
            duplicates=prepared.batch.duplicates,
            rows={name: table.num_rows for name, table in prepared.batch.tables.items()},
            rejected=prepared.batch.rejected,
        )

    def close(self) -> None:
        """Leave the archive in order; what was stored stays stored, also if this raises."""
        self._store.close()

    def _advance(
        self, ends: Mapping[tuple[str, int], int], missing: Mapping[tuple[str, int], tuple[int, int]]
    ) -> None:
        places = {LogPartition(self.log_id, *where): end for where, end in ends.items()}
        while True:
            with self._lock:
                before = {place: self._positions.get(place, 0) for place in places}
            after = {place: end for place, end in places.items() if end > before[place]}
            before = {place: before[place] for place in after}
            if not after:
                return
            rows = [
                {
                    **place._asdict(),
                    "first_offset": missing[place[1:]][0],
                    "next_offset": missing[place[1:]][1],
                    "since_ms": self._newest_time_ms(place),
                }
                for place in after
                if place[1:] in missing
            ]
            tables = {"missing_records": pa.Table.from_pylist(rows, _MISSING)} if rows else {}
            if self._store.append(RowBatch(tables, [], 0, []), before, after):
                with self._lock:
                    self._positions = {**self._positions, **after}
                return
            self.refresh()

    def _newest_time_ms(self, place: LogPartition) -> int | None:
        newest: int | None
        with open_archive(self.path, records_only=True) as connection:
            ((newest,),) = connection.execute(_NEWEST, place).fetchall()
        return newest
