"""A producer that sends one request after another. It has no queue and no task: the caller decides how long
to wait, and closing its connections ends everything.

aiokafka's own producer sends in the background, never gives up a numbered batch, and returns from a commit
before readers see the records. This producer uses aiokafka's client, requests and record batches, and follows
Kafka's protocol for producers (KIP-98):

1. ``InitProducerId`` gives it an id and an epoch. A later producer with the same transactional id fences it.
2. Each record batch has the number of its first record in its partition. A batch is sent until a broker
   answers, always with the same number, and one at a time for each partition. So brokers store it once.
3. In a transaction, partitions and the group are added before anything is sent to them; ``EndTxn`` commits or
   aborts.
4. The request to commit is repeated until the answer is not ``CONCURRENT_TRANSACTIONS``. Then the markers are
   written, and all readers can see the records.

Brokers abort a transaction that a killed producer left open, or that outlasted its time-out.

Kafka 4.3 was seen to leave out the marker in a partition that has no leader at that moment. That needs a
partition with a single replica; docs/explanation/guarantees.md says what to do.
"""

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aiokafka import errors as kafka
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from aiokafka.structs import TopicPartition as KafkaPartition

from unstable_stream.log.kafka.cluster import Brokers
from unstable_stream.log.kafka.errors import is_passing
from unstable_stream.log.kafka.records import Packed, waves
from unstable_stream.log.port import Positions, TopicPartition

_ALL_REPLICAS: Final = -1
_STORING_MS: Final = 20_000  # a broker waits this long for the other replicas
_MARKERS_TIMEOUT_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.05
_LAST_WORDS_S: Final = 1.0
_LARGEST_NUMBER: Final = 2**31 - 1

_ELSEWHERE: Final = (kafka.CoordinatorNotAvailableError, kafka.NotCoordinatorError)
_BUSY: Final = (
    *_ELSEWHERE,
    kafka.ConcurrentTransactions,
    kafka.CoordinatorLoadInProgressError,
    kafka.OperationNotAttempted,
)


