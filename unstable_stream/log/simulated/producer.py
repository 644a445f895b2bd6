"""Append records and commit positions of a simulated log in one transaction.

A transaction is kept by its writer until it commits. Then the epoch is checked, and all of it is stored as
one change.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from unstable_stream.errors import EventLogError
from unstable_stream.log.port import Positions, Record, TopicPartition
from unstable_stream.log.simulated.conditions import Conditions
from unstable_stream.log.simulated.store import Change, SimulatedStore

__all__ = ["SimulatedProducer", "SimulatedTransaction"]


class SimulatedProducer:
    """Implements :class:`~unstable_stream.log.port.Producer`."""

    def __init__(self, store: SimulatedStore, conditions: Conditions, producer_id: str, epoch: int) -> None:
        self._store = store
        self._conditions = conditions
        self._producer_id = producer_id
        self._epoch = epoch
        self._closed = False
        self._in_transaction = False

    def transaction(self) -> "SimulatedTransaction":
        """Return a transaction to enter with ``async with``; one at a time, as on Kafka."""
        return SimulatedTransaction(self._store, self._conditions, self)

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

    def check_epoch(self) -> None:
        """Raise :class:`FencedError` if a later producer has taken over."""
        self._store.check_epoch(self._producer_id, self._epoch)


class SimulatedTransaction:
    """Implements :class:`~unstable_stream.log.port.Transaction`."""

    def __init__(self, store: SimulatedStore, conditions: Conditions, producer: SimulatedProducer) -> None:
        self._store = store
        self._conditions = conditions
        self._producer = producer
        self._records: list[tuple[TopicPartition, Record]] = []
        self._positions: list[tuple[str, TopicPartition, int]] = []
        self._states: list[tuple[str, str, bytes]] = []
        self._open = False

    async def __aenter__(self) -> Self:
        self._producer.enter()
        try:
            await self._conditions.request("begin")
            self._producer.check_epoch()
        except BaseException:
            self._producer.leave()
            raise
        self._open = True
        return self

    async def append(self, records: Sequence[Record]) -> None:
        """Add records, to be stored when the transaction commits."""
        self._check_open()
        await self._conditions.request("add")
        self._records += self._store.place(records)

    async def commit_positions(self, group: str, positions: Positions) -> None:
        """Commit positions of a group together with the records."""
        self._check_open()
        await self._conditions.request("add")
        self._positions += [(group, at, offset) for at, offset in positions.items()]

    async def save(self, scope: str, states: Mapping[str, bytes]) -> None:
        """Save states together with the records."""
        self._check_open()
        await self._conditions.request("add")
        self._states += [(scope, name, state) for name, state in states.items()]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        try:
            if kind is None:
                await self._conditions.request("transaction")
                self._commit()
                await self._conditions.answer("transaction")
        finally:
            self._producer.leave()

    def _commit(self) -> None:
        self._producer.check_epoch()
        if self._records or self._positions or self._states:
            self._store.commit(
                Change(
                    records=tuple(self._records),
                    positions=tuple(self._positions),
                    states=tuple(self._states),
                )
            )

    def _check_open(self) -> None:
        if not self._open:
            raise EventLogError("a transaction takes records only inside its `async with` block.")
