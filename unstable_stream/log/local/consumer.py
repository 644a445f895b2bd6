"""Read a local log, alone or as a member of a group."""

import asyncio
import math
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from unstable_stream.log.handles import ConsumerHandle
from unstable_stream.log.local.database import Partition, TopicCatalogue
from unstable_stream.log.local.groups import (
    Member,
    Owned,
    commit_positions,
    generation_of,
    leave,
    synchronise,
)
from unstable_stream.log.local.records import (
    Ends,
    Found,
    RowCodec,
    begin_offset,
    check_offset,
    end_offset,
    offset_for_time,
    read_fairly,
)
from unstable_stream.log.local.threads import ReadThread, WriteThread
from unstable_stream.log.local.wakeups import Doorbell
from unstable_stream.log.port import Positions, Start, StoredRecord, TopicPartition

_RECHECK_S: Final = 1.0  # a lost wake-up costs no more than this
_RECHECK_WITHOUT_WAKEUPS_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class LocalParts:
    """The parts of an open log that its consumers and producers share."""

    path: str
    reader: ReadThread
    writer: WriteThread
    topics: TopicCatalogue
    read_codec: RowCodec
    write_codec: RowCodec
    ends: Ends
    doorbell: Doorbell


_Look: TypeAlias = tuple[int, Found] | None
"""The database's version and the records found, by partition; ``None``: members or owners of the group
changed since the last synchronisation.
"""

_Begins: TypeAlias = dict[TopicPartition, tuple[Owned, int]]
"""A member's partitions and the offsets to go on from."""


