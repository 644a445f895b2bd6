"""Keep the event log in one SQLite file, for any number of processes of one host, without a server.

``LocalLog.open(path)`` opens it, from any thread and without an event loop; all else is a coroutine.
Reads and writes run on two threads of the log's own, so the event loop never waits for the disk.

A cancelled :meth:`LocalLog.append` or commit may have been stored or not; when the cancellation is raised,
that is settled. Topics with the clean-up policy ``compact`` keep every record here.
"""

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from unstable_stream.errors import FencedError
from unstable_stream.log.handles import ProducerHandle, TransactionHandle
from unstable_stream.log.local import records as local_records
from unstable_stream.log.local.consumer import LocalConsumer, LocalParts, start_offset
from unstable_stream.log.local.database import (
    Partition,
    Synchronous,
    TopicCatalogue,
    alter_topics,
    create_topics,
    open_database,
    topic_settings,
)
from unstable_stream.log.local.groups import (
    Member,
    commit_for_group,
    committed_positions,
    current_process,
    forget_groups,
    groups,
    save,
    saved,
    saved_names,
)
from unstable_stream.log.local.records import AppendBatch, Ends, RowCodec
from unstable_stream.log.local.threads import ReadThread, WriteThread
from unstable_stream.log.local.wakeups import Doorbell, Ringer, wakeup_directory
from unstable_stream.log.port import Positions, Record, Start, TopicPartition, TopicSpec


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
    """Implements :class:`~unstable_stream.log.port.Transaction`.

    It is kept in memory until it commits. Then one SQLite transaction checks the producer's epoch and stores
    the positions, the states and the records.
    """

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
        batch = AppendBatch(records, self._log.topics, self._log.write_codec, self._log.ends)
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


