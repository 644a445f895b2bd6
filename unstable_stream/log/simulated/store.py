"""The content of a simulated log: topics, records, committed positions, saved states, epochs of producers.

===============  ==========================================  ==========================================
kept             by                                          may go when
===============  ==========================================  ==========================================
``_topics``      topic name: settings and partitions         never
``_partitions``  topic and partition: records, first and     records: :meth:`SimulatedStore.delete_before`,
                 next offset                                 :meth:`SimulatedStore.compact`
``_positions``   group, topic and partition: next offset     never
``_states``      scope and name: the newest state            an empty one is saved
``_epochs``      producer id: the newest producer's number   never
``_held``        topic and partition: the first offset of    :meth:`SimulatedStore.let_go`
                 another producer's open transaction
``_journal``     every change, in order                      never; it is what :meth:`lose_tail` goes back in
===============  ==========================================  ==========================================

Every change is one :class:`Change`, which is made whole. Members of groups are not here: they are no truth,
and die with their processes (:mod:`~.groups`).
"""

import asyncio
import bisect
import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from unstable_stream.errors import (
    EventLogError,
    FencedError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UnknownTopicError,
)
from unstable_stream.log.partitioner import partition_for_key
from unstable_stream.log.port import Positions, Record, StoredRecord, TopicPartition, TopicSpec
from unstable_stream.log.simulated.groups import Groups

__all__ = ["Change", "SimulatedStore"]


@dataclass(slots=True)
class _Partition:
    """Records in offset order; offsets have gaps after transactions and compaction."""

    records: list[StoredRecord] = field(default_factory=list)
    begin: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happens to the store as a whole or not at all."""

    topics: tuple[TopicSpec, ...] = ()
    """Topics made or altered."""
    records: tuple[tuple[TopicPartition, Record], ...] = ()
    marker: bool = False
    """Whether a transaction's end takes an offset of each partition written to, as on Kafka."""
    positions: tuple[tuple[str, TopicPartition, int], ...] = ()
    """Group, partition, next offset."""
    states: tuple[tuple[str, str, bytes], ...] = ()
    """Scope, name, state; an empty one is forgotten."""
    producer: tuple[str, int] | None = None
    """Producer id and its new epoch."""
    begins: tuple[tuple[TopicPartition, int], ...] = ()
    """Partitions whose first records were deleted, and their new first offset."""
    removed: tuple[tuple[TopicPartition, frozenset[int]], ...] = ()
    """Records taken out by compaction."""


