"""The port between the consumer loop and the code that processes its records.

:mod:`unstable_stream.streams.consumer` is the only loop that joins a group, polls and follows the assignment.
Every consumer brings a sink: :class:`~unstable_stream.streams.fold_sink.FoldSink` folds and publishes in
transactions, :class:`~unstable_stream.streams.plugins.sink.PluginSink` runs a plug-in,
:class:`~unstable_stream.workers.archiver.ArchiveSink` fills the archive. Each sink lists its numbered commit
steps where it is defined. Each also decides the offset at which a partition goes on: the position that it
stored with its results.
"""

from collections.abc import Sequence, Set
from typing import Protocol

from unstable_stream.errors import OffsetOutOfRangeError
from unstable_stream.log.port import Positions, StoredRecord, TopicPartition

__all__ = ["Sink"]


class Sink(Protocol):
    """Processes the partitions that are assigned to one member of a group. Only one task at a time may use
    it.
    """

    def positions(self) -> Positions:
        """Return the next offset to process, for every open partition."""

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        """Close partitions that are no longer assigned and open those that are new.

        Returns the partitions opened now, each with the offset to read on from. Records read from them before
        must not be processed. A sink may leave a partition closed for now; the loop asks again.
        """

    async def process(self, records: Sequence[StoredRecord], read_up_to: Positions) -> Positions:
        """Process records, in order within each partition; skip those of partitions that are not open.

        Args:
            records: may be empty; then the sink has time for its own work.
            read_up_to: the positions after these records and after anything that lies between records.

        Returns:
            The partitions to read on from another offset, usually none.
        """

    async def settle(self, read_up_to: Positions) -> None:
        """Finish the open work: the sink has all records that were read, and there are no more for now."""

    def deleted(self, error: OffsetOutOfRangeError) -> None:
        """Records were deleted before they were read, or lost after: close partitions to go on, or raise."""

    async def may_leave(self, elsewhere: Positions) -> bool:
        """Return whether a member that has reached the ends of its own partitions may end.

        Args:
            elsewhere: the ends of the partitions that it does not have. Their owner may have died, and the
                log may not have noticed yet.
        """

    async def close(self) -> None:
        """Close all partitions; the next member goes on from the stored positions."""