class LocalLog:
    """Implements :class:`~unstable_stream.log.port.EventLog` on a SQLite file."""

    def __init__(
        self, log: LocalParts, ringer: Ringer, session_timeout_s: float, max_poll_interval_s: float
    ) -> None:
        """Use :meth:`open`."""
        self._log = log
        self._ringer = ringer
        self._session_timeout_s = session_timeout_s
        self._max_poll_interval_s = max_poll_interval_s
        self._consumers: set[LocalConsumer] = set()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "FULL",
        busy_timeout_s: float = 10.0,
        session_timeout_s: float = 5.0,
        max_poll_interval_s: float = 300.0,
    ) -> Self:
        """Open the log at ``path``; a file that does not exist is created, with its directory.

        Args:
            path: the SQLite file, on a disk of this host.
            synchronous: ``FULL`` survives power loss, ``NORMAL`` only the death of processes.
            busy_timeout_s: how long a write waits for writers of other processes.
            session_timeout_s: a group member silent for so long loses its partitions, where its process
                cannot be observed (other container, no ``/proc``). A dead process of this host loses them
                as soon as another member looks, a live one after ``max_poll_interval_s`` without a poll.
            max_poll_interval_s: see above.

        Raises:
            EventLogError: not an event log, a newer schema, or not accessible.
            LogUnavailableError: stayed locked.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        place = os.path.realpath(path)  # SQLite names its side files after the real one
        directory = wakeup_directory(place)
        ringer = Ringer(directory)
        ends: Ends = {}
        writer = WriteThread(
            f"log-writer {place}",
            place,
            lambda: open_database(place, synchronous, busy_timeout_s, writes=True),
            busy_timeout_s,
            ringer.ring,
            ends.clear,
        )
        reader = ReadThread(
            f"log-reader {place}",
            place,
            lambda: open_database(place, synchronous, busy_timeout_s, writes=False),
        )
        try:
            writer.start()
            reader.start()
        except BaseException:
            writer.abandon()
            ringer.close()
            raise
        parts = LocalParts(
            path=place,
            reader=reader,
            writer=writer,
            topics=TopicCatalogue(),
            read_codec=RowCodec(busy_timeout_s),
            write_codec=RowCodec(busy_timeout_s),
            ends=ends,
            doorbell=Doorbell(directory),
        )
        return cls(parts, ringer, session_timeout_s, max_poll_interval_s)

    async def log_id(self) -> str:
        """Return what tells this log from any other; a copy of the file keeps it."""
        return await self._log.reader.run(_log_id)

    @property
    def compacts(self) -> bool:
        """Return that every record is kept, whatever a topic's policy."""
        return False

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create those that do not exist; existing ones keep their settings.

        Raises :class:`EventLogError` if an existing one has another number of partitions.
        """
        await self._log.writer.run(lambda connection: create_topics(connection, specs))

    async def topics(self) -> Mapping[str, int]:
        """Topic name to number of partitions."""
        found = await self._log.reader.run(self._log.topics.reload)
        return {name: len(topic.partitions) for name, topic in found.items()}

    async def topic_settings(self) -> Mapping[str, TopicSpec]:
        """Return the topics with the settings they have now."""
        return await self._log.reader.run(topic_settings)

    async def alter_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Give existing topics the settings of their spec; raises :class:`UnknownTopicError`."""
        await self._log.writer.run(lambda connection: alter_topics(connection, specs))

    async def append(self, records: Sequence[Record]) -> list[tuple[TopicPartition, int]]:
        """Append a batch atomically and durably; return partition and offset of each, in order.

        Batches that several tasks append at the same time are committed together, each whole or not at all.

        Raises:
            UnknownTopicError: a topic or forced partition does not exist.
            RecordTooLargeError: a record exceeds its topic's limit.
            LogUnavailableError: another process kept the write lock past the deadline.
        """
        if not records:
            return []
        batch = AppendBatch(records, self._log.topics, self._log.write_codec, self._log.ends)
        return await self._log.writer.run(batch.write, batch.prepare, wakes=lambda _: True)

    async def producer(self, producer_id: str) -> LocalProducer:
        """Open a transactional producer, fencing off any earlier one with the same id."""
        epoch = await self._log.writer.run(lambda connection: next_epoch(connection, producer_id))
        return LocalProducer(self._log, producer_id, epoch)

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, start: Start = "beginning"
    ) -> LocalConsumer:
        """Open a consumer; a member of a group joins it in its first poll.

        Raises :class:`UnknownTopicError`.
        """

        def begin(connection: sqlite3.Connection) -> list[tuple[Partition, int]]:
            partitions = [
                partition
                for name in dict.fromkeys(topics)
                for partition in self._log.topics.find(connection, name).partitions
            ]
            if group is not None:
                return []
            return [(partition, start_offset(connection, partition, start)) for partition in partitions]

        whole = await self._log.reader.run(begin)
        member = None
        if group is not None:
            member = Member(
                group=group,
                member_id=secrets.token_hex(8),
                topics=tuple(dict.fromkeys(topics)),
                process=current_process(),
                session_timeout_ms=round(self._session_timeout_s * 1000),
                max_poll_interval_ms=round(self._max_poll_interval_s * 1000),
            )
        consumer = LocalConsumer(self._log, start, member, whole, self._consumers.discard)
        self._consumers.add(consumer)
        return consumer

    async def beginning_offsets(self, topic: str) -> Positions:
        """Offset of the first retained record of each partition."""
        return await self._offsets(topic, local_records.begin_offset)

    async def end_offsets(self, topic: str) -> Positions:
        """Offset after the last committed record of each partition."""
        return await self._offsets(topic, local_records.end_offset)

    async def high_watermarks(self, topic: str) -> Positions:
        """Return the ends: nothing is stored before it is committed."""
        return await self.end_offsets(topic)

    async def offsets_for_time(self, topic: str, timestamp_ms: int) -> Positions:
        """First offset of each partition with a timestamp at or after the given one; the end if none."""
        return await self._offsets(
            topic, lambda connection, number: local_records.offset_for_time(connection, number, timestamp_ms)
        )

    async def _offsets(self, topic: str, find: Callable[[sqlite3.Connection, int], int]) -> Positions:
        def look(connection: sqlite3.Connection) -> dict[TopicPartition, int]:
            partitions = self._log.topics.find(connection, topic).partitions
            return {partition.at: find(connection, partition.partition_id) for partition in partitions}

        return await self._log.reader.run(look)

    async def groups(self) -> Sequence[str]:
        """Return the names of all groups that have committed positions, sorted."""
        return await self._log.reader.run(groups)

    async def committed_positions(self, group: str) -> Positions:
        """All positions a group has committed."""
        return await self._log.reader.run(lambda connection: committed_positions(connection, group))

    async def saved(self, scope: str, names: Collection[str] | None = None) -> Mapping[str, bytes]:
        """Return the saved states of a scope, or those of these names."""
        return await self._log.reader.run(lambda connection: saved(connection, scope, names))

    async def saved_names(self) -> Mapping[str, Collection[str]]:
        """Return the names of all saved states, by scope."""
        return await self._log.reader.run(saved_names)

    async def delete_before(self, positions: Positions) -> None:
        """Delete the records before these offsets; their space is used again.

        Raises :class:`OffsetOutOfRangeError` for an offset beyond the end, :class:`UnknownTopicError`.
        """
        for at, offset in positions.items():

            def delete_some(
                connection: sqlite3.Connection, at: TopicPartition = at, offset: int = offset
            ) -> bool:
                partition = self._log.topics.find_partition(connection, at)
                self._log.ends.pop(partition.partition_id, None)  # an empty table counts anew
                return local_records.delete_before(connection, partition, offset)

            while await self._log.writer.run(delete_some):
                pass

    async def erase(self, source: bytes, kept: Collection[str] = ()) -> None:
        """Erase the records whose header ``ce_source`` this is; their space is used again.

        Readers pass over them. A run that is erased must be over; topics in ``kept`` stay as they are.
        """
        of_layout = await self._log.reader.run(local_records.layouts_by_source)
        layouts = [number for number, each in of_layout.items() if each == source]
        topics = await self._log.reader.run(self._log.topics.reload)
        for topic in topics.values() if layouts else ():
            for partition in () if topic.name in kept else topic.partitions:
                begin: int | None = 0
                while begin is not None:
                    some = partial(
                        local_records.erase, number=partition.partition_id, layouts=layouts, begin=begin
                    )
                    begin = await self._log.writer.run(some)

    async def forget_groups(self, names: Collection[str]) -> None:
        """Forget members and positions of groups that nobody is in any more."""
        await self._log.writer.run(lambda connection: forget_groups(connection, names))

    async def sizes(self) -> Mapping[tuple[str, bytes], tuple[int, int]]:
        """Return the number of records and their bytes, by topic and header ``ce_source``."""

        def measure(connection: sqlite3.Connection) -> dict[tuple[str, bytes], tuple[int, int]]:
            sources = local_records.layouts_by_source(connection)
            found: dict[tuple[str, bytes], tuple[int, int]] = {}
            for topic in self._log.topics.reload(connection).values():
                for partition in topic.partitions:
                    for layout, records, size in local_records.sizes(connection, partition.partition_id):
                        key = topic.name, sources.get(layout, b"")
                        known = found.get(key, (0, 0))
                        found[key] = known[0] + records, known[1] + size
            return found

        return await self._log.reader.run(measure)

    async def shrink(self) -> None:
        """Give the space of deleted records back to the disk: SQLite writes the file anew (``VACUUM``).

        It needs as much free disk as the new file takes, and others wait until it is done.

        Raises:
            LogUnavailableError: another process is using the log.
            EventLogError: the disk is full; the file stays as it was.
        """

        def vacuum(connection: sqlite3.Connection) -> None:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

        await self._log.writer.run_outside(vacuum)

    async def close(self) -> None:
        """Close all consumers, finish what is under way and close the file. Idempotent."""
        async with contextlib.AsyncExitStack() as parts:  # also where the closing of one of them is cancelled
            parts.callback(self._ringer.close)
            parts.push_async_callback(self._log.writer.close)
            parts.push_async_callback(self._log.reader.close)
            parts.callback(self._log.doorbell.close)
            for consumer in list(self._consumers):
                await consumer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _log_id(connection: sqlite3.Connection) -> str:
    (log_id,) = connection.execute("SELECT log_id FROM identity").fetchone()
    return str(log_id)
