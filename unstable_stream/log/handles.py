"""Shared by the consumers, producers and transactions of every log: what they refuse, and in which words."""

from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, Self

from unstable_stream.errors import EventLogError, FencedError
from unstable_stream.log.port import Positions, StoredRecord, TopicPartition


class ConsumerHandle:
    """A consumer that one task at a time may poll, and that is closed once."""

    def __init__(self, on_close: Callable[[Any], None]) -> None:
        """``on_close`` is called with this consumer when it is closed."""
        self._on_close = on_close
        self._polling = False
        self._closed = False

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[StoredRecord]:
        """Return up to ``max_records``, in offset order within each partition.

        It returns nothing while no broker answers.

        Raises:
            OffsetOutOfRangeError: retention deleted what was to be read next; call :meth:`seek` to go on.
            PartitionsChangedError: partitions were added to a topic.
            LogUnavailableError: the group's state could not be written in time.
            EventLogError: the brokers do not allow reading.
        """
        self._check_open()
        if max_records < 1:
            raise ValueError(f"max_records is {max_records}, expected at least 1")
        if self._polling:
            raise EventLogError("this consumer is being polled already: one task at a time may poll it.")
        self._polling = True
        try:
            return await self._poll(max_records, timeout_s)
        finally:
            self._polling = False

    async def close(self) -> None:
        """Leave the group; positions that were not committed are lost. May be called twice."""
        if not self._closed:
            self._closed = True
            self._on_close(self)
            await self._close()

    async def _poll(self, max_records: int, timeout_s: float) -> list[StoredRecord]:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError

    def _check_open(self) -> None:
        if self._closed:
            raise EventLogError("this consumer is closed; open another one to go on.")

    def _check_seek(self, positions: Positions, assigned: Collection[TopicPartition]) -> None:
        self._check_open()
        for at in positions:
            if at not in assigned:
                raise EventLogError(
                    f"cannot seek to {at}@{positions[at]}: this consumer has {listed(assigned)}. "
                    "A member of a group gets its partitions in poll()."
                )

    def _not_assigned(
        self, at: TopicPartition, group: str, assigned: Collection[TopicPartition]
    ) -> FencedError:
        had = listed(assigned)
        return FencedError(
            f"{at} is not assigned to this consumer of group {group!r} (it has {had}): nothing was committed."
        )

    def _without_group(self) -> EventLogError:
        return EventLogError(
            "a consumer without a group has no positions to commit: open it with group=…, or keep its "
            "positions() yourself."
        )


class ProducerHandle:
    """A producer with one transaction at a time."""

    def __init__(self, producer_id: str) -> None:
        self._producer_id = producer_id
        self._closed = False
        self._in_transaction = False

    async def close(self) -> None:
        """Begin no more transactions."""
        self._closed = True

    def enter(self) -> None:
        """Note that a transaction begins; raises :class:`EventLogError` if one is open."""
        if self._closed:
            raise EventLogError(f"producer {self._producer_id!r} is closed; open another one to go on.")
        if self._in_transaction:
            raise EventLogError(
                f"producer {self._producer_id!r} has a transaction open already: finish it first, or open a "
                "producer with another id."
            )
        self._in_transaction = True

    def leave(self) -> None:
        """Note that the transaction ended."""
        self._in_transaction = False


class TransactionHandle:
    """A transaction of a producer: stored when its block ends, dropped when the block raises."""

    def __init__(self, producer: ProducerHandle) -> None:
        self._entered = producer
        self._open = False

    async def __aenter__(self) -> Self:
        self._entered.enter()
        try:
            await self._begin()
        except BaseException:
            self._entered.leave()
            raise
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        try:
            if kind is None:
                await self._end()
        finally:
            self._entered.leave()

    async def _begin(self) -> None:
        """Check that no later producer has taken over, where that can be known now."""

    async def _end(self) -> None:
        raise NotImplementedError

    def _check_open(self) -> None:
        if not self._open:
            raise EventLogError("a transaction takes records only inside its `async with` block.")


def listed(partitions: Collection[TopicPartition]) -> str:
    """Name partitions in a message."""
    return ", ".join(str(at) for at in sorted(partitions)) or "no partitions yet"
