"""The open partitions of one host of a group: each is opened behind a fence, until another host fences it.

A partition has a producer whose id is made of the group and the partition. Results, position and state of a
batch are one transaction of it, so the next host goes on from exactly what was published.
"""

import asyncio
from collections.abc import Set
from typing import Final, Generic, Protocol, TypeVar

from unstable_stream.console import get_logger
from unstable_stream.errors import EventLogError, FencedError
from unstable_stream.log.port import EventLog, Positions, Producer, TopicPartition
from unstable_stream.services.streams.consumer import loop_time
from unstable_stream.services.streams.snapshots import scope_of

REOPEN_AFTER_S: Final = 3.0
"""Seconds to wait before opening a lost partition again. The new host may know of the move this much earlier
than this one: opening it again before the group says so would take it back.
"""
_UNEXPLAINED_WITHIN_S: Final = 60.0
"""Seconds. If a host is fenced twice within this time and keeps the partition assigned, another process uses
the partition without the group knowing it.
"""

_log = get_logger(__name__)


class OpenPartition(Protocol):
    """A partition that a host works on."""

    @property
    def at(self) -> TopicPartition:
        """Its topic and number."""

    @property
    def producer(self) -> Producer:
        """The fence: only the last one that was opened commits."""

    @property
    def next_offset(self) -> int:
        """The next offset to process."""


P = TypeVar("P", bound=OpenPartition)


class OpenPartitions(Generic[P]):
    """The part of a sink that opens and closes partitions."""

    def __init__(self, log: EventLog, group: str, reopen_after_s: float = REOPEN_AFTER_S) -> None:
        """Open nothing yet; ``group``: the one whose committed positions count."""
        self.log = log
        self.group = group
        self._reopen_after_s = reopen_after_s
        self._open: dict[TopicPartition, P] = {}
        self._fenced_at: dict[TopicPartition, float] = {}

    def producer_id(self, at: TopicPartition) -> str:
        """Return the id with which the hosts of a partition fence each other, and the scope of its states."""
        return scope_of(self.group, at)

    def positions(self) -> Positions:
        """Return the next offset to be processed of every open partition."""
        return {at: partition.next_offset for at, partition in self._open.items()}

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        """Close lost partitions and open new ones; see the port.

        Raises:
            ServiceError: part of the history was deleted, so the state of a partition cannot be restored.
            OffsetOutOfRangeError: the log has lost records that were processed, or deleted such as were not.
            PartitionsChangedError: partitions were added to an input.
        """
        lost = self._open.keys() - assigned
        for at in lost:
            await self._close(self._open.pop(at))
        if lost:
            _log.info("partitions closed", group=self.group, partitions=[*map(str, sorted(lost))])
        self._fenced_at = {at: when for at, when in self._fenced_at.items() if at in assigned}
        reopened_before = loop_time() - self._reopen_after_s
        gained = [
            at
            for at in sorted(assigned - self._open.keys())
            if self._fenced_at.get(at, reopened_before) <= reopened_before
        ]
        for error in await asyncio.gather(*map(self._open_partition, gained), return_exceptions=True):
            if error is not None:
                raise error
        if gained:
            _log.info("partitions opened", group=self.group, partitions=[*map(str, gained)])
        return {at: self._open[at].next_offset for at in gained}

    async def _open_partition(self, at: TopicPartition) -> None:
        # a. From here on an earlier host can commit nothing.
        producer = await self.log.producer(self.producer_id(at))
        try:
            self._open[at] = await self._opened(at, producer)
        except BaseException:
            await producer.close()
            raise

    async def _opened(self, at: TopicPartition, producer: Producer) -> P:
        """Restore the state of what was committed; nobody else can change the committed position now."""
        raise NotImplementedError

    async def _leave(self, partition: P) -> None:
        """Finish the work on a partition that is about to be closed."""

    async def close(self) -> None:
        """Close all partitions; the next host goes on from the committed positions."""
        partitions, self._open = list(self._open.values()), {}
        await asyncio.gather(*map(self._close, partitions))

    async def _close(self, partition: P) -> None:
        try:
            await self._leave(partition)
        except FencedError:
            pass  # the next host has opened the partition; it saves the next snapshot
        except EventLogError as error:
            _log.warning("snapshot not saved", partition=str(partition.at), reason=str(error))
        finally:
            await partition.producer.close()

    async def _hand_over(self, at: TopicPartition, error: BaseException) -> None:
        """Drop a partition that another host has opened; only the work since the last commit is lost.

        It may still be assigned to this host, if it moved there and came back between two polls. So it is
        opened again after a while. If this happens twice in a row, a process outside the sharing uses the
        group, and the two would take the partition from each other for ever.
        """
        await self._close(self._open.pop(at))
        before, now = self._fenced_at.get(at), loop_time()
        if before is not None and now - before < _UNEXPLAINED_WITHIN_S:
            raise FencedError(
                f"{self.group}: {at} is assigned to this host, yet another keeps taking it over. "
                "This one stops; nothing was lost. Hosts share partitions only with hosts of the same "
                f"runtime: is one of the other runtime running too? ({error})"
            ) from error
        self._fenced_at[at] = now
        _log.info("partition taken over by another host", group=self.group, partition=str(at))
