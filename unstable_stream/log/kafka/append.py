"""Append batches. Batches of several tasks are sent together; each is stored whole or not at all.

Kafka stores a record batch, which belongs to one partition, as a unit. So an append that fits into one record
batch needs no transaction, unless its records are so old that brokers could not recognise them if they were
sent twice. Every other append is written in a transaction, by a producer with a random id of its own for each
open log.

A process that is killed inside such a transaction leaves it open. In every partition it wrote to, readers
then get nothing after its first record until the brokers abort it. They abort it after
:data:`_TIMEOUT_S`, and check this every
``transaction.abort.timed.out.transaction.cleanup.interval.ms`` (10 s by default). Therefore the time-out is
short. But it is longer than brokers need to replace a dead broker (9 s by default), so that a transaction
survives that. A transaction takes some hundredths of a second.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiokafka import errors as kafka

from unstable_stream.errors import EventLogError, LogUnavailableError, UnstableStreamError
from unstable_stream.log.kafka.cluster import Brokers, Lazy
from unstable_stream.log.kafka.errors import FENCED, REFUSED, is_passing, translated
from unstable_stream.log.kafka.records import MOST_BYTES_AT_ONCE, RecordBatch, pack
from unstable_stream.log.kafka.sending import Sender, open_sender
from unstable_stream.log.kafka.topics import KafkaTopics

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
