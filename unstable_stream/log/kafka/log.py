"""The event log on a Kafka cluster.

``KafkaLog.open("kafka://host:9092")`` only reads the location. The first coroutine connects, and binds the
log to its event loop. The log reads only committed records (``read_committed``). All replicas in sync
acknowledge every record written, and it is stored once even if it was sent several times.

An append or transaction is visible when it returns, with one exception: an earlier transaction of another
process may still be open in one of its partitions. Then readers see the later records when that one ends.

Batches that several tasks append are sent together; each is stored whole or not at all. Kafka stores a record
batch, which belongs to one partition, as a unit. So an append that fits into one record batch needs no
transaction, unless its records are so old that brokers could not recognise them if they were sent twice.
Every other append is written in a transaction, by a producer with a random id of its own for each open log.

A process that is killed inside such a transaction leaves it open. In every partition it wrote to, readers
then get nothing after its first record until the brokers abort it. They abort it after
:data:`_TIMEOUT_S`, and check this every
``transaction.abort.timed.out.transaction.cleanup.interval.ms`` (10 s by default). Therefore the time-out is
short. But it is longer than brokers need to replace a dead broker (9 s by default), so that a transaction
survives that. A transaction takes some hundredths of a second.
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Self

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka

from unstable_stream.errors import EventLogError, LogUnavailableError, UnstableStreamError
from unstable_stream.log.kafka.cluster import Brokers, Lazy, set_up_aiokafka
from unstable_stream.log.kafka.consumer import STANDSTILL_S, KafkaConsumer, KafkaParts
from unstable_stream.log.kafka.errors import FENCED, REFUSED, is_passing, translated
from unstable_stream.log.kafka.location import KafkaLocation, parse_location
from unstable_stream.log.kafka.producer import KafkaProducer, read_names, read_states
from unstable_stream.log.kafka.reading import KafkaOffsets, ShareAssignor, open_reader
from unstable_stream.log.kafka.records import MOST_BYTES_AT_ONCE, RecordBatch, pack, prepare
from unstable_stream.log.kafka.sending import Sender, open_sender
from unstable_stream.log.kafka.topics import KafkaTopics
from unstable_stream.log.port import Positions, Record, Start, TopicPartition, TopicSpec

_ATTEMPTS: Final = 3
_TIMEOUT_S: Final = 15.0
_DOING: Final = "append"


class Appender:
    """Stores prepared batches."""

    def __init__(self, cluster: Brokers, topics: KafkaTopics) -> None:
        self._cluster = cluster
        self._topics = topics
        name = f"unstable_stream-append-{secrets.token_hex(8)}"
        self._plain = Lazy(lambda: open_sender(cluster, _DOING), Sender.close)
        self._transactional = Lazy(lambda: open_sender(cluster, _DOING, name, _TIMEOUT_S), Sender.close)
        self._units = _Lane(self._store_units)
        self._transactions = _Lane(self._store_in_transaction)

    async def append(self, batch: RecordBatch) -> None:
        """Store a batch; afterwards the batch knows its offsets.

        If the call is cancelled, the batch may be stored or not. Raises the :class:`EventLogError` family.
        """
        await (self._units if batch.is_unit else self._transactions).store(batch)

    async def close(self) -> None:
        """Finish the batches in progress."""
        await self._units.finish()
        await self._transactions.finish()
        await self._plain.close()
        await self._transactional.close()

    async def _store_units(self, batches: Sequence[RecordBatch]) -> list[UnstableStreamError | None]:
        """Return the error of each batch, ``None`` if it was stored."""
        try:
            sender = await self._plain.get()
        except EventLogError as error:
            return [error] * len(batches)
        packed = pack(batches, self._topics, in_transaction=False)
        try:
            async with asyncio.timeout(self._cluster.delivery_timeout_s):
                outcomes = await sender.send(packed)
        except TimeoutError as error:
            await self._replace(self._plain, sender)
            return [self._translated(error)] * len(batches)
        if any(outcomes):
            await self._replace(self._plain, sender)  # its sequence numbers have a gap now
        failed = {
            id(batch): outcome
            for one, outcome in zip(packed, outcomes, strict=True)
            if outcome is not None
            for batch, _ in one.parts
        }
        errors: list[UnstableStreamError | None] = []
        for batch in batches:
            outcome = failed.get(id(batch))
            if isinstance(outcome, REFUSED) and len(batches) > 1:
                errors += await self._store_units([batch])  # let only the bad batch fail
            else:
                errors.append(None if outcome is None else self._translated(outcome))
        return errors

    async def _store_in_transaction(self, batches: Sequence[RecordBatch]) -> list[UnstableStreamError | None]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._cluster.delivery_timeout_s
        for attempt in range(1, _ATTEMPTS + 1):
            for batch in batches:
                batch.offsets.clear()
            committing = False
            try:
                sender = await self._transactional.get()
                packed = pack(batches, self._topics, in_transaction=True)
                try:
                    async with asyncio.timeout_at(deadline):
                        await sender.fill_transaction(packed)
                        committing = True
                        await sender.commit_transaction()
                except BaseException:
                    # The next producer has the same id, so the brokers abort the transaction that this one
                    # left open.
                    await self._replace(self._transactional, sender)
                    raise
            except EventLogError as error:  # there was no producer, so nothing was sent
                return [error] * len(batches)
            except TimeoutError as error:
                return [self._translated(error)] * len(batches)
            except (kafka.KafkaError, OSError) as error:
                decided = not committing or isinstance(error, FENCED)
                if not decided:
                    return [self._translated(error)] * len(batches)
                if attempt == _ATTEMPTS or not (isinstance(error, FENCED) or is_passing(error)):
                    if len(batches) == 1:
                        return [self._translated(error)]
                    alone = [await self._store_in_transaction([batch]) for batch in batches]
                    return [outcome for (outcome,) in alone]  # only the bad batch fails
            else:
                break
        return [None] * len(batches)

    def _translated(self, error: BaseException) -> UnstableStreamError:
        found = translated(error, self._cluster.location, _DOING)
        if isinstance(error, REFUSED):
            return found
        return LogUnavailableError(f"{found} What was appended may be stored or not.")

    async def _replace(self, holder: Lazy[Sender], sender: Sender) -> None:
        holder.take()
        await sender.close()


_Store = Callable[[Sequence[RecordBatch]], Awaitable[list[UnstableStreamError | None]]]


class _Lane:
    """Stores batches in the order of their arrival; those that arrive during a store are then stored
    together.
    """

    def __init__(self, store: _Store) -> None:
        self._store = store
        self._waiting: list[tuple[RecordBatch, asyncio.Future[None]]] = []
        self._running: asyncio.Task[None] | None = None

    async def store(self, batch: RecordBatch) -> None:
        """Store a batch. If the call is cancelled while the batch waits, the batch is not stored."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (batch, done)
        self._waiting.append(entry)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        try:
            await done
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    async def finish(self) -> None:
        """Wait until all batches are stored or have failed."""
        if self._running is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _run(self) -> None:
        together: list[tuple[RecordBatch, asyncio.Future[None]]] = []
        try:
            while self._waiting:
                together = self._take()
                storing = self._store([batch for batch, _ in together])
                (result,) = await asyncio.gather(storing, return_exceptions=True)
                outcomes: Sequence[BaseException | None] = (
                    [result] * len(together) if isinstance(result, BaseException) else result
                )  # the first is a bug, which the caller must see
                for (_, done), error in zip(together, outcomes, strict=True):
                    if done.done():
                        continue  # the call was cancelled meanwhile
                    if error is None:
                        done.set_result(None)
                    else:
                        done.set_exception(error)
        finally:
            self._running = None
            for _, done in (*together, *self._waiting):
                if not done.done():  # the event loop ends
                    done.cancel()

    def _take(self) -> list[tuple[RecordBatch, asyncio.Future[None]]]:
        size = count = 0
        for batch, _ in self._waiting:
            size += batch.size
            if count and size > MOST_BYTES_AT_ONCE:
                break
            count += 1
        taken = self._waiting[:count]
        del self._waiting[:count]
        return taken


