"""The store that a writer needs: the same of a DuckDB file and of a table that many archivers write.

The two are :class:`~.file_store.FileStore` and :class:`~.shared.store.SharedStore`. What is written, when,
and what is not written twice, is one code: :class:`~.writer.ArchiveWriter` and :mod:`.dropping`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from unstable_stream.archive.batch import Rejection, RowBatch
from unstable_stream.errors import ArchiveError
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.stores.archive_address import ArchiveAddress


class LogPartition(NamedTuple):
    """A partition of a log."""

    log_id: str
    topic: str
    partition: int


class Written(NamedTuple):
    """The number of records and rows that one call of :meth:`ArchiveWriter.write` handled."""

    records: int
    """Records at positions that had not been archived. Those of a dropped run leave no row."""
    redelivered: int
    """Records skipped because their positions had been archived."""
    duplicates: int
    """Events that had been archived from another position, as far as the writer knows; in ``events``, and not
    again in typed tables.
    """
    rows: Mapping[str, int]
    """Rows inserted by table."""
    rejected: Sequence[Rejection]
    """Records in ``events`` that could not be decoded or stored as typed rows."""


class Prepared(NamedTuple):
    """A batch ready to be stored."""

    records: Sequence[StoredRecord]
    """All that was given."""
    read_up_to: Mapping[tuple[str, int], int]
    """As given."""
    new: Sequence[StoredRecord]
    """Those whose positions had not been archived."""
    batch: RowBatch
    before: Mapping[LogPartition, int]
    """The positions that its partitions must have when it is stored."""
    after: Mapping[LogPartition, int]
    """The positions that they will have then."""


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


class Tidied(NamedTuple):
    """The result of :meth:`Store.tidy`."""

    merged: int
    """Small files that were merged."""
    into: int
    """The files they were merged into."""
    deleted: int
    """Files that were of no use for hours."""


class ArchiveStore(Protocol):
    """An archive that is written.

    Every call may raise :class:`~unstable_stream.errors.ArchiveBusyError`: others held it, or committed to
    it, past the deadline, or it cannot be reached; the same call may be repeated. Or
    :class:`~unstable_stream.errors.ArchiveError`: it could not be written, and was not changed.
    """

    archive_id: str
    """Names the archive's consumer group."""
    flush_interval_s: float
    """Seconds that records may wait before they are stored, so that each time is worth its cost."""

    def positions(self, *, forget: bool = True) -> dict[LogPartition, int]:
        """Return the next offset to archive of each partition that the archive has.

        With ``forget``, what was built and not stored counts for nothing from now on.
        """

    def build(self, records: Sequence[StoredRecord], log_id: str) -> RowBatch:
        """Turn records that are new by position into rows.

        One thread builds at a time; another may append meanwhile.
        """

    def append(
        self, batch: RowBatch, before: Mapping[LogPartition, int], after: Mapping[LogPartition, int]
    ) -> bool:
        """Store rows together with positions, all or nothing, without the rows of runs that were dropped.

        Returns:
            ``False``: another process has moved the positions on from ``before``, or stored an event of the
            batch. Nothing was stored, and the batch counts for nothing from now on.
        """

    def take_out(self, dropped: DroppedRun) -> int:
        """Take out all rows of a run and note it in ``dropped_runs``, all or nothing.

        Returns:
            The number of records, which the note has, too.

        Raises:
            RunError: there are none; nothing was changed.
        """

    def tidy(self) -> Tidied:
        """Merge small files, and delete those that nobody needs any more."""

    def close(self) -> None:
        """Leave the archive in order."""


def lacks_records(archive: ArchiveAddress) -> ArchiveError:
    """Return the error of a writer whose archive is behind what it has stored."""
    return ArchiveError(
        f"the archive {archive} lacks records that were stored in it: it was deleted, replaced, or an "
        "earlier batch failed. Start the archiver again: it fills it from the log."
    )
