"""Find the offset at which a plug-in begins in a partition, and the records to read from the archive first.

The log is read from the first offset that it still has; earlier records come from the archive. The archive
keeps log, partition and offset of every record, so no record is missed or read twice where the two meet. A
compacted topic may lack records anywhere in the log, so there the archive is read to its end.
"""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from unstable_stream.archive.records import RecordReader
from unstable_stream.archive_address import ArchiveAddress, archive_exists
from unstable_stream.errors import PluginError
from unstable_stream.log.port import EventLog, Start, StoredRecord, TopicPartition
from unstable_stream.log_lines import get_logger
from unstable_stream.streams.ordered_history import record_of_row

__all__ = ["Backfill", "Beginning"]

_log = get_logger(__name__)


class Beginning(NamedTuple):
    """The offset to go on from in a partition, and the source to read."""

    offset: int
    """The next offset to handle."""
    log_from: int | None
    """Read the archive up to this offset, and the log from it on; ``None``: read only the log."""
    end: int
    """The end of the log now."""


class Backfill:
    """Reads records from the archive that the log no longer has."""

    def __init__(self, log: EventLog, log_id: str, archive: ArchiveAddress) -> None:
        """Store the arguments; the file ``archive`` need not exist."""
        self._event_log = log
        self._log_id = log_id
        self._archive = archive
        self._reader: RecordReader | None = None

    async def begin(
        self, stored: Mapping[TopicPartition, int | None], start: Start
    ) -> dict[TopicPartition, Beginning]:
        """Return the beginnings of some partitions.

        Args:
            stored: the stored next offset of each partition, ``None`` if there is none.
            start: the place to begin in partitions without a stored offset.

        Raises:
            PluginError: the log ends before a stored offset: it has lost records that were handled.
        """
        settings = await self._event_log.topic_settings()
        found: dict[TopicPartition, Beginning] = {}
        for topic in {where.topic for where in stored}:
            begins = await self._event_log.beginning_offsets(topic)
            ends = await self._event_log.end_offsets(topic)
            compacted = topic in settings and settings[topic].cleanup_policy == "compact"
            for where, known in stored.items():
                if where.topic == topic:
                    first, end = begins[where], ends[where]
                    if known is not None and known > end:
                        raise PluginError(
                            f"the plug-in has handled {where} up to {known}, but the log ends at {end}: it "
                            "lost records (a power cut, or a topic or file put back), and the plug-in's "
                            "state counts them. Handle all anew: unstable-stream consume PLUGIN --reset"
                        )
                    offset = await self._start(where, start, first, end) if known is None else known
                    found[where] = await self._from(where, offset, first, end, compacted=compacted)
        return found

    async def _from(
        self, where: TopicPartition, offset: int, first: int, end: int, *, compacted: bool
    ) -> Beginning:
        if offset >= first and not (compacted and offset < end):
            return Beginning(offset, None, end)
        archived = await self._archived(where)
        missing = await self._missing(where)
        if archived < first:
            missing.append((archived, first))  # not noted yet, or there is no archive
        missing = [(max(begin, offset), stop) for begin, stop in missing if stop > offset]
        if offset < first and missing:
            _log.warning(
                "records were deleted from the log before they were archived",
                partition=str(where),
                missing=", ".join(f"{begin} to {stop - 1}" for begin, stop in missing),
            )
        if offset >= archived:
            return Beginning(max(offset, first), None, end)
        return Beginning(offset, max(first, archived) if compacted else first, end)

    async def extend(self, where: TopicPartition, log_from: int) -> int:
        """Return ``log_from``, or the first offset of the log if retention has moved past it."""
        return max(log_from, (await self._event_log.beginning_offsets(where.topic))[where])

    async def read(self, where: TopicPartition, start: int, end: int, limit: int) -> list[StoredRecord]:
        """Return the next archived records from ``start`` to before ``end``, in order; empty at the end."""
        reader = await self._open()
        if reader is None:
            return []
        return [record_of_row(row) for row in await asyncio.to_thread(reader.read, *where, start, end, limit)]

    async def release(self) -> None:
        """Close the archive; the next read opens it again."""
        if self._reader is not None:
            await asyncio.to_thread(self._reader.release)

    async def _start(self, where: TopicPartition, start: Start, first: int, end: int) -> int:
        if start == "beginning":
            return 0
        if start == "end":
            return end
        offset = (await self._event_log.offsets_for_time(where.topic, start))[where]
        reader = await self._open()
        if offset > first or reader is None:
            return offset
        # The log's first record is late enough. Earlier records that are also late enough may be in the
        # archive.
        archived = await asyncio.to_thread(reader.first_at, *where, start)
        return offset if archived is None else min(offset, archived)

    async def _archived(self, where: TopicPartition) -> int:
        """Return the offset after the last archived record; 0 if there is none."""
        reader = await self._open()
        if reader is None:
            return 0
        ends = await asyncio.to_thread(reader.ends)
        return ends.get((where.topic, where.partition), 0)

    async def _missing(self, where: TopicPartition) -> list[tuple[int, int]]:
        """Return the ranges that the archive knows to be missing in it."""
        reader = await self._open()
        if reader is None:
            return []
        noted = await asyncio.to_thread(reader.missing)
        return list(noted.get((where.topic, where.partition), ()))

    async def _open(self) -> RecordReader | None:
        if self._reader is None and archive_exists(self._archive):
            self._reader = await asyncio.to_thread(RecordReader, self._archive, self._log_id)
        return self._reader
