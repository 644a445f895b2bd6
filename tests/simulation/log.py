"""The local log in an event loop whose time is simulated, with all that can go wrong around it.

A :class:`Store` is one log, a file that the real adapter reads and writes, without its threads. Several
:class:`SimulatedLog` on it are several processes. :class:`Calm` decides, for each of them, how long requests
take, which of them fail and what a poll returns.

A store can be made to look like Kafka: the end of a transaction takes an offset (a record that readers do not
see), :meth:`Store.compact` hides what compaction removes, and :meth:`Store.hold_back` leaves a transaction of
another producer open.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast
from unittest.mock import patch

from unstable_stream.errors import OffsetOutOfRangeError
from unstable_stream.log.local.log import LocalLog, LocalProducer, LocalTransaction
from unstable_stream.log.local.records import RowCodec
from unstable_stream.log.local.threads import ReadThread, WriteThread
from unstable_stream.log.port import (
    Consumer,
    Positions,
    Record,
    Start,
    StoredRecord,
    TopicPartition,
    partition_for_key,
)

_MARKER: Final = "end-of-transaction"


class Calm:
    """Between a process and its log nothing fails, and a request takes one turn of the event loop."""

    async def request(self, what: str) -> None:
        """Wait, or raise: then the log was not asked, and nothing changed.

        Args:
            what: the operation: ``append``, ``commit``, ``transaction``, ``poll``, ``producer`` …
        """
        await asyncio.sleep(0)

    async def answer(self, what: str) -> None:
        """Wait, or raise: then the log did what it was asked, and the caller does not know."""

    def deliverable(self, at: TopicPartition, waiting: int) -> int:
        """Return how many of the records that wait in a partition a poll may return now."""
        return waiting


CALM: Final = Calm()


class _AtOnce:
    """Works in the caller's turn of the event loop, so that nothing depends on real threads."""

    def start(self: Any) -> None:
        self._connection = self._connect()

    def _submit(self: Any, job: Any) -> None:
        self._run(self._connection, [job])

    async def close(self: Any) -> None:
        self._connection.close()


class _Reader(_AtOnce, ReadThread):
    pass


class _Writer(_AtOnce, WriteThread):
    written: Callable[[], None]

    def _submit(self, job: Any) -> None:
        super()._submit(job)
        self.written()


