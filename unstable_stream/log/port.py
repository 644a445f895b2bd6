"""The port of the event log. All adapters pass one contract suite.

Topics have partitions, partitions have offsets, groups have committed positions. A record's key picks
its partition, so records of one key stay in order. All methods are coroutines: an adapter that works
with blocking calls moves them off the event loop.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Final, Literal, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

import msgspec

_MULTIPLIER: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_MASK: Final = 0xFFFFFFFF


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


Positions: TypeAlias = Mapping[TopicPartition, int]
"""The offset of the *next* record to read, by partition."""

Start: TypeAlias = Literal["beginning", "end"] | int
"""The place where a group without committed positions begins; an ``int`` is Unix milliseconds."""


# Every event becomes a record: a struct of msgspec is made several times sooner than a dataclass. The garbage
# collector need not follow it, since nothing in a record leads back to it.
class Record(msgspec.Struct, frozen=True, gc=False):
    """A record to append."""

    topic: str
    key: str
    value: bytes
    headers: Mapping[str, bytes] = msgspec.field(default_factory=dict)
    timestamp_ms: int = 0
    """Unix time of the event in milliseconds."""
    partition: int | None = None
    """Forces a partition; ``None``: the key picks it."""


class StoredRecord(msgspec.Struct, frozen=True, gc=False):
    """A record as the log stores it."""

    topic: str
    partition: int
    offset: int
    key: str
    value: bytes
    headers: Mapping[str, bytes]
    timestamp_ms: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic's settings, as declared in ``topics/*.toml``."""

    name: str
    partitions: int
    cleanup_policy: Literal["delete", "compact"] = "delete"
    retention_ms: int | None = None
    """``None``: kept forever."""
    max_message_bytes: int = 16 * 1024 * 1024
    key: str = ""
    """A description of the record key, e.g. ``run/env``."""
    order: int = 0
    """Of records of the same time, those on a topic of lower order come first: causes before effects."""
    writers: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    """Wire names of the event types on the topic, as their classes say."""
    description: str = ""
    earlier_partitions: tuple[int, ...] = ()
    """Other numbers of partitions, with which earlier versions made the topic: a log keeps the one it has."""
    loses_by: tuple[str, ...] = ()
    """Settings of an existing topic, as ``NAME=VALUE``, with which brokers lose acknowledged records."""


class Transaction(Protocol):
    """Records and positions that become visible together, or never.

    Use it as ``async with producer.transaction() as tx``: it commits at the end, and aborts on an exception.
    """

    async def append(self, records: Sequence[Record]) -> None:
        """Add records. Raises :class:`UnknownTopicError`, :class:`RecordTooLargeError`."""

    async def commit_positions(self, group: str, positions: Positions) -> None:
        """Commit positions of a group with the records; a transaction commits those of one group.

        Nobody's ownership of the partitions is checked: a producer whose id is made of the group and the
        partition fences an earlier one.
        """

    async def save(self, scope: str, states: Mapping[str, bytes]) -> None:
        """Save states under their names, in place of the earlier ones; an empty one is forgotten.

        They become visible with the records and positions; :meth:`EventLog.saved` returns them. Neither scope
        nor name may hold a tab. Raises :class:`RecordTooLargeError`; 8 MiB are never too large.
        """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Producer(Protocol):
    """A transactional writer. A later producer with the same id fences this one."""

    def transaction(self) -> Transaction:
        """Begin a transaction; entering or committing it raises :class:`FencedError` after a takeover."""

    async def close(self) -> None: ...


