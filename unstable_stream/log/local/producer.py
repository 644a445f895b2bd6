"""Append records and commit positions of a local log in one transaction.

A transaction is kept in memory until it commits; then, in one SQLite transaction: the producer's epoch
is checked, the positions and states are stored, the records inserted.
"""

import sqlite3
from collections.abc import Mapping, Sequence

from unstable_stream.errors import FencedError
from unstable_stream.log.handles import ProducerHandle, TransactionHandle
from unstable_stream.log.local.consumer import LocalParts
from unstable_stream.log.local.groups import commit_for_group, save
from unstable_stream.log.local.records import AppendBatch
from unstable_stream.log.port import Positions, Record


def next_epoch(connection: sqlite3.Connection, producer_id: str) -> int:
    """Fence off all earlier producers with this id; return the epoch of the new one, from 1."""
    connection.execute(
        """INSERT INTO producers (producer_id, epoch) VALUES (?, 1)
           ON CONFLICT DO UPDATE SET epoch = epoch + 1""",
        (producer_id,),
    )
    return _current_epoch(connection, producer_id)


def _current_epoch(connection: sqlite3.Connection, producer_id: str) -> int:
    row = connection.execute("SELECT epoch FROM producers WHERE producer_id = ?", (producer_id,)).fetchone()
    return 0 if row is None else int(row[0])


class LocalProducer(ProducerHandle):
    """Implements :class:`~unstable_stream.log.port.Producer`."""

    def __init__(self, log: LocalParts, producer_id: str, epoch: int) -> None:
        super().__init__(producer_id)
        self._log = log
        self._epoch = epoch

    def transaction(self) -> "LocalTransaction":
        """Return a transaction to enter with ``async with``; one at a time, as on Kafka."""
        return LocalTransaction(self._log, self)

    def check_epoch(self, connection: sqlite3.Connection) -> None:
        """Raise :class:`FencedError` if a later producer has taken over."""
        epoch = _current_epoch(connection, self._producer_id)
        if epoch != self._epoch:
            raise FencedError(
                f"producer {self._producer_id!r} of epoch {self._epoch} was taken over by one of epoch "
                f"{epoch}: nothing of this transaction was stored. Stop this process; the other one goes on."
            )


class LocalTransaction(TransactionHandle):
    """Implements :class:`~unstable_stream.log.port.Transaction`."""

    def __init__(self, log: LocalParts, producer: LocalProducer) -> None:
        super().__init__(producer)
        self._log = log
        self._producer = producer
        self._batches: list[AppendBatch] = []
        self._positions: list[tuple[str, Positions]] = []
        self._states: list[tuple[str, Mapping[str, bytes]]] = []

    async def _begin(self) -> None:
        await self._log.reader.run(self._producer.check_epoch)

    async def append(self, records: Sequence[Record]) -> None:
        """Add records, to be stored when the transaction commits."""
        self._check_open()
        batch = AppendBatch(records, self._log.topics, self._log.write_headers, self._log.ends)
        await self._log.writer.run_outside(batch.prepare)
        self._batches.append(batch)

    async def commit_positions(self, group: str, positions: Positions) -> None:
        """Commit positions of a group together with the records."""
        self._check_open()
        self._positions.append((group, dict(positions)))

    async def save(self, scope: str, states: Mapping[str, bytes]) -> None:
        """Save states together with the records."""
        self._check_open()
        self._states.append((scope, dict(states)))

    async def _end(self) -> None:
        await self._log.writer.run(self._commit, wakes=lambda _: bool(self._batches))

    def _commit(self, connection: sqlite3.Connection) -> None:
        self._producer.check_epoch(connection)
        for group, positions in self._positions:
            find = self._log.topics.find_partition
            numbered = [(find(connection, at).partition_id, offset) for at, offset in positions.items()]
            commit_for_group(connection, group, numbered)
        for scope, states in self._states:
            save(connection, scope, states)
        for batch in self._batches:
            batch.write(connection)