class KafkaLog:
    """Implements :class:`~unstable_stream.log.port.EventLog` on Kafka."""

    def __init__(self, cluster: Brokers, session_timeout_s: float, standstill_s: float) -> None:
        """Store the parts; use :meth:`open` instead."""
        self._cluster = cluster
        self._standstill_s = standstill_s
        self._session_timeout_s = session_timeout_s
        self._parts = KafkaParts(cluster, KafkaTopics(cluster), KafkaOffsets(cluster))
        self._appender = Appender(cluster, self._parts.topics)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: set[KafkaConsumer | KafkaProducer] = set()
        self._closed = False

    @classmethod
    def open(
        cls,
        location: str | KafkaLocation,
        *,
        environ: Mapping[str, str] | None = None,
        connect_timeout_s: float = 15.0,
        delivery_timeout_s: float = 60.0,
        session_timeout_s: float = 10.0,
        standstill_s: float = STANDSTILL_S,
    ) -> Self:
        """Open the log at ``location`` without sending anything.

        Args:
            location: see :mod:`~unstable_stream.log.kafka.location`.
            environ: completes the location; by default the environment of this process.
            connect_timeout_s: seconds that the first request waits for a broker.
            delivery_timeout_s: seconds that later requests wait for brokers that restart or moved.
            session_timeout_s: seconds of silence after which a group member loses its partitions. A busy
                event loop makes a member silent.
            standstill_s: seconds after which a consumer that reads none of the records that wait for it opens
                its connections anew; it takes half as long again to be certain.

        Raises:
            ConfigError: the location is malformed, or its certificates cannot be read.
        """
        if isinstance(location, str):
            location = parse_location(location, os.environ if environ is None else environ)
        set_up_aiokafka()
        cluster = Brokers(location, connect_timeout_s, delivery_timeout_s)
        return cls(cluster, session_timeout_s, standstill_s)

    def __repr__(self) -> str:
        return f"<KafkaLog {self._cluster.location}>"

    def _use(self) -> KafkaParts:
        """Return the parts, in the event loop of the first use."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise EventLogError("this log is closed; open it again to go on.")
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise EventLogError("this log was used in another event loop: open one for each event loop.")
        return self._parts

    async def log_id(self) -> str:
        """Return the cluster's id."""
        return await self._use().topics.cluster_id()

    @property
    def compacts(self) -> bool:
        """Return true: brokers clean topics that have the policy ``compact``."""
        return True

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create missing topics; existing ones keep their settings.

        Raises :class:`EventLogError` if an existing one has another number of partitions.
        """
        await self._use().topics.create(specs)

    async def topics(self) -> Mapping[str, int]:
        """Return the number of partitions by topic name, without Kafka's own topics."""
        return await self._use().topics.partitions()

    async def topic_settings(self) -> Mapping[str, TopicSpec]:
        """Return the topics with their present settings."""
        return await self._use().topics.settings()

    async def alter_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Give existing topics the settings of their spec; raises :class:`UnknownTopicError`."""
        await self._use().topics.alter(specs)

    async def append(self, records: Sequence[Record]) -> list[tuple[TopicPartition, int]]:
        """Append a batch atomically and durably; return partition and offset of each, in order.

        Batches of several tasks are sent together; each is stored whole or not at all; see the
        top of this module.

        Raises:
            UnknownTopicError: a topic or forced partition does not exist.
            RecordTooLargeError: a record exceeds its topic's limit.
            LogUnavailableError: the brokers did not accept the batch in time; it may be stored or not.
        """
        parts = self._use()
        if not records:
            return []
        batch = await prepare(records, parts.topics)
        await self._appender.append(batch)
        return batch.places()

    async def producer(self, producer_id: str) -> KafkaProducer:
        """Open a transactional producer and fence earlier ones with the same id."""
        parts = self._use()
        opened = await open_sender(self._cluster, f"open producer {producer_id!r}", producer_id)
        producer = KafkaProducer(self._cluster, parts.topics, opened, producer_id, self._open.discard)
        self._open.add(producer)
        return producer

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, start: Start = "beginning"
    ) -> KafkaConsumer:
        """Open a consumer; it joins its group in its first poll.

        Raises :class:`UnknownTopicError`.
        """
        parts = self._use()
        found = await parts.topics.find(topics, reload=True)
        whole = [TopicPartition(name, n) for name, topic in found.items() for n in range(topic.partitions)]
        begins = await parts.offsets.start(whole, start) if group is None else {}

        async def read() -> tuple[AIOKafkaConsumer, ShareAssignor]:
            assignor = ShareAssignor()
            return await open_reader(self._cluster, group, self._session_timeout_s, assignor), assignor

        consumer = KafkaConsumer(
            parts, *await read(), list(found), group, start, self._open.discard, read, self._standstill_s
        )
        self._open.add(consumer)
        if group is None:
            consumer.read_all(begins)
        return consumer

    async def beginning_offsets(self, topic: str) -> Positions:
        """Return the offset of the first retained record of each partition."""
        return await self._use().offsets.beginning(await self._partitions(topic))

    async def end_offsets(self, topic: str) -> Positions:
        """Return the last stable offsets: no reader goes beyond the first open transaction."""
        return await self._use().offsets.end(await self._partitions(topic))

    async def high_watermarks(self, topic: str) -> Positions:
        """Return the offset after the last record of each partition, in an open transaction or behind it."""
        return await self._use().offsets.high_watermark(await self._partitions(topic))

    async def offsets_for_time(self, topic: str, timestamp_ms: int) -> Positions:
        """Return the first offset with a timestamp at or after the given one, for each partition; the end if
        none.
        """
        return await self._use().offsets.for_time(await self._partitions(topic), timestamp_ms)

    async def _partitions(self, topic: str) -> list[TopicPartition]:
        found = await self._use().topics.find([topic])
        return [TopicPartition(topic, number) for number in range(found[topic].partitions)]

    async def groups(self) -> Sequence[str]:
        """Return the names of all groups that have committed positions, sorted."""
        return await self._use().topics.groups()

    async def committed_positions(self, group: str) -> Positions:
        """Return all positions that a group has committed."""
        return await self._use().topics.committed(group)

    async def saved(self, scope: str, names: Collection[str] | None = None) -> Mapping[str, bytes]:
        """Return the saved states of a scope, or those of these names."""
        return await read_states(self, self._use().topics, scope, names)

    async def saved_names(self) -> Mapping[str, Collection[str]]:
        """Return the names of all saved states, by scope: it reads the whole topic."""
        return await read_names(self, self._use().topics)

    async def close(self) -> None:
        """Close all consumers and producers, finish appends in progress and disconnect. A second call does
        nothing.
        """
        if self._closed:
            return
        try:
            for opened in list(self._open):
                await opened.close()
            await self._appender.close()
        finally:
            self._closed = True
            await self._parts.offsets.close()
            await self._parts.topics.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