class Store:
    """One log and what happens to it as a whole."""

    def __init__(
        self,
        directory: Path,
        *,
        compacts: bool = False,
        transaction_markers: bool = False,
        session_timeout_s: float = 30.0,
    ) -> None:
        """Make an empty log.

        Args:
            directory: for its file.
            compacts: whether :meth:`compact` may be called; see :attr:`EventLog.compacts`.
            transaction_markers: the end of a transaction takes an offset, as on Kafka, so offsets have gaps.
            session_timeout_s: a member of a group that did not poll for so long loses its partitions.
        """
        self.path = directory / "log.sqlite"
        self.compacts = compacts
        self.markers = transaction_markers
        self.session_timeout_s = session_timeout_s
        self.changes = 0
        """Made by appends, transactions, commits and the like so far, in all."""
        self.held: dict[TopicPartition, int] = {}
        self.compacted: set[tuple[TopicPartition, int]] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._next_write: bool | None = None

        class Writer(_Writer):
            written = staticmethod(self._written)

        # The one process of all is alive: a member is silent for too long when it does not poll.
        silent_s = {"session_timeout_s": session_timeout_s, "max_poll_interval_s": session_timeout_s}
        with patch.multiple("unstable_stream.log.local.log", ReadThread=_Reader, WriteThread=Writer):
            self.local = LocalLog.open(self.path, synchronous="NORMAL", **silent_s)
        with self._file() as connection:
            connection.execute("UPDATE identity SET log_id = 'simulated'")

    def _file(self) -> "contextlib.closing[sqlite3.Connection]":
        return contextlib.closing(sqlite3.connect(self.path, isolation_level=None))

    # -- changes ------------------------------------------------------------------------------

    def change(self, *, wakes: bool) -> None:
        """Count the next write, which follows at once; wake consumers if it brings records."""
        self._next_write = wakes

    def _written(self) -> None:
        wakes, self._next_write = self._next_write, None
        if wakes is None:
            return  # a member of a group has shown that it lives, or nothing was written yet
        self.changes += 1
        if wakes:
            self.wake()

    def compact(self) -> int:
        """Hide all but the newest record of each key on topics with the policy ``compact``; return how many
        records went.
        """
        before, codec = len(self.compacted), RowCodec(busy_timeout_s=1.0)
        with self._file() as connection:
            for number, *at in connection.execute(
                "SELECT partition_id, name, partition FROM partitions JOIN topics USING (topic_id) "
                "WHERE cleanup_policy = 'compact'"
            ).fetchall():
                rows = connection.execute(
                    f'SELECT "offset", key, layout_id, headers, value FROM records_{number} ORDER BY "offset"'
                ).fetchall()
                keys = {row[0]: codec.unpack(connection, *row[1:])[0] for row in rows}
                newest = {key: offset for offset, key in keys.items()}
                older = keys.keys() - newest.values()
                self.compacted |= {(TopicPartition(*at), offset) for offset in older}
        return len(self.compacted) - before

    async def hold_back(self, at: TopicPartition) -> None:
        """Leave a transaction of another producer open: readers see nothing that comes from now on."""
        self.held.setdefault(at, (await self.local.end_offsets(at.topic))[at])

    def let_go(self, at: TopicPartition) -> None:
        """End that transaction."""
        if self.held.pop(at, None) is not None:
            self.wake()

    def visible(self, ends: Positions) -> dict[TopicPartition, int]:
        """Return offsets as they are for readers, who do not pass open transactions."""
        return {at: min(offset, self.held.get(at, offset)) for at, offset in ends.items()}

    # -- waiting ------------------------------------------------------------------------------

    async def changed(self, timeout_s: float) -> None:
        """Wait for records, at most ``timeout_s``."""
        woken = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        timer = asyncio.get_running_loop().call_later(timeout_s, _ring, woken)
        try:
            await woken
        finally:
            timer.cancel()
            if woken in self._waiting:
                self._waiting.remove(woken)

    def wake(self) -> None:
        """Wake all consumers."""
        waiting, self._waiting = self._waiting, []
        for woken in waiting:
            _ring(woken)


def _ring(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


class SimulatedLog(LocalLog):
    """What one process has of a store."""

    shrink = None  # type: ignore[assignment]  # as a log that deletes expired records by itself

    def __init__(self, store: Store, conditions: Calm = CALM) -> None:
        local = store.local
        super().__init__(local._log, local._ringer, store.session_timeout_s, store.session_timeout_s)
        self.store = store
        self._conditions = conditions
        self._opened: list[SimulatedConsumer] = []

    @property
    def compacts(self) -> bool:
        return self.store.compacts

    async def append(self, records: Sequence[Record]) -> list[tuple[TopicPartition, int]]:
        await self._conditions.request("append")
        self.store.change(wakes=True)
        places = await super().append(records)
        await self._conditions.answer("append")
        return places

    async def producer(self, producer_id: str) -> Any:  # around what the local log has
        await self._conditions.request("producer")
        self.store.change(wakes=False)
        producer = SimulatedProducer(self.store, self._conditions, await super().producer(producer_id))
        await self._conditions.answer("producer")
        return producer

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, start: Start = "beginning"
    ) -> Any:
        await self._conditions.request("read")
        inner = await super().consumer(topics, group, start)
        self._opened.append(SimulatedConsumer(self.store, self._conditions, inner))
        return self._opened[-1]

    async def end_offsets(self, topic: str) -> Positions:
        await self._conditions.request("read")
        return self.store.visible(await super().end_offsets(topic))

    async def high_watermarks(self, topic: str) -> Positions:
        await self._conditions.request("read")
        return await super().end_offsets(topic)

    async def offsets_for_time(self, topic: str, timestamp_ms: int) -> Positions:
        await self._conditions.request("read")
        return self.store.visible(await super().offsets_for_time(topic, timestamp_ms))

    async def close(self) -> None:
        """Close all consumers of this process; the store stays."""
        for consumer in self._opened:
            await consumer.close()
        self._opened.clear()


def _after_a_request(name: str, what: str) -> Callable[..., Any]:
    async def call(self: SimulatedLog, *arguments: Any) -> Any:
        await self._conditions.request(what)
        return await getattr(LocalLog, name)(self, *arguments)

    return call


