"""The offsets at which a run began: no event of the run lies below them, so reading of the run begins there.

A new run then reads nothing of the runs before it, however long their history is, and needs none of it to be
kept. The offsets are recorded with the run, together with the identity of the log that they belong to. A run
that was recorded before they were is read from the beginning of the log, of which nothing may be deleted.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

from unstable_stream.errors import ServiceError
from unstable_stream.events import Event, RunStarted
from unstable_stream.log.port import EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.log.reading import events_to_end
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.history import read_history


async def present_ends(log: EventLog) -> dict[str, tuple[int, ...]]:
    """Return the end of each partition of our topics, to be recorded with a run that begins now."""
    ends: dict[str, tuple[int, ...]] = {}
    for topic in (await log.topics()).keys() & load_topics().keys():
        found = await log.end_offsets(topic)
        ends[topic] = tuple(found[at] for at in sorted(found))
    return dict(sorted(ends.items()))


def recorded_starts(began: RunStarted | None, log_id: str, topics: Iterable[str]) -> Positions:
    """Return the offsets recorded with a run; none if they belong to another log or were not recorded."""
    if began is None or began.log_id != log_id:
        return {}
    return {
        TopicPartition(topic, number): offset
        for topic in topics
        for number, offset in enumerate(began.start_offsets.get(topic, ()))
    }


async def within(log: EventLog, starts: Positions) -> Positions:
    """Return the offsets that can be read from: where retention has deleted records, the first one kept."""
    found: dict[TopicPartition, int] = {}
    for topic in {at.topic for at in starts}:
        begins = await log.beginning_offsets(topic)
        found |= {at: max(begin, starts[at]) for at, begin in begins.items() if at in starts}
    return found


async def run_starts(log: EventLog, run_id: str, topics: Sequence[str]) -> Positions:
    """Return the offsets to read a run from; partitions that are missing are read from their beginning."""
    status = (await read_history(log)).runs.get(run_id)
    began = None if status is None else status.began
    return await within(log, recorded_starts(began, await log.log_id(), topics))


async def deleted_records(log: EventLog, starts: Positions, topics: Iterable[str]) -> list[str]:
    """Return a line for each partition of which records from ``starts`` on, or from 0, were deleted."""
    return [
        f"{at}: offsets {starts.get(at, 0)} to {begin - 1} are gone"
        for topic in sorted(topics)
        for at, begin in sorted((await log.beginning_offsets(topic)).items())
        if begin > starts.get(at, 0)
    ]


async def check_whole(
    log: EventLog, run_id: str, topics: Iterable[str], known: Positions | None = None
) -> None:
    """Look whether the log has all records of a run on these topics.

    Args:
        log: the event log.
        run_id: the run.
        topics: the topics that must be whole.
        known: the offsets from which on; partitions that are not in it, from the start of the run.

    Raises:
        ServiceError: records were deleted. A service that went on would contradict what it did before.
    """
    names = list(topics)
    run = (await read_history(log)).runs.get(run_id)
    began = recorded_starts(None if run is None else run.began, await log.log_id(), names)
    starts = {**began, **(known or {})}
    gone = await deleted_records(log, starts, names)
    if gone:
        raise ServiceError(
            f"run {run_id} cannot go on, since a part of its history is gone: {'; '.join(gone)}. Restore the "
            "log, or go on in a new run: unstable-stream fork. Of a run that goes on nothing may expire, see "
            "unstable-stream topics check"
        )


async def run_events(
    log: EventLog, topics: Sequence[str], run_id: str, ends: Positions | None = None
) -> AsyncGenerator[tuple[StoredRecord, Event], None]:
    """Yield the events of a run, each with its record, from its start up to ``ends``, by default the present
    ends.
    """
    starts = await run_starts(log, run_id, topics)
    async with aclosing(events_to_end(log, topics, run_id=run_id, starts=starts, ends=ends)) as events:
        async for record, event in events:
            yield record, event
