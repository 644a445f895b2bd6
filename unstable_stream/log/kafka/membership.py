"""The partitions that a member of a group owns. aiokafka rebalances in the background and calls this
listener.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiokafka import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from unstable_stream.log.port import TopicPartition


class ShareAssignor(RangePartitionAssignor):  # type: ignore[misc]  # aiokafka publishes no types
    """Kafka's range assignor: it divides topics of equal size in the same way, so equal keys go to one
    member.

    It also tells a member whether another member may have owned its partitions between its last two shares.
    No other member did if this member asked to join once and still has the same name: brokers make a
    generation without a member only after they forget its name. aiokafka hides the names, so the leader
    writes each member's name into its share.
    """

    def __init__(self) -> None:
        self._joins = 0
        self._name = b""
        self.unbroken = False
        """True if this member belonged to every generation since its share before the last one."""

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Note that the member asks to join; aiokafka calls this each time."""
        self._joins += 1
        return super().metadata(topics)

    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        """Divide the partitions among the members; the group's leader calls this."""
        return {
            name: ConsumerProtocolMemberAssignment(share.version, share.assignment, name.encode())
            for name, share in super().assign(cluster, members).items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Check a new share. A share from a leader with another assignor has no name in it."""
        name = bytes(assignment.user_data or b"")
        self.unbroken = self._joins == 1 and name != b"" and name == self._name
        self._name = name
        self._joins = 0


class Membership(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka publishes no types
    """The partitions that a member owns now, and for each the share since which no other member owned it."""

    def __init__(self, assignor: ShareAssignor, on_change: Callable[[], None]) -> None:
        self._assignor = assignor
        self._on_change = on_change
        self._settled = asyncio.Event()
        self.rebalancing = True
        """True from the first sign of a rebalance until this member has its new share."""
        self.version = 0
        """The number of shares that this member received."""
        self.owned: Mapping[TopicPartition, int] = {}
        """By partition, the first version of the unbroken row of shares in which this member had it."""

    def moves(self) -> None:
        """Note that a rebalance is near; it ends when this member has a share again."""
        self.rebalancing = True
        self._settled.clear()

    async def settled(self) -> None:
        """Wait until no rebalance is in progress, or the consumer is closed."""
        await self._settled.wait()

    def close(self) -> None:
        """End all waiting."""
        self._settled.set()

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        """Note that a rebalance begins."""
        self.moves()
        self._on_change()

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        """Note the new share."""
        # In a generation without this member, another member may have had its partitions.
        before = self.owned if self._assignor.unbroken else {}
        self.version += 1
        partitions = [TopicPartition(at.topic, at.partition) for at in assigned]
        self.owned = {at: before.get(at, self.version) for at in partitions}
        self.rebalancing = False
        self._settled.set()
        self._on_change()
