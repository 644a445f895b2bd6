"""The partitions a member of a group owns. aiokafka rebalances in the background, and tells this listener."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiokafka import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from unstable_stream.log.port import TopicPartition

__all__ = ["Membership", "ShareAssignor"]


class ShareAssignor(RangePartitionAssignor):  # type: ignore[misc]  # aiokafka publishes no types
    """Kafka's range assignor: topics with as many partitions are cut the same way, so that equal keys meet.

    It also tells a member whether somebody else may have owned its partitions between its last two shares.
    Nobody did if the member asked to join once, and the brokers know it by the name it had: they make a new
    generation without a member only after they forget its name. The leader writes each member's name, which
    aiokafka keeps to itself, into its share.
    """

    def __init__(self) -> None:
        self._joins = 0
        self._name = b""
        self.unbroken = False
        """Whether this member belonged to every generation since the share before the last."""

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Note that the member asks to join: aiokafka calls this whenever it does."""
        self._joins += 1
        return super().metadata(topics)

    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        """Share the partitions out, as the group's leader."""
        return {
            name: ConsumerProtocolMemberAssignment(share.version, share.assignment, name.encode())
            for name, share in super().assign(cluster, members).items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Judge a new share. One from a leader with another assignor has no name in it."""
        name = bytes(assignment.user_data or b"")
        self.unbroken = self._joins == 1 and name != b"" and name == self._name
        self._name = name
        self._joins = 0


class Membership(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka publishes no types
    """The partitions a member owns now, and for each the share since which nobody else did."""

    def __init__(self, assignor: ShareAssignor, on_change: Callable[[], None]) -> None:
        self._assignor = assignor
        self._on_change = on_change
        self._settled = asyncio.Event()
        self.rebalancing = True
        """From the first hint that the group moves until this member has its new share."""
        self.version = 0
        """Counts the shares it got."""
        self.owned: Mapping[TopicPartition, int] = {}
        """Partition to the first version of an unbroken row in which it was this member's."""

    def moves(self) -> None:
        """Note that the group is about to move; it is settled when this member has a share again."""
        self.rebalancing = True
        self._settled.clear()

    async def settled(self) -> None:
        """Wait until no rebalance is under way, or the consumer is closed."""
        await self._settled.wait()

    def close(self) -> None:
        """Let nobody wait any more."""
        self._settled.set()

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        """Note that a rebalance begins."""
        self.moves()
        self._on_change()

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        """Note the new share."""
        # In a generation that this member missed, its partitions may have been another's.
        before = self.owned if self._assignor.unbroken else {}
        self.version += 1
        partitions = [TopicPartition(at.topic, at.partition) for at in assigned]
        self.owned = {at: before.get(at, self.version) for at in partitions}
        self.rebalancing = False
        self._settled.set()
        self._on_change()