_READS = "log_id topics topic_settings beginning_offsets groups committed_positions saved saved_names"
for _name in _READS.split():
    setattr(SimulatedLog, _name, _after_a_request(_name, "read"))
SimulatedLog.create_topics = _after_a_request("create_topics", "topics")  # type: ignore[method-assign]


class SimulatedConsumer:
    """Around a consumer of the local log."""

    def __init__(self, store: Store, conditions: Calm, inner: Consumer) -> None:
        self.inner = inner
        self._store = store
        self._conditions = conditions
        self.assignment = inner.assignment
        self.positions = inner.positions

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[StoredRecord]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            await self._conditions.request("poll")
            returned = await self.inner.poll(max_records, 0.0)
            records = await self._delivered(returned)
            remaining_s = deadline - loop.time()
            if records or remaining_s <= 0:
                return records
            # A member shows that it lives, and looks for partitions that a dead one has left.
            await self._store.changed(
                min(remaining_s, 0.1 if returned else self._store.session_timeout_s / 3)
            )

    async def _delivered(self, records: list[StoredRecord]) -> list[StoredRecord]:
        """Leave out what readers do not see, and go back to what comes later."""
        store = self._store
        by_partition: dict[TopicPartition, list[StoredRecord]] = {}
        for record in records:
            by_partition.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        delivered: list[StoredRecord] = []
        for at, waiting in by_partition.items():
            upto = store.held.get(at)
            allowed = [record for record in waiting if upto is None or record.offset < upto]
            allowed = allowed[: self._conditions.deliverable(at, len(allowed))] if allowed else []
            if len(allowed) < len(waiting):
                try:
                    await self.inner.seek({at: waiting[len(allowed)].offset})
                except OffsetOutOfRangeError:
                    allowed = waiting  # the others have expired meanwhile: all come now
            delivered += [
                record
                for record in allowed
                if _MARKER not in record.headers and (at, record.offset) not in store.compacted
            ]
        return delivered

    async def commit(self, positions: Positions) -> None:
        await self._conditions.request("commit")
        self._store.change(wakes=False)
        await self.inner.commit(positions)
        await self._conditions.answer("commit")

    async def seek(self, positions: Positions) -> None:
        await self._conditions.request("read")
        await self.inner.seek(positions)

    async def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # no loop: a dead one's coroutines are closed
            await self.inner.close()
            self._store.wake()  # a poll that waits ends now, and peers take over


class SimulatedProducer:
    """Around a producer of the local log."""

    def __init__(self, store: Store, conditions: Calm, inner: Any) -> None:
        self.inner = cast(LocalProducer, inner)
        self._store = store
        self._conditions = conditions

    def transaction(self) -> "SimulatedTransaction":
        return SimulatedTransaction(self._store, self._conditions, self.inner.transaction())

    async def close(self) -> None:
        await self.inner.close()


class SimulatedTransaction:
    """Around a transaction of the local log."""

    def __init__(self, store: Store, conditions: Calm, inner: LocalTransaction) -> None:
        self._store = store
        self._conditions = conditions
        self._inner = inner
        self._markers: dict[TopicPartition, Record] = {}

    async def __aenter__(self) -> Self:
        await self._conditions.request("begin")
        await self._inner.__aenter__()
        return self

    async def append(self, records: Sequence[Record]) -> None:
        await self._conditions.request("add")
        await self._inner.append(records)
        counts = await self._store.local.topics()
        for record in records:
            number = record.partition
            if number is None:
                number = partition_for_key(record.key, counts[record.topic])
            self._markers[TopicPartition(record.topic, number)] = Record(
                record.topic, "", b"", {_MARKER: b""}, record.timestamp_ms, number
            )

    async def commit_positions(self, group: str, positions: Positions) -> None:
        await self._conditions.request("add")
        await self._inner.commit_positions(group, positions)

    async def save(self, scope: str, states: Mapping[str, bytes]) -> None:
        await self._conditions.request("add")
        await self._inner.save(scope, states)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._conditions.request("transaction")
                if self._store.markers and self._markers:
                    await self._inner.append(list(self._markers.values()))
                self._store.change(wakes=bool(self._markers))
        except BaseException as failed:
            await self._inner.__aexit__(type(failed), failed, failed.__traceback__)
            raise
        await self._inner.__aexit__(kind, error, trace)
        if kind is None:
            await self._conditions.answer("transaction")
