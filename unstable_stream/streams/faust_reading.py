"""Tell whether what Faust has read joins on to what was processed.

Faust may drop or reorder records around a rebalance. Its client passes over records that were deleted without
a word, and nothing tells them from offsets that never had a record, such as the markers of transactions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from unstable_stream.log.port import EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.log.reading import any_record, check_offsets

__all__ = ["FaustReading", "check_gaps", "ends_without_record", "joined_on"]


@dataclass(frozen=True, slots=True)
class FaustReading:
    """A record and the reading that led to it."""

    record: StoredRecord
    follows: int
    """The offset at which reading began or went on. No record lies between it and this record."""
    session: int
    """Counts the jumps of reading in this partition."""


def joined_on(
    batch: Iterable[FaustReading], positions: Positions, sessions: Mapping[tuple[str, int], int]
) -> tuple[list[StoredRecord], set[TopicPartition]]:
    """Return the records that follow ``positions`` without a gap, and the partitions with a gap.

    A record that was read before the last jump of its partition may leave a gap. It is dropped, and reading
    goes on as it is.
    """
    reached = dict(positions)
    records: list[StoredRecord] = []
    astray: set[TopicPartition] = set()
    for reading in batch:
        at = TopicPartition(reading.record.topic, reading.record.partition)
        expected = reached.get(at)
        if expected is None or reading.record.offset < expected:
            continue
        if reading.follows <= expected:
            records.append(reading.record)
            reached[at] = reading.record.offset + 1
        elif reading.session == sessions.get(at, 0):
            astray.add(at)
    return records, astray


async def check_gaps(log: EventLog, records: Iterable[StoredRecord], positions: Positions) -> None:
    """Raise :class:`OffsetOutOfRangeError` if records between ``positions`` and ``records`` were deleted."""
    reached = dict(positions)
    gaps: dict[TopicPartition, int] = {}
    for record in records:
        at = TopicPartition(record.topic, record.partition)
        if record.offset > reached[at]:
            gaps.setdefault(at, reached[at])
        reached[at] = record.offset + 1
    await check_offsets(log, gaps)


async def ends_without_record(log: EventLog, topic: str, positions: Positions) -> Positions:
    """Return, for partitions of a topic with nothing but offsets without a record behind ``positions``, their
    ends.

    Raises:
        OffsetOutOfRangeError: records were deleted there.
    """
    ends = await log.end_offsets(topic)
    behind = {at: offset for at, offset in positions.items() if at.topic == topic and offset < ends[at]}
    if not behind or await any_record(log, {**ends, **behind}, ends):
        return {}
    # Only now: if the first of them is there still, none of them was deleted before they were looked at.
    await check_offsets(log, behind)
    return {at: ends[at] for at in behind}
