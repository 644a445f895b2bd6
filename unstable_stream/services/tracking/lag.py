"""Measure the lag of each consumer group: its committed positions against the ends of the topics."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from unstable_stream.errors import OffsetOutOfRangeError
from unstable_stream.log.port import EventLog, Positions, TopicPartition
from unstable_stream.log.reading import read_to_end

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
    """Return the run that a group serves (``reward-processor/RUN``, ``plugin/NAME/RUN``); ``None``: all."""
    return group.removeprefix("plugin/").partition("/")[2] or None


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
        # Where the group of one run has no position there is nothing but records of other runs.
        of_run = run_of_group(group) is not None
        for at in sorted(at for at in ends if at.topic in own and (at in positions or not of_run)):
            position = positions.get(at)
            behind = ends[at] - max(begins[at] if position is None else position, begins[at])
            found.append(Lag(group, at, position, ends[at], max(0, behind)))
    return await _counted(log, found, begins, ends)


async def _of_all(look_up: Callable[[str], Awaitable[Positions]], topics: Collection[str]) -> Positions:
    found = await asyncio.gather(*(look_up(topic) for topic in sorted(topics)))
    return {at: offset for positions in found for at, offset in positions.items()}


async def _counted(log: EventLog, found: list[Lag], begins: Positions, ends: Positions) -> list[Lag]:
    """Replace short lags by the exact number of records."""
    short = {lag.at: lag.end for lag in found if 0 < lag.lag <= _COUNTED_UP_TO}
    if not short:
        return found
    topics = sorted({at.topic for at in short})
    starts = {at: end for at, end in ends.items() if at.topic in topics}
    starts |= {at: max(begins[at], end - _COUNTED_UP_TO) for at, end in short.items()}
    offsets: defaultdict[TopicPartition, list[int]] = defaultdict(list)
    try:
        async with asyncio.timeout(_COUNTING_DEADLINE_S):
            async for record in read_to_end(log, topics, starts=starts, ends=short):
                offsets[TopicPartition(record.topic, record.partition)].append(record.offset)
    except (OffsetOutOfRangeError, TimeoutError):
        return found  # retention has just moved a beginning, say; then the lag in offsets stays
    return [
        replace(lag, lag=sum(offset >= lag.end - lag.lag for offset in offsets[lag.at]))
        if lag.lag <= _COUNTED_UP_TO
        else lag
        for lag in found
    ]
