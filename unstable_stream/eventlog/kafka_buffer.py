"""Fetched records that no poll has returned yet, handed out fairly."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from unstable_stream.eventlog.kafka_records import stored_record
from unstable_stream.eventlog.port import StoredRecord, TopicPartition

__all__ = ["Buffers"]


class Buffers:
    """A queue of records for each partition that has some, in the order of their turns."""

    def __init__(self) -> None:
        self._queues: dict[TopicPartition, deque[Any]] = {}

    def __contains__(self, at: TopicPartition) -> bool:
        return at in self._queues

    def count(self, at: TopicPartition) -> int:
        """Return how many records a partition has."""
        return len(self._queues.get(at, ()))

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, at: TopicPartition, records: Sequence[Any]) -> None:
        """Add ``aiokafka`` records behind those of the partition."""
        if records:
            self._queues.setdefault(at, deque()).extend(records)

    def drop(self, at: TopicPartition) -> None:
        """Forget what a partition has."""
        self._queues.pop(at, None)

    def end(self, at: TopicPartition, otherwise: int) -> int:
        """Return the offset behind the last record of a partition, ``otherwise`` if it has none."""
        queue = self._queues.get(at)
        return queue[-1].offset + 1 if queue else otherwise

    def take(self, most: int) -> tuple[list[StoredRecord], dict[TopicPartition, int]]:
        """Remove up to ``most`` records, equal shares of all partitions that have as many.

        Returns the records, and for each partition served the offset behind its last one.
        """
        found: dict[TopicPartition, list[StoredRecord]] = {}
        ends: dict[TopicPartition, int] = {}
        room = most
        while self._queues and room > 0:
            share = max(1, room // len(self._queues))
            for at in list(self._queues)[:room]:
                queue = self._queues.pop(at)
                count = min(share, len(queue))
                records = [stored_record(queue.popleft()) for _ in range(count)]
                found.setdefault(at, []).extend(records)
                ends[at] = records[-1].offset + 1
                room -= count
                if queue:
                    self._queues[at] = queue  # its next turn comes after all others'
        return [record for records in found.values() for record in records], ends