class Sender:
    """A Kafka producer for one task at a time. After an error it must be closed."""

    def __init__(self, client: AIOKafkaClient, transactional_id: str | None, transaction_timeout_s: float):
        """Take a connected ``client``."""
        self._client = client
        self._transactional_id = transactional_id
        self._transaction_timeout_ms = round(transaction_timeout_s * 1000)
        self._coordinators: dict[tuple[CoordinationType, str], int] = {}
        self._producer_id = -1
        self._epoch = -1
        self._numbers: defaultdict[TopicPartition, int] = defaultdict(int)
        self._decided = True

    async def begin(self) -> None:
        """Get a producer's id; this aborts an open transaction of an earlier producer with the same id."""
        request = InitProducerIdRequest(self._transactional_id, self._transaction_timeout_ms)
        if self._transactional_id is None:
            answer = await self._client.send(self._client.get_random_node(), request)
            if answer.error_code:
                raise kafka.for_code(answer.error_code)()
        else:
            answer = await self._ask_coordinator(request, lambda answer: [answer.error_code])
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch

    async def close(self) -> None:
        """Disconnect at once. Brokers may carry out a request without an answer, or not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._client.close()

    # -- records ----------------------------------------------------------------------------------

    async def send(self, packed: Sequence[Packed]) -> list[BaseException | None]:
        """Send record batches until brokers have answered for each; set the offsets of stored ones.

        Returns the error of each batch that brokers refused.
        """
        outcomes: dict[int, BaseException] = {}
        for topic in dict.fromkeys(one.at.topic for one in packed):
            # Otherwise the client would ask for the leaders of all topics of the cluster.
            await self._client.add_topic(topic)
        for wave in waves(packed):
            waiting: defaultdict[TopicPartition, deque[Packed]] = defaultdict(deque)
            for one in wave:
                waiting[one.at].append(one)
            pause_s = _FIRST_PAUSE_S
            while waiting:
                answered = await self._send_first_of_each(waiting, outcomes)
                if not answered:
                    await self._client.force_metadata_update()
                    await asyncio.sleep(pause_s)
                pause_s = _FIRST_PAUSE_S if answered else min(2 * pause_s, _LONGEST_PAUSE_S)
        return [outcomes.get(id(one)) for one in packed]

    async def _send_first_of_each(
        self, waiting: dict[TopicPartition, deque[Packed]], outcomes: dict[int, BaseException]
    ) -> bool:
        """Send the first batch of each partition to its leader; return true if none must be sent again."""
        of_leader: defaultdict[int, list[Packed]] = defaultdict(list)
        leaderless = False
        for at, queue in waiting.items():
            leader = self._client.cluster.leader_for_partition(KafkaPartition(*at))
            if leader is None or leader < 0:
                leaderless = True
            else:
                of_leader[leader].append(queue[0])
        answers = await asyncio.gather(*(self._produce(leader, some) for leader, some in of_leader.items()))
        again = leaderless
        for one, error in (pair for answer in answers for pair in answer):
            if error is not None and is_passing(error):
                again = True
                continue
            queue = waiting[one.at]
            queue.popleft()
            if not queue:
                del waiting[one.at]
            if error is not None:
                outcomes[id(one)] = error
            else:
                number = self._numbers[one.at] + one.count
                self._numbers[one.at] = number % (_LARGEST_NUMBER + 1)
        return not again

    async def _produce(self, leader: int, some: Sequence[Packed]) -> list[tuple[Packed, Exception | None]]:
        by_topic: defaultdict[str, list[tuple[int, bytearray]]] = defaultdict(list)
        for one in some:
            data = one.data(self._producer_id, self._epoch, self._numbers[one.at])
            by_topic[one.at.topic].append((one.at.partition, data))
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            required_acks=_ALL_REPLICAS,
            timeout=_STORING_MS,
            topics=list(by_topic.items()),
        )
        try:
            answer = await self._client.send(leader, request)
        except (kafka.KafkaError, OSError) as error:
            return [(one, error) for one in some]
        results = {
            TopicPartition(topic, partition): (code, offset)
            for topic, partitions in answer.topics
            for partition, code, offset, *_ in partitions
        }
        judged: list[tuple[Packed, Exception | None]] = []
        for one in some:
            code, offset = results[one.at]
            if not code:
                one.note_offsets(offset)
            judged.append((one, kafka.for_code(code)() if code else None))
        return judged

    # -- transactions -----------------------------------------------------------------------------

    async def fill_transaction(
        self, packed: Sequence[Packed], group: str = "", positions: Positions | None = None
    ) -> None:
        """Begin a transaction and send record batches and positions of a group in it.

        Raises aiokafka's errors; then nothing of it becomes visible unless the caller commits it.
        """
        self._decided = not packed and not positions
        if packed:
            named = _by_topic((at, at.partition) for at in dict.fromkeys(one.at for one in packed))
            await self._ask_coordinator(
                AddPartitionsToTxnRequest(*self._identity(), named), _codes_of_partitions
            )
        both = [asyncio.create_task(self._send_or_raise(packed))]
        if positions:
            both.append(asyncio.create_task(self._send_positions(group, positions)))
        try:
            await asyncio.gather(*both)
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)

    async def _send_or_raise(self, packed: Sequence[Packed]) -> None:
        for outcome in await self.send(packed):
            if outcome is not None:
                raise outcome

    async def _send_positions(self, group: str, positions: Positions) -> None:
        transactional_id, producer_id, epoch = self._identity()
        await self._ask_coordinator(
            AddOffsetsToTxnRequest(transactional_id, producer_id, epoch, group),
            lambda answer: [answer.error_code],
        )
        offsets = _by_topic((at, (at.partition, offset, "")) for at, offset in positions.items())
        store = TxnOffsetCommitRequest(transactional_id, group, producer_id, epoch, offsets)
        await self._ask_coordinator(store, _codes_of_partitions, CoordinationType.GROUP, group)

    async def commit_transaction(self) -> None:
        """Commit, and wait until all readers can see the records.

        Raises aiokafka's errors. After a fencing error nothing was committed; after others this is unknown.
        """
        if self._decided:
            return
        await self._end(commit=True)
        self._decided = True
        with contextlib.suppress(kafka.KafkaError, OSError):  # the records become visible whatever fails now
            async with asyncio.timeout(_MARKERS_TIMEOUT_S):
                await self._end(commit=True)

    async def abort_transaction(self) -> None:
        """Abort an open transaction if brokers answer soon; else they abort it after its time-out."""
        if not self._decided:
            with contextlib.suppress(kafka.KafkaError, OSError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await self._end(commit=False)

    async def _end(self, *, commit: bool) -> None:
        await self._ask_coordinator(
            EndTxnRequest(*self._identity(), commit), lambda answer: [answer.error_code]
        )

    def _identity(self) -> tuple[str, int, int]:
        assert self._transactional_id is not None
        return self._transactional_id, self._producer_id, self._epoch

    async def _ask_coordinator(
        self,
        request: Any,
        codes: Callable[[Any], Iterable[int]],
        kind: CoordinationType = CoordinationType.TRANSACTION,
        key: str | None = None,
    ) -> Any:
        """Return the answer to a request that may be repeated; repeat it until there is an answer.

        Raises those errors of aiokafka that a repetition cannot solve.
        """
        key = key or self._transactional_id
        assert key is not None
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                node = self._coordinators.get((kind, key))
                if node is None:
                    node = self._coordinators[kind, key] = await self._client.coordinator_lookup(kind, key)
                answer = await self._client.send(node, request, group=ConnectionGroup.COORDINATION)
            except (kafka.KafkaError, OSError) as error:
                if not is_passing(error):
                    raise
                self._coordinators.pop((kind, key), None)
                await self._client.force_metadata_update()
            else:
                errors = [kafka.for_code(code) for code in codes(answer) if code]
                for found in errors:
                    if not issubclass(found, _BUSY) and not found.retriable:
                        raise found()
                if not errors:
                    return answer
                if any(issubclass(found, _ELSEWHERE) for found in errors):
                    self._coordinators.pop((kind, key), None)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def open_sender(
    cluster: Brokers, doing: str, transactional_id: str | None = None, transaction_timeout_s: float = 60.0
) -> Sender:
    """Connect a producer: all replicas in sync acknowledge its batches, and each batch is stored once.

    With a transactional id, the brokers abort an open transaction of an earlier producer and fence it.

    Raises the :class:`~unstable_stream.errors.EventLogError` family.
    """

    async def start() -> Sender:
        client = AIOKafkaClient(**cluster.settings())
        sender = Sender(client, transactional_id, transaction_timeout_s)
        try:
            await client.bootstrap()
            await sender.begin()
        except BaseException:
            await sender.close()
            raise
        return sender

    return await cluster.start(start, doing)


def _by_topic(entries: Iterable[tuple[TopicPartition, Any]]) -> list[tuple[str, list[Any]]]:
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for at, entry in entries:
        found[at.topic].append(entry)
    return list(found.items())


def _codes_of_partitions(answer: Any) -> list[int]:
    return [code for _, partitions in answer.errors for _, code in partitions]
