"""Read a simulated log, alone or as a member of a group."""

import asyncio
from collections.abc import Callable, Collection, Sequence

from unstable_stream.errors import EventLogError, FencedError
from unstable_stream.log.port import Positions, Start, StoredRecord, TopicPartition
from unstable_stream.log.simulated.conditions import Conditions
from unstable_stream.log.simulated.groups import Member
from unstable_stream.log.simulated.store import Change, SimulatedStore

__all__ = ["SimulatedConsumer"]


class SimulatedConsumer:
    """Implements :class:`~unstable_stream.log.port.Consumer`. One task at a time may use it."""

    def __init__(
        self,
        store: SimulatedStore,
        conditions: Conditions,
        topics: Sequence[str],
        group: str | None,
        start: Start,
        on_close: Callable[["SimulatedConsumer"], None],
    ) -> None:
        self.store = store
        self._conditions = conditions
        self._start = start
        self._on_close = on_close
        names = tuple(dict.fromkeys(topics))
        whole = [at for topic in names for at in store.partitions(topic)]
        self.member = None if group is None else Member(next(store.member_numbers), group, names)
        self._owned: dict[TopicPartition, int] = {}
        """A member's partitions, with the generation in which it took each."""
        self._next: dict[TopicPartition, int] = {}
        self._unsaved: dict[TopicPartition, int] = {}
        self._generation = -1
        self._beat_at = 0.0
        """The event loop's time of the next sign of life."""
        self._polling = False
        self._closed = False
        if group is None:
            self._next = {at: self._first(at) for at in whole}
        self._order = list(self._next)

    def _first(self, at: TopicPartition) -> int:
        if self._start == "beginning":
            return self.store.begin(at)
        if self._start == "end":
            return self.store.end(at)
        return self.store.offset_for_time(at, self._start)

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[StoredRecord]:
        """Return up to ``max_records``, in offset order within each partition.

        Raises:
            OffsetOutOfRangeError: retention deleted what was to be read next; :meth:`seek` to go on.
            LogUnavailableError: the conditions say so.
        """
        self._check_open()
        if max_records < 1:
            raise ValueError(f"max_records is {max_records}, expected at least 1")
        if self._polling:
            raise EventLogError("this consumer is being polled already: one task at a time may poll it.")
        self._polling = True
        try:
            return await self._poll(max_records, timeout_s)
        finally:
            self._polling = False

    async def _poll(self, max_records: int, timeout_s: float) -> list[StoredRecord]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            await self._conditions.request("poll")
            self._check_open()
            known = self._state()
            if self.member is not None and (loop.time() >= self._beat_at or known[1] != self._generation):
                self._synchronise(self.member)
                self._beat_at = loop.time() + self.store.groups.look_again_s
                self._generation = self.store.groups.generation(self.member.group)
            records = self._take(max_records)
            if records or loop.time() >= deadline:
                return records
            # A member shows that it lives, and looks for partitions that a dead one has left.
            wait_s = min(deadline - loop.time(), self.store.groups.look_again_s)
            if not self._closed and self._state() == known:
                await self.store.changed(wait_s)
            self._check_open()

    def _state(self) -> tuple[int, int]:
        """Return what moves when there may be something new."""
        generation = 0 if self.member is None else self.store.groups.generation(self.member.group)
        return self.store.appends, generation

    def _take(self, max_records: int) -> list[StoredRecord]:
        """Move on past some records and return them."""
        store = self.store
        for at in self._order:
            store.check_offset(at, self._next[at])
        room = min(max_records, store.max_poll_records or max_records)
        waiting = {at: store.count(at, self._next[at]) for at in self._order}
        allowed = {
            at: self._conditions.deliverable(at, count) if count else 0 for at, count in waiting.items()
        }
        taken: list[StoredRecord] = []
        served = [at for at in self._order if allowed[at]]
        while room > 0 and any(allowed.values()):
            share = max(1, room // sum(1 for count in allowed.values() if count))
            for at in served:
                limit = min(share, room, allowed[at])
                if limit <= 0:
                    continue
                records = store.read(at, self._next[at], limit)
                self._next[at] = self._unsaved[at] = records[-1].offset + 1
                allowed[at] -= len(records)
                waiting[at] -= len(records)
                room -= len(records)
                taken += records
                last = at
        if taken:
            # Where there are more partitions than fit in a poll, the next one goes on behind the last served.
            behind = self._order.index(last) + 1
            self._order = self._order[behind:] + self._order[:behind]
        for at, left in waiting.items():
            if not left and self._next[at] < store.end(at):
                self._next[at] = self._unsaved[at] = store.end(at)  # past offsets without records
        return sorted(taken, key=lambda r: served.index(TopicPartition(r.topic, r.partition)))

    def _synchronise(self, member: Member) -> None:
        store = self.store
        partitions = {topic: store.partitions(topic) for topic in store.topics}
        generation = store.groups.generation(member.group)
        owned = store.groups.synchronise(member, partitions, asyncio.get_running_loop().time())
        if store.groups.generation(member.group) != generation:
            store.wake()  # others may have something to give up or to take
        if owned == self._owned:
            return
        committed = store.positions(member.group)
        begins: dict[TopicPartition, int] = {}
        for at, taken in owned.items():
            if self._owned.get(at) == taken:
                begins[at] = self._next[at]
            else:
                self._unsaved.pop(at, None)
                begins[at] = committed[at] if at in committed else self._first(at)
        self._owned, self._next = owned, begins
        self._unsaved = {at: offset for at, offset in self._unsaved.items() if at in begins}
        self._order = list(begins)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions this member reads now; changes only inside :meth:`poll`."""
        return frozenset(self._next)

    def positions(self) -> Positions:
        """Next offset of every assigned partition."""
        return dict(self._next)

    async def committed(self) -> Positions:
        """The group's committed positions of the assigned partitions that have one; none without a group."""
        self._check_open()
        await self._conditions.request("read")
        if self.member is None:
            return {}
        committed = self.store.positions(self.member.group)
        return {at: offset for at, offset in committed.items() if at in self._next}

    async def commit(self, positions: Positions | None = None) -> None:
        """Commit ``positions``, by default all that moved since the last commit.

        Raises:
            FencedError: a partition belongs to this member no more; nothing was committed.
            EventLogError: the consumer has no group.
            LogUnavailableError: the conditions say so; it may have been committed.
        """
        positions = dict(self._unsaved if positions is None else positions)
        self._claim(positions)
        if not positions:
            return
        await self._conditions.request("commit")
        self.store.make(Change(positions=self._claim(positions)))
        await self._conditions.answer("commit")
        for at, offset in positions.items():
            if self._unsaved.get(at) == offset:
                del self._unsaved[at]

    def _claim(self, positions: Positions) -> tuple[tuple[str, TopicPartition, int], ...]:
        """Return the positions as the store keeps them, if this consumer may commit them now."""
        self._check_open()
        if self.member is None:
            raise EventLogError(
                "a consumer without a group has no positions to commit: open it with group=…, or keep its "
                "positions() yourself."
            )
        for at in positions:
            if at not in self._next:
                raise FencedError(
                    f"{at} is not assigned to this consumer of group {self.member.group!r} (it has "
                    f"{_listed(self._next)}): nothing was committed."
                )
        self.store.groups.check_owner(self.member, self._owned, positions)
        return tuple((self.member.group, at, offset) for at, offset in positions.items())

    async def seek(self, positions: Positions) -> None:
        """Go on from these offsets.

        Raises:
            OffsetOutOfRangeError: before the first retained record or beyond the end.
            EventLogError: a partition is not assigned.
        """
        self._check_open()
        for at in positions:
            if at not in self._next:
                raise EventLogError(
                    f"cannot seek to {at}@{positions[at]}: this consumer has {_listed(self._next)}. "
                    "A member of a group gets its partitions in poll()."
                )
        await self._conditions.request("read")
        for at, offset in positions.items():
            self.store.check_offset(at, offset)
        self._next.update(positions)
        self._unsaved.update(positions)

    async def close(self) -> None:
        """Leave the group. Its other members take over at once, from the committed positions."""
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        if self.member is not None:
            self.store.groups.leave(self.member)
        self.store.wake()  # a poll that waits ends now, and peers take over

    def _check_open(self) -> None:
        if self._closed:
            raise EventLogError("this consumer is closed; open another one to go on.")


def _listed(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(str(at) for at in sorted(partitions)) or "no partitions yet"