class Consumer(Protocol):
    """Reads topics in offset order within each partition; sees only committed records."""

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[StoredRecord]:
        """Return up to ``max_records``; wait up to ``timeout_s`` for the first, without busy polling."""

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this member reads now; they change only inside :meth:`poll`."""

    def positions(self) -> Positions:
        """Return the next offset of every assigned partition, after the records that :meth:`poll` has
        returned.

        Polling to the end reaches :meth:`EventLog.end_offsets`, even past offsets without records.
        """

    async def commit(self, positions: Positions) -> None:
        """Commit positions of assigned partitions. Only for groups."""

    async def seek(self, positions: Positions) -> None:
        """Go on from these offsets."""

    async def close(self) -> None: ...


class EventLog(Protocol):
    """A durable, partitioned, append-only log."""

    async def log_id(self) -> str:
        """Return the identity of this log. Offsets have a meaning only together with it."""

    @property
    def compacts(self) -> bool:
        """Return whether a topic with the policy ``compact`` may have lost all but the newest record of a
        key.
        """

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create missing topics; an existing one with another number of partitions is an error."""

    async def topics(self) -> Mapping[str, int]:
        """Return the number of partitions by topic name."""

    async def topic_settings(self) -> Mapping[str, TopicSpec]:
        """Return the topics with their present settings; fields that no log stores keep their defaults."""

    async def alter_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Set the clean-up policy, retention and size limit of existing topics to those of their spec."""

    async def append(self, records: Sequence[Record]) -> list[tuple[TopicPartition, int]]:
        """Append a batch atomically and durably; return partition and offset of each, in order."""

    async def producer(self, producer_id: str) -> Producer:
        """Open a transactional producer and fence earlier ones with the same id."""

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, start: Start = "beginning"
    ) -> Consumer:
        """Open a consumer. Members of a group share the partitions; without a group, it reads all of them.

        A group resumes at its committed positions; partitions without one begin at ``start``.
        """

    async def beginning_offsets(self, topic: str) -> Positions:
        """Return the offset of the first retained record of each partition."""

    async def end_offsets(self, topic: str) -> Positions:
        """Return the offset after the last record of each partition that readers can see now."""

    async def high_watermarks(self, topic: str) -> Positions:
        """Return the offset after the last record of each partition, seen or not: at least the end.

        On Kafka an open transaction holds back all records behind it, also committed ones of other producers.
        :func:`~unstable_stream.log.reading.settled_ends` waits for them.
        """

    async def offsets_for_time(self, topic: str, timestamp_ms: int) -> Positions:
        """Return the first offset with a timestamp at or after the given one, for each partition; the end if
        none.

        On Kafka it may be that of the end of a transaction: no record before it is so late.
        """

    async def groups(self) -> Sequence[str]:
        """Return the names of all groups that have committed positions, sorted."""

    async def committed_positions(self, group: str) -> Positions:
        """Return all positions that a group has committed."""

    async def saved(self, scope: str, names: Collection[str] | None = None) -> Mapping[str, bytes]:
        """Return the states that transactions have saved in a scope, by name, all of one moment.

        ``names``: only these. The cost does not grow with the number of times that a state was saved.
        """

    async def saved_names(self) -> Mapping[str, Collection[str]]:
        """Return the names of all saved states, by scope: for tidying up, it may read all of them."""

    async def close(self) -> None: ...


@runtime_checkable
class Trimmable(Protocol):
    """A log that deletes records only when it is told to; other logs apply a topic's retention themselves."""

    async def delete_before(self, positions: Positions) -> None:
        """Delete the records before these offsets.

        Raises :class:`OffsetOutOfRangeError` for an offset beyond the end.
        """

    async def shrink(self) -> None:
        """Give the space of deleted records back, while nobody else uses the log."""


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of ``data`` with Kafka's seed, as an unsigned number.

    Source: ``org.apache.kafka.common.utils.Utils.murmur2``.
    """
    length = len(data)
    mixed = (_SEED ^ length) & _MASK
    whole = length & ~3
    for start in range(0, whole, 4):
        word = (int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER) & _MASK
        word ^= word >> 24
        mixed = ((mixed * _MULTIPLIER) ^ (word * _MULTIPLIER)) & _MASK
    if whole < length:
        mixed ^= int.from_bytes(data[whole:], "little")
        mixed = (mixed * _MULTIPLIER) & _MASK
    mixed ^= mixed >> 13
    mixed = (mixed * _MULTIPLIER) & _MASK
    return mixed ^ (mixed >> 15)


@lru_cache(maxsize=65_536)  # keys repeat (run/env, game), and hashing in Python is the largest cost
def partition_for_key(key: str, partitions: int) -> int:
    """Return the partition of the records of ``key``, ``0 <= p < partitions``: the one that Kafka picks.

    Source: ``BuiltInPartitioner.partitionForKey``.
    """
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions
