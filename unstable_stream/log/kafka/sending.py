"""Sending through aiokafka's producer: without and with a transaction, and giving up on what hangs.

Three things need more than aiokafka's public interface, which is why its version is pinned closely:

- A commit returns when the transaction is decided, before its markers are written, so that readers do not
  see it yet and the next transaction is turned away for a while (aiokafka then waits 20 to 100 ms). Asking
  to commit a second time is answered with success once the markers are there: :func:`commit_transaction`.
- An idempotent producer never gives up, and its ``stop`` waits for what it has not sent: :func:`discard`.
- One transaction can commit positions of several groups only if it is told to forget that it has one.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.producer.transaction_manager import TransactionResult, TransactionState
from aiokafka.protocol.transaction import EndTxnRequest
from aiokafka.structs import TopicPartition as KafkaPartition

from unstable_stream.log.kafka.cluster import Cluster
from unstable_stream.log.kafka.records import Packed, waves
from unstable_stream.log.port import Positions

__all__ = [
    "abort_transaction",
    "close_producer",
    "commit_transaction",
    "discard",
    "fill_transaction",
    "open_producer",
    "send",
]

_PACK_LIMIT: Final = 2**30  # we close packs ourselves, by the limit of their topic
_MARKERS_TIMEOUT_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.05
_LAST_WORDS_S: Final = 1.0


async def open_producer(
    cluster: Cluster, doing: str, transactional_id: str | None = None, transaction_timeout_s: float = 60.0
) -> AIOKafkaProducer:
    """Start a producer: acknowledged by all replicas in sync, idempotent, compressed.

    With a transactional id, an open transaction of an earlier producer is aborted and that one fenced off.

    Raises the :class:`~unstable_stream.errors.EventLogError` family.
    """
    producer: AIOKafkaProducer | None = None

    async def start() -> AIOKafkaProducer:
        nonlocal producer
        producer = AIOKafkaProducer(
            **cluster.settings(),
            acks="all",
            enable_idempotence=True,
            compression_type="zstd",
            max_batch_size=_PACK_LIMIT,
            transactional_id=transactional_id,
            transaction_timeout_ms=round(transaction_timeout_s * 1000),
        )
        try:
            await producer.start()
        except BaseException:
            await discard(producer)
            raise
        return producer

    await cluster.start(start, doing)
    assert producer is not None
    return producer


async def send(producer: AIOKafkaProducer, packed: Sequence[Packed]) -> list[BaseException | None]:
    """Send record batches; return for each what went wrong, if anything. Notes the offsets of the others."""
    outcomes: list[BaseException | None] = []
    for wave in waves(packed):
        results = await asyncio.gather(*(_send_one(producer, one) for one in wave), return_exceptions=True)
        outcomes += [result if isinstance(result, BaseException) else None for result in results]
    return outcomes


async def _send_one(producer: AIOKafkaProducer, packed: Packed) -> None:
    delivered = await producer.send_batch(packed.builder, packed.at.topic, partition=packed.at.partition)
    stored = await delivered
    packed.note_offsets(stored.offset)


async def fill_transaction(
    producer: AIOKafkaProducer, packed: Sequence[Packed], positions: Mapping[str, Positions]
) -> None:
    """Begin a transaction and send record batches and positions of groups in it.

    Raises aiokafka's errors; nothing of it can become visible then, unless it is committed nevertheless.
    """
    await producer.begin_transaction()
    for outcome in await send(producer, packed):
        if outcome is not None:
            raise outcome
    for group, of_group in positions.items():
        if of_group:
            producer._txn_manager._txn_consumer_group = None
            offsets = {KafkaPartition(*at): offset for at, offset in of_group.items()}
            await producer.send_offsets_to_transaction(offsets, group)


async def commit_transaction(producer: AIOKafkaProducer) -> None:
    """Commit, and wait until everybody can see it.

    Raises aiokafka's errors: fenced ones if it was not committed, with others that is not known.
    """
    wrote = not producer._txn_manager.is_empty_transaction() or producer._txn_manager.partitions_to_add()
    await producer.commit_transaction()
    if wrote:
        with contextlib.suppress(kafka.KafkaError, OSError):  # it is decided: whatever fails, it will be seen
            async with asyncio.timeout(_MARKERS_TIMEOUT_S):
                await _wait_for_markers(producer)


async def abort_transaction(producer: AIOKafkaProducer) -> None:
    """Abort an open transaction if the brokers answer soon; else they do so themselves after its time-out."""
    if producer._txn_manager.state in (TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR):
        with contextlib.suppress(kafka.KafkaError, OSError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await producer.abort_transaction()


async def _wait_for_markers(producer: AIOKafkaProducer) -> None:
    manager, sender = producer._txn_manager, producer._sender
    pause_s = _FIRST_PAUSE_S
    while True:
        node = await sender._find_coordinator(CoordinationType.TRANSACTION, manager.transactional_id)
        again = EndTxnRequest(
            transactional_id=manager.transactional_id,
            producer_id=manager.producer_id,
            producer_epoch=manager.producer_epoch,
            transaction_result=TransactionResult.COMMIT,
        )
        answer = await producer.client.send(node, again, group=ConnectionGroup.COORDINATION)
        error = kafka.for_code(answer.error_code)
        if error is not kafka.ConcurrentTransactions and not error.retriable:
            return  # written, or a later producer with this id has begun, which waits for the markers too
        if error is not kafka.ConcurrentTransactions:
            sender._coordinator_dead(CoordinationType.TRANSACTION)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def close_producer(producer: AIOKafkaProducer) -> None:
    """Close a producer that has nothing to send any more."""
    try:
        async with asyncio.timeout(_LAST_WORDS_S):
            await producer.stop()
    except TimeoutError:
        await discard(producer)


async def discard(producer: AIOKafkaProducer) -> None:
    """End a producer at once. What it was sending may be stored or not."""
    producer._closed = True
    sender, accumulator, manager = producer._sender, producer._message_accumulator, producer._txn_manager
    for _ in range(2):  # the first cancellation of the sender's main task makes it wait for the others
        tasks = _tasks_of(sender)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_WORDS_S)
    batches = [batch for queue in accumulator._batches.values() for batch in queue]
    batches += accumulator._pending_batches
    accumulator._closed = True
    accumulator.fail_all(kafka.ProducerClosed())
    futures = [future for batch in batches for future in (batch.future, batch._drain_waiter)]
    for future in (*futures, manager._transaction_waiter):
        if future is not None and future.done() and not future.cancelled():
            future.exception()  # taken note of: nobody waits for it any more
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WORDS_S):
            await producer.client.close()


def _tasks_of(sender: Any) -> list[asyncio.Task[Any]]:
    """Return the tasks that run a sender's methods; it keeps no list of them."""
    tasks = []
    for task in asyncio.all_tasks():
        frame = getattr(task.get_coro(), "cr_frame", None)
        if frame is not None and frame.f_locals.get("self") is sender:
            tasks.append(task)
    return tasks
