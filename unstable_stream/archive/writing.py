"""Write to an archive of either kind: the archiver needs a :class:`Writer` and nothing else of it.

The two are :class:`~.writer.ArchiveWriter`, for a DuckDB file, and
:class:`~.shared.writer.SharedWriter`, for a table that many archivers write.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from unstable_stream.archive.batch import ArchivedRecord, Batch, Rejection
from unstable_stream.archive_address import ArchiveAddress, is_export, is_shared
from unstable_stream.errors import ArchiveError

__all__ = ["Prepared", "Writer", "Written", "open_writer"]

_Where: TypeAlias = tuple[str, str, int]
"""Log id, topic and partition."""


class Written(NamedTuple):
    """The number of records and rows that one call of :meth:`Writer.write` handled."""

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

    records: Sequence[ArchivedRecord]
    """All that was given."""
    read_up_to: Mapping[tuple[str, int], int]
    """As given."""
    new: Sequence[ArchivedRecord]
    """Those whose positions had not been archived."""
    batch: Batch
    based_on: Mapping[_Where, int]
    """The positions the archive must have when it is stored."""
    positions: Mapping[_Where, int]
    """The positions it will have then, of the partitions that the batch is of."""


class Writer(Protocol):
    """Writes one log into an archive, each position once. Batches are stored in the order they were prepared.

    One thread may prepare a batch while another stores the one before. Every call may raise
    :class:`~unstable_stream.errors.ArchiveBusyError`, and may be repeated then, or
    :class:`~unstable_stream.errors.ArchiveError`.
    """

    log_id: str
    archive_id: str
    """Names the archive's consumer group."""

    @property
    def path(self) -> ArchiveAddress:
        """The archive."""

    @property
    def positions(self) -> Mapping[tuple[str, int], int]:
        """(topic, partition) of this log to the next offset to prepare; a partition never seen is absent."""

    def refresh(self) -> None:
        """Learn how far other writers are. Everything that was prepared must have been stored."""

    def note_missing(self, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> None:
        """Note offsets that the log deleted before they were archived; the archive goes on behind them."""

    def pass_over(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Move positions past offsets without records."""

    def write(self, records: Sequence[ArchivedRecord]) -> Written:
        """Archive a batch: :meth:`store` of :meth:`prepare`."""

    def prepare(
        self, records: Sequence[ArchivedRecord], read_up_to: Mapping[tuple[str, int], int] | None = None
    ) -> Prepared:
        """Decode a batch and build its rows."""

    def store(self, prepared: Prepared) -> Written:
        """Store a prepared batch with its positions, at once."""

    def close(self) -> None:
        """Leave the archive in order."""


def open_writer(archive: ArchiveAddress, log_id: str = "", *, timeout_s: float = 60.0) -> Writer:
    """Create or open an archive of either kind to write to it.

    Args:
        archive: a path, or the address of a shared archive.
        log_id: what tells the log from any other.
        timeout_s: how long to wait for others before :class:`~unstable_stream.errors.ArchiveBusyError`.

    Raises:
        ArchiveError: it is an export; or see the writer.
    """
    # Imported here: the one is not needed for the other, and deltalake may not be installed.
    if is_shared(archive):
        from unstable_stream.archive.shared.writer import SharedWriter

        return SharedWriter(archive, log_id, timeout_s=timeout_s)
    if is_export(archive):
        raise ArchiveError(
            f"{archive} is an export, which is only read: archive into another directory, with --data"
        )
    from unstable_stream.archive.writer import ArchiveWriter

    return ArchiveWriter(Path(archive), log_id, timeout_s=timeout_s)
