"""The generic host of a stream processor: a member of its consumer group, on any event log.

Several hosts of one processor share its input partitions. Each reads what the group assigns to it and has it
processed by :class:`~unstable_stream.streams.held_partitions.HeldPartitions`; the steps in which results and
positions are committed are listed in :mod:`unstable_stream.streams.partition`.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from unstable_stream.errors import EventLogError, OffsetOutOfRangeError
from unstable_stream.log.port import Consumer, Positions, TopicPartition
from unstable_stream.streams.held_partitions import HeldPartitions
from unstable_stream.streams.partition import Hosting

__all__ = ["run_processor"]

_IDLE_S: Final = 0.5
"""How long a poll waits for the first record: the longest a stop goes unnoticed."""
_DRAIN_S: Final = 0.25
"""The same while the input is drained."""
_JOIN_S: Final = 10.0
"""A member that was given no partition by then has none: there are more members than partitions."""


async def run_processor(
    hosting: Hosting,
    *,
    stop: asyncio.Event,
    drain: bool = True,
    max_records: int = 500,
    linger_s: float = 0.02,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Host a processor until ``stop`` is set.

    Args:
        hosting: the processor and its log.
        stop: ends the host.
        drain: whether it first processes all that its partitions hold by then; otherwise it ends after the
            batch in hand.
        max_records: most records processed side by side.
        linger_s: how long a batch that is not full waits for more.
        on_ready: called when the host has joined its group and opened the partitions it was given first.

    Raises:
        FencedError: somebody outside the group takes its partitions over.
        OffsetOutOfRangeError: records were deleted before they were processed.
        ServiceError: the fold failed, or its state cannot be restored; nothing of the batch is committed.
    """
    held = HeldPartitions(hosting)
    consumer = await hosting.log.consumer(hosting.inputs, hosting.group)
    try:
        now = asyncio.get_running_loop().time
        ready, joined_by = False, now() + _JOIN_S
        while True:
            stopping = stop.is_set()
            if stopping and not drain:
                return
            records = await consumer.poll(max_records, _DRAIN_S if stopping else _IDLE_S)
            if records and len(records) < max_records and linger_s > 0:
                records += await consumer.poll(max_records - len(records), linger_s)
            opened = await held.follow(consumer.assignment())
            await _go_to(consumer, opened)
            await held.process(r for r in records if TopicPartition(r.topic, r.partition) not in opened)
            joined = bool(consumer.assignment()) or now() >= joined_by
            if joined and not ready:
                ready = True
                on_ready()
            drained = stopping and joined and not records and await _drained(hosting, consumer, held)
            await held.measure_lag(at_once=drained)
            if drained:
                return
    finally:
        await held.close()
        await consumer.close()


async def _go_to(consumer: Consumer, positions: Positions) -> None:
    """Read these partitions on from there, and not from where the consumer was before they were opened."""
    for at, offset in positions.items():
        try:
            await consumer.seek({at: offset})
        except OffsetOutOfRangeError:
            raise
        except EventLogError:
            # It went to another member meanwhile: after the next poll it is closed, or begins anew.
            continue


async def _drained(hosting: Hosting, consumer: Consumer, held: HeldPartitions) -> bool:
    """Return whether all partitions of this host are open and were read to their end."""
    assigned = consumer.assignment()
    if assigned != held.positions().keys():
        return False
    positions = consumer.positions()
    ends = [await hosting.log.end_offsets(topic) for topic in hosting.inputs]
    return all(positions[at] >= end for topic in ends for at, end in topic.items() if at in assigned)