class LocalConsumer(ConsumerHandle):
    """Implements :class:`~unstable_stream.log.port.Consumer`. One task at a time may use it."""

    def __init__(
        self,
        log: LocalParts,
        start: Start,
        member: Member | None,
        whole: Sequence[tuple[Partition, int]],
        on_close: Callable[["LocalConsumer"], None],
    ) -> None:
        """``whole``: without a group, all partitions and where to begin."""
        super().__init__(on_close)
        self._log = log
        self._start = start
        self._member = member
        self._assigned: dict[TopicPartition, Owned] = {
            partition.at: Owned(partition, 0, None) for partition, _ in whole
        }
        self._next: dict[TopicPartition, int] = {partition.at: offset for partition, offset in whole}
        self._order: list[TopicPartition] = list(self._next)
        self._checked = True  # whether the positions were found to lie within the log
        self._generation = -1
        self._beat_at = -math.inf  # event loop time of the next sign of life
        self._empty_at: int | None = None  # database version in which nothing was left to read
        self._joined = False

    async def _poll(self, max_records: int, timeout_s: float) -> list[StoredRecord]:
        loop = asyncio.get_running_loop()
        doorbell = self._log.doorbell
        deadline = loop.time() + timeout_s
        while True:
            rings = doorbell.rings()
            if self._member is not None and loop.time() >= self._beat_at:
                await self._synchronise(self._member)
            found = await self._log.reader.run(self._looker(max_records))
            self._check_open()  # it may have been closed meanwhile
            if found is None:
                self._beat_at = -math.inf
                continue
            version, groups = found
            self._checked = True
            if groups:
                if records := self._advance(groups):
                    return records
                continue  # all of these were erased
            self._empty_at = version
            remaining_s = deadline - loop.time()
            if remaining_s <= 0:
                return []
            recheck_s = _RECHECK_S
            try:
                if doorbell.bind():
                    continue
            except OSError:
                recheck_s = _RECHECK_WITHOUT_WAKEUPS_S
            until_beat_s = self._beat_at - loop.time() if self._member is not None else math.inf
            await doorbell.wait(rings, max(0.0, min(remaining_s, recheck_s, until_beat_s)))
            self._check_open()

    def _looker(self, max_records: int) -> Callable[[sqlite3.Connection], _Look]:
        member, generation, codec = self._member, self._generation, self._log.read_codec
        empty_at = self._empty_at
        wanted = [(self._assigned[at].partition, self._next[at]) for at in self._order]
        unchecked = [] if self._checked else wanted

        def look(connection: sqlite3.Connection) -> _Look:
            # Moves when another connection committed; taken first, so that a commit in between is seen later.
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            if version == empty_at:
                return version, []
            connection.execute("BEGIN")  # one snapshot: transactions are seen whole or not at all
            try:
                if member is not None and generation_of(connection, member.group) != generation:
                    return None
                for partition, offset in unchecked:
                    check_offset(connection, partition, offset)
                return version, read_fairly(connection, codec, wanted, max_records)
            finally:
                connection.execute("COMMIT")

        return look

    def _advance(self, groups: Found) -> list[StoredRecord]:
        records: list[StoredRecord] = []
        for at, group, after in groups:
            self._next[at] = after
            records += group
        # Where there are more partitions than fit in a poll, the next one goes on behind the last served.
        behind = self._order.index(at) + 1
        self._order = self._order[behind:] + self._order[:behind]
        return records

    async def _synchronise(self, member: Member) -> None:
        log, start = self._log, self._start
        before, positions = self._assigned, dict(self._next)

        def work(connection: sqlite3.Connection) -> tuple[int, _Begins]:
            generation, owned = synchronise(connection, log.topics, member)
            begins: _Begins = {}
            for one in owned:
                at = one.partition.at
                if at in before and before[at].generation == one.generation:
                    begins[at] = (before[at], positions[at])  # goes on where it is
                elif one.committed is not None:
                    begins[at] = (one, one.committed)
                else:
                    begins[at] = (one, start_offset(connection, one.partition, start))
            return generation, begins

        self._joined = True
        known = self._generation
        # Peers look again after a change: they may have something to give up or to take.
        generation, begins = await log.writer.run(work, wakes=lambda result: result[0] != known)
        if generation != self._generation:
            self._take_over(generation, begins)
        self._beat_at = asyncio.get_running_loop().time() + member.session_timeout_ms / 3000

    def _take_over(self, generation: int, begins: _Begins) -> None:
        self._generation = generation
        self._assigned = {at: owned for at, (owned, _) in begins.items()}
        self._next = {at: begin for at, (_, begin) in begins.items()}
        self._order = list(self._next)
        self._checked = False
        self._empty_at = None

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions this member reads now; changes only inside :meth:`poll`."""
        return frozenset(self._assigned)

    def positions(self) -> Positions:
        """Next offset of every assigned partition."""
        return dict(self._next)

    async def commit(self, positions: Positions) -> None:
        """Commit positions.

        Raises:
            FencedError: a partition belongs to this member no more; nothing was committed.
            EventLogError: the consumer has no group or is closed.
        """
        self._check_open()
        member = self._member
        if member is None:
            raise self._without_group()
        for at in positions:
            if at not in self._assigned:
                raise self._not_assigned(at, member.group, self._assigned)
        claims = [(self._assigned[at], offset) for at, offset in positions.items()]
        if claims:
            await self._log.writer.run(lambda connection: commit_positions(connection, member, claims))

    async def seek(self, positions: Positions) -> None:
        """Go on from these offsets.

        Raises:
            OffsetOutOfRangeError: before the first retained record or beyond the end.
            EventLogError: a partition is not assigned.
        """
        self._check_seek(positions, self._assigned)
        wanted = [(self._assigned[at].partition, offset) for at, offset in positions.items()]

        def check(connection: sqlite3.Connection) -> None:
            for partition, offset in wanted:
                check_offset(connection, partition, offset)

        await self._log.reader.run(check)
        self._next.update(positions)
        self._empty_at = None

    async def _close(self) -> None:
        self._log.doorbell.wake()  # a poll that waits ends now
        member = self._member
        if member is not None and self._joined:
            await self._log.writer.run(lambda connection: leave(connection, member), wakes=lambda _: True)


def start_offset(connection: sqlite3.Connection, partition: Partition, start: Start) -> int:
    """Return where reading a partition begins when nothing is committed."""
    if start == "beginning":
        return begin_offset(connection, partition.partition_id)
    if start == "end":
        return end_offset(connection, partition.partition_id)
    return offset_for_time(connection, partition.partition_id, start)
