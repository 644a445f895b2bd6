"""The port between the consumer loop and what becomes of the records it reads.

:mod:`unstable_stream.streams.consumer` is the only loop that joins a group, polls and follows the assignment.
Whoever consumes a topic brings a sink: :class:`~unstable_stream.streams.folds.FoldSink` folds and publishes
in transactions, :class:`~unstable_stream.streams.plugins.sink.PluginSink` runs a plug-in,
:class:`~unstable_stream.workers.archiver.ArchiveSink` fills the archive. Each lists its numbered commit steps
where it is defined, and each decides where a partition goes on: the positions it stored with its results.
"""

from collections.abc import Sequence, Set
from typing import Protocol

from unstable_stream.errors import OffsetOutOfRangeError
from unstable_stream.log.port import Positions, StoredRecord, TopicPartition

__all__ = ["Sink"]


class Sink(Protocol):
    """What is done with the partitions that one member of a group is given. One task at a time may use it."""

    @property
    def busy(self) -> bool:
        """Whether it has records of its own to work at, from elsewhere: then polling does not wait."""

    def positions(self) -> Positions:
        """Return the next offset to be processed of every open partition."""

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        """Close partitions that were taken away and open those that were given.

        Returns the partitions opened now, each with the offset to read on from: what has been read of them
        before is not to be processed. A partition may stay closed for now; it is asked for again.
        """

    async def process(self, records: Sequence[StoredRecord], read_up_to: Positions) -> Positions:
        """Process records, in order within each partition; pass over those of partitions that are not open.

        Args:
            records: may be none: then there is time for work of its own.
            read_up_to: how far reading has come with them, whatever lies between records.

        Returns:
            The partitions to read on from elsewhere, usually none.
        """

    async def settle(self, read_up_to: Positions) -> None:
        """Bring to rest what is under way: all that was read has been given, and nothing more is there."""

    def deleted(self, error: OffsetOutOfRangeError) -> None:
        """Go on although records were deleted before they were read: close all partitions; or raise."""

    async def may_leave(self, ends: Positions, unassigned_s: float) -> bool:
        """Whether a member that is to read up to ``ends``, yet has no partition, may end.

        Args:
            ends: of all partitions.
            unassigned_s: for how long it has had none.
        """

    async def close(self) -> None:
        """Give all partitions up; whoever opens them next goes on from what was stored."""
