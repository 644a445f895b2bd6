"""The members of consumer groups and the partitions they own.

As on the real logs: a live member gives partitions up only in its own next poll, a silent one loses them when
another member looks, and its later commits fail.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unstable_stream.errors import FencedError
from unstable_stream.log.port import Positions, TopicPartition

__all__ = ["Groups", "Member"]


@dataclass(eq=False, slots=True)
class Member:
    """One consumer of a group."""

    number: int
    """In the order of joining."""
    group: str
    topics: tuple[str, ...]
    seen_s: float = 0.0
    """The event loop's time of its last poll."""


@dataclass(slots=True)
class _Group:
    members: dict[int, Member] = field(default_factory=dict)
    owners: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Member number, and the generation in which it took the partition."""
    generation: int = 0


class Groups:
    """All groups of a store."""

    def __init__(self, session_timeout_s: float) -> None:
        self._session_timeout_s = session_timeout_s
        self._groups: dict[str, _Group] = {}

    @property
    def look_again_s(self) -> float:
        """Seconds after which a waiting member shows that it lives."""
        return self._session_timeout_s / 3

    def clear(self) -> None:
        """Forget all members."""
        self._groups.clear()

    def generation(self, name: str) -> int:
        """Return the group's generation; it moves with every change of members or owners."""
        return self._groups[name].generation if name in self._groups else 0

    def synchronise(
        self, member: Member, partitions: Mapping[str, Sequence[TopicPartition]], now_s: float
    ) -> dict[TopicPartition, int]:
        """Join or stay, put out silent members, and bring the owners closer to a fair share.

        Args:
            member: who polls.
            partitions: those of all topics, by topic.
            now_s: the event loop's time.

        Returns:
            The member's partitions, with the generation in which it took each.
        """
        group = self._groups.setdefault(member.group, _Group())
        before = (set(group.members), dict(group.owners))
        member.seen_s = now_s
        group.members[member.number] = member
        for number, peer in list(group.members.items()):
            if now_s - peer.seen_s > self._session_timeout_s:
                self._remove(group, number)
        for at, receiver in self._shared(group, partitions).items():
            owner = group.owners.get(at, (None, 0))[0]
            if owner in (None, member.number) and owner != receiver:
                group.owners[at] = (receiver, group.generation + 1)
        if before != (set(group.members), group.owners):
            group.generation += 1
        return {at: taken for at, (owner, taken) in sorted(group.owners.items()) if owner == member.number}

    def leave(self, member: Member) -> None:
        """Take a member out at once."""
        group = self._groups.get(member.group)
        if group is not None and member.number in group.members:
            self._remove(group, member.number)
            group.generation += 1

    def check_owner(self, member: Member, owned: Mapping[TopicPartition, int], positions: Positions) -> None:
        """Raise :class:`FencedError` unless the member still owns these partitions."""
        owners = self._groups[member.group].owners if member.group in self._groups else {}
        for at in positions:
            if owners.get(at) != (member.number, owned[at]):
                raise FencedError(
                    f"group {member.group!r} gave {at} to this consumer in generation {owned[at]}, but "
                    "it was handed to another member or taken away since: nothing was committed. Drop what "
                    "was read and poll again; reading resumes at the committed positions."
                )

    @staticmethod
    def _remove(group: _Group, number: int) -> None:
        del group.members[number]
        group.owners = {at: owner for at, owner in group.owners.items() if owner[0] != number}

    @staticmethod
    def _shared(
        group: _Group, partitions: Mapping[str, Sequence[TopicPartition]]
    ) -> dict[TopicPartition, int]:
        """Cut each topic into ranges over its subscribers in the order of joining, as Kafka does."""
        shared: dict[TopicPartition, int] = {}
        members = sorted(group.members.values(), key=lambda member: member.number)
        for topic in dict.fromkeys(topic for member in members for topic in member.topics):
            readers = [member.number for member in members if topic in member.topics]
            all_of = partitions[topic]
            for index, at in enumerate(all_of):
                shared[at] = readers[index * len(readers) // len(all_of)]
        return shared
