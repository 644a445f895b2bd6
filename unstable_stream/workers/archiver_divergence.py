"""Compare the log with what was archived of it, and find the first record that the log has no longer.

A log may lose its last records after the archive has stored them: a power cut under ``synchronous=NORMAL``,
an unclean leader election of Kafka, a topic deleted and made again, a file put back from a copy. The archive
compares content, in two steps:

1. for all partitions at once, the newest archived records, of which the archive keeps digests;
2. where these differ, or the log ends before them, backwards over the archived records, piece by piece, until
   a whole piece is the same.

A record that expired, or that a compacted topic replaced, is not in the log either; it is no sign of a loss.
"""

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from unstable_stream.archive import RecordReader, Writer
from unstable_stream.archive.newest import Newest
from unstable_stream.log.port import EventLog, Positions, TopicPartition
from unstable_stream.log.reading import read_to_end
from unstable_stream.record_digest import content_digest
from unstable_stream.streams.ordered_history import LogHistory

__all__ = ["divergences"]

_PIECE_OFFSETS: Final = 2000


@dataclass(frozen=True)
class _Extent:
    """The part of a partition that the log retains."""

    begin: int
    end: int
    compacted: bool
    """Whether records may be missing between the two."""


async def divergences(log: EventLog, writer: Writer, partitions: Collection[TopicPartition]) -> Positions:
    """Return the first archived offset that the log does not have or has otherwise, where there is one."""
    archived = writer.positions
    held = [at for at in partitions if archived.get(at, 0) > 0]
    extents = await _extents(log, {at.topic for at in held})
    held = [at for at in held if at in extents]
    suspects = [at for at in held if archived[at] > extents[at].end]
    others = {at: writer.newest(*at) for at in held if at not in suspects}
    in_log = await _newest_in_log(log, others, extents)
    for at, newest in others.items():
        kept = {offset: digest for offset, digest in newest.items() if offset >= extents[at].begin}
        if _differs(kept, in_log[at], extents[at]) or not newest:
            suspects.append(at)
    if not suspects:
        return {}
    reader = await asyncio.to_thread(RecordReader, writer.path, writer.log_id)
    try:
        found = {at: await _first_ghost(log, reader, at, archived[at], extents[at]) for at in suspects}
    finally:
        await asyncio.to_thread(reader.release)
    # A position beyond the end is wrong even if every archived record is right.
    found |= {at: extents[at].end for at in suspects if found[at] is None and archived[at] > extents[at].end}
    return {at: offset for at, offset in found.items() if offset is not None}


async def _extents(log: EventLog, topics: Collection[str]) -> dict[TopicPartition, _Extent]:
    settings = await log.topic_settings() if log.compacts else {}
    found: dict[TopicPartition, _Extent] = {}
    for topic in topics:
        compacted = topic in settings and settings[topic].cleanup_policy == "compact"
        ends = await log.end_offsets(topic)
        for at, begin in (await log.beginning_offsets(topic)).items():
            found[at] = _Extent(begin, ends[at], compacted)
    return found


async def _newest_in_log(
    log: EventLog, newest: Mapping[TopicPartition, Newest], extents: Mapping[TopicPartition, _Extent]
) -> dict[TopicPartition, dict[int, str]]:
    """Return the log's records at the offsets that the archive knows, as offset to digest."""
    found: dict[TopicPartition, dict[int, str]] = {at: {} for at in newest}
    ends = {at: min(max(known) + 1, extents[at].end) for at, known in newest.items() if known}
    if not ends:
        return found
    topics = sorted({at.topic for at in ends})
    starts = {at: extent.end for at, extent in extents.items() if at.topic in topics}
    starts |= {at: max(min(newest[at]), extents[at].begin) for at in ends}
    async with contextlib.aclosing(read_to_end(log, topics, starts=starts, ends=ends)) as records:
        async for record in records:
            at = TopicPartition(record.topic, record.partition)
            found[at][record.offset] = content_digest(record.key, record.timestamp_ms, record.value)
    return found


def _differs(archived: Newest, in_log: Newest, extent: _Extent) -> bool:
    return any(
        in_log[offset] != digest if offset in in_log else not extent.compacted
        for offset, digest in archived.items()
    )


async def _first_ghost(
    log: EventLog, reader: RecordReader, at: TopicPartition, position: int, extent: _Extent
) -> int | None:
    """Go backwards over the archived records until a whole piece is in the log as it is in the archive."""
    first, stop = None, position
    while stop > extent.begin:
        start = max(extent.begin, stop - _PIECE_OFFSETS)
        rows = await asyncio.to_thread(reader.read, *at, start, stop, stop - start)
        archived = {row.offset: content_digest(row.key, row.timestamp_ms, row.value) for row in rows}
        in_log: dict[int, str] = {}
        if start < extent.end and archived:
            async with contextlib.aclosing(LogHistory(log).read(at, start, min(stop, extent.end))) as pieces:
                async for records in pieces:
                    for record in records:
                        digest = content_digest(record.key, record.timestamp_ms, record.value)
                        in_log[record.offset] = digest
        # Oldest first: all from the first one that differs goes.
        differing = [
            offset
            for offset, digest in sorted(archived.items())
            if _differs({offset: digest}, in_log, extent)
        ]
        if differing:
            first = differing[0]
        elif archived.keys() & in_log.keys():
            return first
        stop = start
    return first
