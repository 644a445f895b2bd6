"""The event log as the rest of the package sees it; adapters pass one contract suite.

Topics have partitions, partitions have offsets, groups have committed positions. A record's key picks
its partition, so records of one key stay in order. All methods are coroutines: an adapter that works
with blocking calls moves them off the event loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self, TypeAlias

__all__ = [
    "Consumer",
    "EventLog",
    "Positions",
    "Producer",
    "Record",
    "Start",
    "StoredRecord",
    "TopicPartition",
    "TopicSpec",
    "Transaction",
]


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


Positions: TypeAlias = Mapping[TopicPartition, int]
"""For each partition the offset of the *next* record to read."""

Start: TypeAlias = Literal["beginning", "end"] | int
"""Where a group without committed positions begins; an ``int`` is a Unix time in milliseconds."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is appended."""

    topic: str
    key: str
    value: bytes
    headers: Mapping[str, bytes] = field(default_factory=dict)
    timestamp_ms: int = 0
    """Unix time of the event in milliseconds."""
    partition: int | None = None
    """Forces a partition; by default the key picks it."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """What is read back."""

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
    """Describes the record key, e.g. ``run/env``."""
    writers: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    """Wire names of the event types it carries."""
    description: str = ""


class Transaction(Protocol):
    """Records and positions that become visible together, or not at all.

    Use as ``async with producer.transaction() as tx``: commits on leaving, aborts on an exception.
    """

    async def append(self, records: Sequence[Record]) -> None:
        """Add records. Raises :class:`UnknownTopicError`, :class:`RecordTooLargeError`."""

    async def commit_positions(self, consumer: "Consumer | str", positions: Positions) -> None:
        """Commit positions of the consumer's group with the records.

        With the name of a group instead of a consumer, nobody's ownership is checked: for whoever fences
        by producer id and shares the partitions out in another way.

        Raises :class:`FencedError` if the consumer no longer owns a partition named here.
        """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Producer(Protocol):
    """A transactional writer. A later producer with the same id fences this one off."""

    def transaction(self) -> Transaction:
        """Begin a transaction; entering or committing it raises :class:`FencedError` after a takeover."""

    async def close(self) -> None: ...


class Consumer(Protocol):
    """Reads topics in offset order within each partition; sees committed records only."""

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[StoredRecord]:
        """Return up to ``max_records``; waits up to ``timeout_s`` for the first, without busy polling."""

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions this member reads now; changes only inside :meth:`poll`."""

    def positions(self) -> Positions:
        """Next offset of every assigned partition: what has been returned by :meth:`poll` so far.

        Who polls on to the end arrives at :meth:`EventLog.end_offsets`, whatever lies between the records.
        """

    async def committed(self) -> Positions:
        """The group's committed positions of the assigned partitions that have one."""

    async def commit(self, positions: Positions | None = None) -> None:
        """Commit ``positions``, by default all that :meth:`poll` has returned. Groups only."""

    async def seek(self, positions: Positions) -> None:
        """Go on from these offsets."""

    async def close(self) -> None: ...


class EventLog(Protocol):
    """A durable, partitioned, append-only log."""

    async def log_id(self) -> str:
        """Return what tells this log from any other: offsets mean something only together with it."""

    @property
    def compacts(self) -> bool:
        """Whether a topic with the policy ``compact`` may have lost all but the newest record of a key."""

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create those that do not exist; an existing one with other partitions is an error."""

    async def topics(self) -> Mapping[str, int]:
        """Topic name to number of partitions."""

    async def topic_settings(self) -> Mapping[str, TopicSpec]:
        """Return the topics as they are set now; fields that no log keeps stay at their defaults."""

    async def alter_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Give existing topics the clean-up policy, retention and size limit of their spec."""

    async def append(self, records: Sequence[Record]) -> list[tuple[TopicPartition, int]]:
        """Append a batch atomically and durably; return partition and offset of each, in order."""

    async def producer(self, producer_id: str) -> Producer:
        """Open a transactional producer, fencing off any earlier one with the same id."""

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, start: Start = "beginning"
    ) -> Consumer:
        """Open a consumer. Members of a group share out the partitions; without a group, read them all.

        A group resumes at its committed positions; partitions without one begin at ``start``.
        """

    async def beginning_offsets(self, topic: str) -> Positions:
        """Offset of the first retained record of each partition."""

    async def end_offsets(self, topic: str) -> Positions:
        """Offset after the last committed record of each partition."""

    async def offsets_for_time(self, topic: str, timestamp_ms: int) -> Positions:
        """First offset of each partition with a timestamp at or after the given one; the end if none."""

    async def groups(self) -> Sequence[str]:
        """Return the names of all groups that have committed positions, sorted."""

    async def committed_positions(self, group: str) -> Positions:
        """All positions a group has committed."""

    async def close(self) -> None: ...