class SimulatedStore:
    """The disk of a simulated log. Handles on it are :class:`~.log.SimulatedLog`."""

    def __init__(
        self,
        log_id: str = "simulated",
        *,
        compacts: bool = False,
        transaction_markers: bool = False,
        session_timeout_s: float = 30.0,
        max_poll_records: int | None = None,
    ) -> None:
        """Make an empty store.

        Args:
            log_id: its identity.
            compacts: whether :meth:`compact` may be called; see :attr:`EventLog.compacts`.
            transaction_markers: the end of a transaction takes an offset, as on Kafka, so offsets have gaps.
            session_timeout_s: a member of a group that did not poll for so long, by the event loop's clock,
                loses its partitions.
            max_poll_records: no poll returns more; ``None``: what the caller asks for.
        """
        self.log_id = log_id
        self.compacts = compacts
        self.groups = Groups(session_timeout_s)
        self._markers = transaction_markers
        self.max_poll_records = max_poll_records
        self._journal: list[Change] = []
        self._waiting: list[asyncio.Future[None]] = []
        self.member_numbers = itertools.count(1)
        self.appends = 0
        """The number of changes that a waiting consumer looks at."""
        self._clear()

    def _clear(self) -> None:
        self._topics: dict[str, TopicSpec] = {}
        self._partitions_of: dict[str, list[TopicPartition]] = {}
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._positions: dict[str, dict[TopicPartition, int]] = {}
        self._states: dict[str, dict[str, bytes]] = {}
        self._epochs: dict[str, int] = {}
        self._held: dict[TopicPartition, int] = {}

    # -- changes ------------------------------------------------------------------------------

    def make(self, change: Change) -> list[tuple[TopicPartition, int]]:
        """Make a change and wake whoever waits; return the place of each record."""
        places = self._apply(change)
        self._journal.append(change)
        if change.records or change.begins or change.topics:
            self.appends += 1
            self.wake()
        return places

    @property
    def changes(self) -> int:
        """The number of changes so far, in all."""
        return len(self._journal)

    def lose_tail(self, changes: int) -> None:
        """Forget the last changes, as a power cut does to what was not yet on the disk.

        All groups lose their members. Close or drop all handles first: no process survives a power cut.
        """
        kept = self._journal[: max(0, len(self._journal) - changes)]
        self._clear()
        for change in kept:
            self._apply(change)
        self._journal = kept
        self.groups.clear()

    def _apply(self, change: Change) -> list[tuple[TopicPartition, int]]:
        for spec in change.topics:
            self._topics[spec.name] = spec
            of_topic = [TopicPartition(spec.name, number) for number in range(spec.partitions)]
            self._partitions_of[spec.name] = of_topic
            for at in of_topic:
                self._partitions.setdefault(at, _Partition())
        places: list[tuple[TopicPartition, int]] = []
        for at, record in change.records:
            partition = self._partitions[at]
            places.append((at, partition.end))
            partition.records.append(
                StoredRecord(
                    *at, partition.end, record.key, record.value, dict(record.headers), record.timestamp_ms
                )
            )
            partition.end += 1
        if change.marker:
            for at in dict.fromkeys(at for at, _ in change.records):
                self._partitions[at].end += 1
        for group, at, offset in change.positions:
            self._positions.setdefault(group, {})[at] = offset
        for scope, name, state in change.states:
            states = self._states.setdefault(scope, {})
            states.pop(name, None)
            if state:
                states[name] = state
        if change.producer is not None:
            name, epoch = change.producer
            self._epochs[name] = epoch
        for at, begin in change.begins:
            partition = self._partitions[at]
            partition.begin = max(partition.begin, begin)
            del partition.records[: self._index(partition, begin)]
        for at, offsets in change.removed:
            partition = self._partitions[at]
            partition.records = [record for record in partition.records if record.offset not in offsets]
        return places

    def append(self, records: Sequence[tuple[TopicPartition, Record]]) -> list[tuple[TopicPartition, int]]:
        """Store placed records; see :meth:`place`."""
        return self.make(Change(records=tuple(records)))

    def commit(self, change: Change) -> None:
        """End a transaction."""
        self.make(dataclasses.replace(change, marker=self._markers))

    def delete_before(self, positions: Positions) -> None:
        """Delete the records before these offsets, as retention does.

        Raises:
            OffsetOutOfRangeError: an offset lies beyond the end.
        """
        for at, offset in positions.items():
            if offset > self.end(at):
                raise OffsetOutOfRangeError(f"{at}@{offset} is beyond the end, {self.end(at)}")
        self.make(Change(begins=tuple(positions.items())))

    def compact(self) -> int:
        """Keep only the newest record of each key on topics with the policy ``compact``; return how many
        records went.
        """
        if not self.compacts:
            raise EventLogError("this store was made without compacts=True: its records stay")
        removed: list[tuple[TopicPartition, frozenset[int]]] = []
        for at, partition in self._partitions.items():
            if self._topics[at.topic].cleanup_policy != "compact":
                continue
            newest = {record.key: record.offset for record in partition.records}
            gone = {r.offset for r in partition.records if newest[r.key] != r.offset}
            if gone:
                removed.append((at, frozenset(gone)))
        if removed:
            self.make(Change(removed=tuple(removed)))
        return sum(len(offsets) for _, offsets in removed)

    def hold_back(self, at: TopicPartition) -> None:
        """Leave a transaction of another producer open here: readers see nothing that comes from now on."""
        self._held.setdefault(at, self._partitions[at].end)

    def let_go(self, at: TopicPartition) -> None:
        """End that transaction."""
        if self._held.pop(at, None) is not None:
            self.appends += 1
            self.wake()

    def saved(self, scope: str, names: Collection[str] | None) -> dict[str, bytes]:
        """Return the states of a scope, or those of these names."""
        states = self._states.get(scope, {})
        return {name: state for name, state in states.items() if names is None or name in names}

    def saved_names(self) -> dict[str, list[str]]:
        """Return the names of all states by scope."""
        return {scope: sorted(states) for scope, states in sorted(self._states.items()) if states}

    def open_producer(self, producer_id: str) -> int:
        """Fence earlier producers with this id; return the epoch of the new one, from 1."""
        epoch = self._epochs.get(producer_id, 0) + 1
        self.make(Change(producer=(producer_id, epoch)))
        return epoch

    def check_epoch(self, producer_id: str, epoch: int) -> None:
        """Raise :class:`FencedError` if a later producer has taken over."""
        if self._epochs.get(producer_id) != epoch:
            raise FencedError(
                f"producer {producer_id!r} of epoch {epoch} was taken over by one of epoch "
                f"{self._epochs.get(producer_id)}: nothing of this transaction was stored. Stop this "
                "process; the other one goes on."
            )

    # -- topics -------------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, TopicSpec]:
        """The topics with their settings, by name."""
        return self._topics

    def topic(self, name: str) -> TopicSpec:
        """Return a topic's settings; raises :class:`UnknownTopicError` with the names there are."""
        spec = self._topics.get(name)
        if spec is None:
            known = ", ".join(sorted(self._topics)) or "none yet"
            raise UnknownTopicError(
                f"unknown topic {name!r}; topics of this log: {known}. Create it with create_topics first."
            )
        return spec

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return a topic's partitions in order."""
        self.topic(topic)
        return list(self._partitions_of[topic])

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create missing topics; see the port."""
        for spec in specs:
            existing = self._topics.get(spec.name)
            if existing is not None and existing.partitions != spec.partitions:
                raise EventLogError(
                    f"topic {spec.name!r} exists with {existing.partitions} partitions, {spec.partitions} "
                    "were asked for: keys would change their partition."
                )
            if spec.partitions < 1:
                raise EventLogError(
                    f"topic {spec.name!r}: {spec.partitions} partitions, expected at least 1."
                )
        missing = tuple(_stored_settings(spec) for spec in specs if spec.name not in self._topics)
        if missing:
            self.make(Change(topics=missing))

    def alter_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Give existing topics the settings of their spec; their partitions stay."""
        changed = [
            dataclasses.replace(_stored_settings(spec), partitions=self.topic(spec.name).partitions)
            for spec in specs
        ]
        self.make(Change(topics=tuple(changed)))

    def place(self, records: Sequence[Record]) -> list[tuple[TopicPartition, Record]]:
        """Find the partition of each record.

        Raises:
            UnknownTopicError: a topic or forced partition does not exist.
            RecordTooLargeError: a record exceeds its topic's limit.
        """
        placed: list[tuple[TopicPartition, Record]] = []
        for record in records:
            spec = self.topic(record.topic)
            number = record.partition
            if number is None:
                number = partition_for_key(record.key, spec.partitions)
            at = TopicPartition(record.topic, number)
            if at not in self._partitions:
                raise UnknownTopicError(
                    f"unknown partition {at}: the topic has partitions 0 to {spec.partitions - 1}."
                )
            size = len(record.value) + len(record.key.encode())
            size += sum(len(name.encode()) + len(value) for name, value in record.headers.items())
            if size > spec.max_message_bytes:
                raise RecordTooLargeError(
                    f"record with key {record.key!r} for topic {record.topic!r} has {size} bytes, the "
                    f"topic's limit is {spec.max_message_bytes}; nothing of its batch was stored."
                )
            placed.append((at, record))
        return placed

    # -- reading ------------------------------------------------------------------------------

    def begin(self, at: TopicPartition) -> int:
        """Return the offset of the first retained record."""
        return self._partitions[at].begin

    def end(self, at: TopicPartition) -> int:
        """Return the offset after the last record that readers can see."""
        return self._held.get(at, self._partitions[at].end)

    def high_watermark(self, at: TopicPartition) -> int:
        """Return the offset after the last record, seen or not."""
        return self._partitions[at].end

    def check_offset(self, at: TopicPartition, offset: int) -> None:
        """Raise :class:`OffsetOutOfRangeError` unless reading can go on from ``offset``."""
        if not self.begin(at) <= offset <= self.end(at):
            raise OffsetOutOfRangeError(
                f"{at}@{offset} is out of range: this log has offsets {self.begin(at)} up to (not including) "
                f"{self.end(at)}."
            )

    def read(self, at: TopicPartition, offset: int, limit: int) -> Sequence[StoredRecord]:
        """Return up to ``limit`` records from an offset on."""
        partition = self._partitions[at]
        first = self._index(partition, offset)
        return partition.records[first : min(first + limit, self._index(partition, self.end(at)))]

    def count(self, at: TopicPartition, offset: int) -> int:
        """Return the number of records from an offset on."""
        partition = self._partitions[at]
        return self._index(partition, self.end(at)) - self._index(partition, offset)

    def offset_for_time(self, at: TopicPartition, timestamp_ms: int) -> int:
        """Return the first offset with a timestamp at or after the given one; the end if none."""
        partition = self._partitions[at]
        found = (r.offset for r in partition.records if r.timestamp_ms >= timestamp_ms)
        return min(next(found, partition.end), self.end(at))

    def positions(self, group: str) -> Mapping[TopicPartition, int]:
        """Return a group's committed positions."""
        return self._positions.get(group, {})

    def groups_with_positions(self) -> list[str]:
        """Return the names of groups with committed positions, sorted."""
        return sorted(self._positions)

    @staticmethod
    def _index(partition: _Partition, offset: int) -> int:
        return bisect.bisect_left(partition.records, offset, key=_offset_of)

    # -- waiting ------------------------------------------------------------------------------

    async def changed(self, timeout_s: float) -> None:
        """Wait for a change or a new member, at most ``timeout_s``."""
        woken = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        timer = asyncio.get_running_loop().call_later(timeout_s, _ring, woken)
        try:
            await woken
        finally:
            timer.cancel()
            if woken in self._waiting:
                self._waiting.remove(woken)

    def wake(self) -> None:
        """Wake all who wait."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            _ring(one)


def _ring(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


def _offset_of(record: StoredRecord) -> int:
    return record.offset


def _stored_settings(spec: TopicSpec) -> TopicSpec:
    """Return only what a log stores."""
    return TopicSpec(
        spec.name, spec.partitions, spec.cleanup_policy, spec.retention_ms, spec.max_message_bytes
    )
