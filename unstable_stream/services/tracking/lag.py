"""Measure the lag of each consumer group: its committed positions against the ends of the topics."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unstable_stream.errors import OffsetOutOfRangeError
from unstable_stream.log.port import EventLog, Positions, TopicPartition
from unstable_stream.log.reading import read_on

_COUNTED_UP_TO: Final = 16
"""Offsets. Transaction markers take offsets too, so a smaller lag is counted by reading the records."""
_COUNTING_DEADLINE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Lag:
    """The position of one group in one partition."""

    group: str
    at: TopicPartition
    committed: int | None
    """``None``: the group has committed nothing yet and will begin at the beginning."""
    end: int
    lag: int
    """Records not committed yet. The number is exact near the end; further behind it counts offsets, on Kafka
    a few more than records.
    """


def run_of_group(group: str) -> str | None:
    """Return the run that a group serves (``reward-processor/RUN``); ``None`` if it serves all runs."""
    return group.partition("/")[2] or None


async def live_groups(log: EventLog, finished: Collection[str]) -> list[str]:
    """Return the groups, sorted, without those of finished runs."""
    return [group for group in await log.groups() if run_of_group(group) not in finished]


async def measure_lag(log: EventLog, groups: Sequence[str], topics: Collection[str]) -> list[Lag]:
    """Return the positions of these groups on these topics, by group, topic and partition."""
    there = await log.topics()
    # Read positions before ends: a commit in between makes a lag too large, never negative.
    committed = {group: await log.committed_positions(group) for group in groups}
    read = {at.topic for positions in committed.values() for at in positions}.intersection(there, topics)
    begins, ends = await asyncio.gather(_of_all(log.beginning_offsets, read), _of_all(log.end_offsets, read))
    found: list[Lag] = []
    for group, positions in committed.items():
        own = {at.topic for at in positions}
        for at in sorted(at for at in ends if at.topic in own):
            position = positions.get(at)
            behind = ends[at] - max(begins[at] if position is None else position, begins[at])
            found.append(Lag(group, at, position, ends[at], max(0, behind)))
    return await _counted(log, found, begins)


async def _of_all(look_up: Callable[[str], Awaitable[Positions]], topics: Collection[str]) -> Positions:
    found = await asyncio.gather(*(look_up(topic) for topic in sorted(topics)))
    return {at: offset for positions in found for at, offset in positions.items()}


async def _counted(log: EventLog, found: Sequence[Lag], begins: Mapping[TopicPartition, int]) -> list[Lag]:
    """Replace short lags by the exact number of records."""
    starts: dict[TopicPartition, int] = {}
    for each in found:
        if 0 < each.lag <= _COUNTED_UP_TO:
            starts[each.at] = min(starts.get(each.at, each.end), each.end - each.lag)
    if not starts:
        return list(found)
    offsets = await _record_offsets(log, starts, {each.at: each.end for each in found})
    return [
        Lag(
            each.group,
            each.at,
            each.committed,
            each.end,
            sum(o >= each.end - each.lag for o in offsets[each.at]),
        )
        if 0 < each.lag <= _COUNTED_UP_TO and each.at in offsets
        else each
        for each in found
    ]


async def _record_offsets(
    log: EventLog, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, list[int]]:
    """Return the offsets of the records from ``starts`` to ``ends``, for the partitions that were read in
    time.
    """
    offsets: dict[TopicPartition, list[int]] = {at: [] for at in starts}
    consumer = await log.consumer(sorted({at.topic for at in starts}), start="end")
    try:
        await consumer.seek(starts)
        deadline = asyncio.get_running_loop().time() + _COUNTING_DEADLINE_S
        async for records in read_on(consumer, {at: ends[at] for at in starts}):
            for record in records:
                at = TopicPartition(record.topic, record.partition)
                if at in offsets and record.offset < ends[at]:
                    offsets[at].append(record.offset)
            if asyncio.get_running_loop().time() > deadline:
                positions = consumer.positions()
                return {at: found for at, found in offsets.items() if positions[at] >= ends[at]}
    except OffsetOutOfRangeError:
        return {}  # retention has just moved a beginning; then the lag in offsets stays
    finally:
        await consumer.close()
    return offsets
