"""Know a position by the content of the record before it, not by the offset alone.

A log may lose its last records: after a power cut under ``synchronous=NORMAL``, on Kafka after an unclean
leader election, or when a file is put back from a copy. Others may then take their offsets. Who trusts a
position keeps a *mark* of the last record that was read, and looks whether the log still has it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec

from unstable_stream.log.port import EventLog, StoredRecord, TopicPartition
from unstable_stream.log.reading import read_to_end
from unstable_stream.record_digest import content_digest

__all__ = ["Mark", "lost_marks", "mark_of", "marks_of"]


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """The last record that was read of a partition."""

    offset: int
    digest: str


def mark_of(record: StoredRecord) -> Mark:
    """Return the mark of a record."""
    return Mark(record.offset, content_digest(record.key, record.timestamp_ms, record.value))


def marks_of(records: Iterable[StoredRecord]) -> dict[TopicPartition, Mark]:
    """Return the marks of the last of these records of each partition; they come in order."""
    last = {TopicPartition(record.topic, record.partition): record for record in records}
    return {at: mark_of(record) for at, record in last.items()}


async def lost_marks(log: EventLog, marks: Mapping[TopicPartition, Mark]) -> dict[TopicPartition, int]:
    """Return the offsets of marks whose record the log has lost, or replaced by another.

    A record that has expired is not lost, nor one that a compacted topic may have replaced by a later one.
    """
    if not marks:
        return {}
    topics = sorted({at.topic for at in marks})
    settings = await log.topic_settings() if log.compacts else {}
    # All at once: each question may wait for a broker that is gone.
    begins, ends = await asyncio.gather(
        _of_topics(log.beginning_offsets, topics), _of_topics(log.end_offsets, topics)
    )
    lost = {at: mark.offset for at, mark in marks.items() if mark.offset >= ends.get(at, 0)}
    looked_at = {
        at: mark
        for at, mark in marks.items()
        if at not in lost
        and mark.offset >= begins.get(at, 0)
        and not (at.topic in settings and settings[at.topic].cleanup_policy == "compact")
    }
    if looked_at:
        starts = {**ends, **{at: mark.offset for at, mark in looked_at.items()}}
        stops = {at: mark.offset + 1 for at, mark in looked_at.items()}
        found: set[TopicPartition] = set()
        async with contextlib.aclosing(read_to_end(log, topics, starts=starts, ends=stops)) as records:
            async for record in records:
                at = TopicPartition(record.topic, record.partition)
                if looked_at.get(at) == mark_of(record):
                    found.add(at)
        lost |= {at: mark.offset for at, mark in looked_at.items() if at not in found}
    return lost


async def _of_topics(
    ask: Callable[[str], Awaitable[Mapping[TopicPartition, int]]], topics: Iterable[str]
) -> dict[TopicPartition, int]:
    found = await asyncio.gather(*(ask(topic) for topic in topics))
    return {at: offset for offsets in found for at, offset in offsets.items()}
