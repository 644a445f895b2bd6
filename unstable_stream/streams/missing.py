"""Find out which records of a history are gone: deleted from the log, and not in the archive either."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, runtime_checkable

from unstable_stream.archive_address import ArchiveAddress
from unstable_stream.errors import ServiceError
from unstable_stream.log.port import EventLog, Positions, TopicPartition
from unstable_stream.runs.history import read_history
from unstable_stream.runs.starts import known_starts

__all__ = ["KnowsMissing", "missing_records", "whole_history"]


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


@asynccontextmanager
async def whole_history(
    log: EventLog,
    archive: ArchiveAddress | None,
    run_id: str,
    topics: Collection[str],
    starts: Positions | None = None,
) -> AsyncIterator[EventLog]:
    """Yield a log with all records of a run on these topics: ``log``, or one with the archive before it.

    Args:
        log: the event log.
        archive: the archive, if there is one.
        run_id: the run.
        topics: the topics that must be whole.
        starts: the offsets from which on; partitions that are not in it, from the start of the run.

    Raises:
        ServiceError: records are in neither. A service that went on would contradict what it did before.
    """
    run = (await read_history(log)).runs.get(run_id)
    begun = {**await known_starts(log, None if run is None else run.began, topics), **(starts or {})}
    missing = await missing_records(log, begun, topics)
    if not missing:
        yield log
        return
    if archive is not None:
        from unstable_stream.streams.tiered_log import with_archive  # loads DuckDB

        async with with_archive(log, archive) as history:
            missing = await missing_records(history, begun, topics)
            if not missing:
                yield history
                return
    raise ServiceError(
        f"run {run_id} cannot go on, since a part of its history is gone: {'; '.join(missing)}. Restore the "
        "log or the archive, or go on in a new run: unstable-stream fork"
    )
