"""A real log that tells of every call before and after it is made, so that a test can kill in between.

The calls are ``append TOPIC``, ``poll`` and ``commit`` of group members, and of transactions ``begin``,
``append TOPIC``, ``commit_positions``, ``save`` and ``commit``. What was polled is told only if there was
something.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast

from unstable_stream.log.port import (
    Consumer,
    EventLog,
    Positions,
    Producer,
    Record,
    Start,
    StoredRecord,
    TopicPartition,
    Transaction,
)

T = TypeVar("T")

Told = Callable[[str, frozenset[TopicPartition]], None]
"""Given ``before CALL`` or ``after CALL``, and the partitions it is about, as far as they are known."""


def tapped(log: EventLog, told: Told) -> EventLog:
    """Return the same log, tapped."""
    return cast(EventLog, _Log(log, told))


class _Tap:
    def __init__(self, tapped: object, told: Told, about: frozenset[TopicPartition] = frozenset()) -> None:
        self._tapped: Any = tapped
        self._told = told
        self._about = about

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tapped, name)

    async def _tell(
        self, call: str, make: Callable[[], Awaitable[T]], about: Iterable[TopicPartition] = ()
    ) -> T:
        partitions = frozenset(about) or self._about
        self._told(f"before {call}", partitions)
        result = await make()
        self._told(f"after {call}", partitions)
        return result


class _Log(_Tap):
    async def append(self, records: Sequence[Record]) -> object:
        return await self._tell(f"append {records[0].topic}", lambda: self._tapped.append(records))

    async def producer(self, producer_id: str) -> Producer:
        _, topic, partition = producer_id.rsplit("/", 2)
        about = frozenset({TopicPartition(topic, int(partition))})
        return cast(Producer, _Producer(await self._tapped.producer(producer_id), self._told, about))

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, start: Start = "beginning"
    ) -> Consumer:
        consumer: Consumer = await self._tapped.consumer(topics, group, start)
        return consumer if group is None else cast(Consumer, _Consumer(consumer, self._told))


class _Consumer(_Tap):
    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[StoredRecord]:
        self._told("before poll", frozenset())
        records: list[StoredRecord] = await self._tapped.poll(max_records, timeout_s)
        if records:
            self._told("after poll", frozenset(TopicPartition(r.topic, r.partition) for r in records))
        return records

    async def commit(self, positions: Positions | None = None) -> None:
        await self._tell("commit", lambda: self._tapped.commit(positions), positions or ())


class _Producer(_Tap):
    def transaction(self) -> Transaction:
        return cast(Transaction, _Transaction(self._tapped.transaction(), self._told, self._about))


class _Transaction(_Tap):
    async def __aenter__(self) -> "_Transaction":
        await self._tell("begin", lambda: self._tapped.__aenter__())
        return self

    async def append(self, records: Sequence[Record]) -> None:
        await self._tell(f"append {records[0].topic}", lambda: self._tapped.append(records))

    async def commit_positions(self, group: str, positions: Positions) -> None:
        await self._tell(
            "commit_positions", lambda: self._tapped.commit_positions(group, positions), positions
        )

    async def save(self, scope: str, states: Mapping[str, bytes]) -> None:
        await self._tell("save", lambda: self._tapped.save(scope, states))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call = "commit" if kind is None else "abort"
        await self._tell(call, lambda: self._tapped.__aexit__(kind, error, trace))
