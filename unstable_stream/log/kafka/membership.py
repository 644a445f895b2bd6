"""What a member of a group owns: aiokafka rebalances in the background, and tells this listener."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

from unstable_stream.log.port import TopicPartition

__all__ = ["Membership"]


class Membership(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka publishes no types
    """The partitions a member owns now, and for each the group's generation since which nobody else did."""

    def __init__(self, consumer: AIOKafkaConsumer, on_change: Callable[[], None]) -> None:
        self._consumer = consumer
        self._on_change = on_change
        self._generation = 0
        self._settled = asyncio.Event()
        self.rebalancing = True
        """From the first hint that the group moves until this member has its new share."""
        self.version = 0
        """Counts the shares it got."""
        self.owned: Mapping[TopicPartition, int] = {}
        """Partition to the first generation of an unbroken row in which it was this member's."""

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
        generation = int(self._consumer._coordinator.generation)
        unbroken = generation == self._generation + 1
        before = self.owned if unbroken else {}
        partitions = [TopicPartition(at.topic, at.partition) for at in assigned]
        self.owned = {at: before.get(at, generation) for at in partitions}
        self._generation = generation
        self.rebalancing = False
        self._settled.set()
        self.version += 1
        self._on_change()
