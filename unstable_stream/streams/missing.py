"""Say which records of a history are gone: deleted from the log, and not in the archive either."""

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

from unstable_stream.log.port import EventLog, Positions, TopicPartition

__all__ = ["KnowsMissing", "missing_records"]


@runtime_checkable
class KnowsMissing(Protocol):
    """A log that reads what it has deleted from elsewhere, and knows what is not there."""

    def missing_before(self, at: TopicPartition, begin: int) -> Sequence[tuple[int, int]]:
        """Return the ranges below ``begin``, the partition's first offset, that nothing has."""


async def missing_records(log: EventLog, starts: Positions, topics: Collection[str]) -> list[str]:
    """Return a line for each partition of these topics of which records are gone.

    Args:
        log: a log, or one with the archive before it.
        starts: the offsets from which on they are of interest; 0 for partitions that are not in it.
        topics: the topics.
    """
    lines = []
    for topic in sorted(topics):
        for at, begin in sorted((await log.beginning_offsets(topic)).items()):
            start = starts.get(at, 0)
            ranges = log.missing_before(at, begin) if isinstance(log, KnowsMissing) else [(0, begin)]
            told = [f"{max(first, start)} to {end - 1}" for first, end in ranges if end > start]
            if told:
                lines.append(f"{at}: offsets {', '.join(told)} are neither in the log nor in the archive")
    return lines
