"""A real log that tells of every call before and after it is made, so that a test can kill in between.

The calls are ``append TOPIC``, ``poll`` and ``commit`` of group members, and of transactions ``begin``,
``append TOPIC``, ``commit_positions``, ``save`` and ``commit``. What was polled is told only if there was
something.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from unstable_stream.log.port import EventLog, Record, StoredRecord, TopicPartition

Told = Callable[[str, frozenset[TopicPartition]], None]
"""Given ``before CALL`` or ``after CALL``, and the partitions it is about, as far as they are known."""


def tapped(log: EventLog, told: Told) -> EventLog:
    """Return the same log, tapped."""
    return cast(EventLog, _Log(log, told))


def at_call(name: str, occurrence: int, act: Callable[[], None]) -> Told:
    """Return what acts at a call's n-th occurrence."""
    reached = Counter[str]()

    def told(call: str, about: frozenset[TopicPartition]) -> None:
        reached[call] += 1
        if call == name and reached[call] == occurrence:
            act()

    return told


def kill_this_process() -> None:
    """Die as by ``kill -9``."""
    os.kill(os.getpid(), signal.SIGKILL)


class _Tap:
    def __init__(self, tapped: object, told: Told, about: Iterable[TopicPartition] = ()) -> None:
        self._tapped: Any = tapped
        self._told = told
        self._about = frozenset(about)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tapped, name)

    async def _call(
        self, name: str, *arguments: Any, call: str = "", about: Iterable[TopicPartition] = ()
    ) -> Any:
        partitions = frozenset(about) or self._about
        self._told(f"before {call or name}", partitions)
        result = await getattr(self._tapped, name)(*arguments)
        self._told(f"after {call or name}", partitions)
        return result

    async def append(self, records: Sequence[Record]) -> Any:
        return await self._call("append", records, call=f"append {records[0].topic}")


class _Log(_Tap):
    async def producer(self, producer_id: str) -> Any:
        _, topic, partition = producer_id.rsplit("/", 2)
        about = [TopicPartition(topic, int(partition))]
        return _Producer(await self._tapped.producer(producer_id), self._told, about)

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, start: Any = "beginning"
    ) -> Any:
        consumer = await self._tapped.consumer(topics, group, start)
        return consumer if group is None else _Consumer(consumer, self._told)


class _Consumer(_Tap):
    async def poll(self, *limits: Any, **named: Any) -> list[StoredRecord]:
        self._told("before poll", frozenset())
        records: list[StoredRecord] = await self._tapped.poll(*limits, **named)
        if records:
            self._told("after poll", frozenset(TopicPartition(r.topic, r.partition) for r in records))
        return records

    async def commit(self, positions: Any = None) -> None:
        await self._call("commit", positions, about=positions or ())


class _Producer(_Tap):
    def transaction(self) -> Any:
        return _Transaction(self._tapped.transaction(), self._told, self._about)


class _Transaction(_Tap):
    async def __aenter__(self) -> "_Transaction":
        await self._call("__aenter__", call="begin")
        return self

    async def commit_positions(self, group: str, positions: Any) -> None:
        await self._call("commit_positions", group, positions, about=positions)

    async def save(self, scope: str, states: Any) -> None:
        await self._call("save", scope, states)

    async def __aexit__(self, kind: Any, *error: Any) -> None:
        await self._call("__aexit__", kind, *error, call="commit" if kind is None else "abort")
