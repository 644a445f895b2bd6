"""Notice that a partition has another leader: after an unclean election it may lack records that were read.

aiokafka learns of a new leader from the cluster's metadata, and only then fetches from it; see also
:mod:`~unstable_stream.log.kafka.connections`. A broker that comes back with an empty disk is the same leader
again; in between its partitions have none. A client that fetches learns of that at once. One that has no room
for more records asks for the metadata every :data:`METADATA_S`.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as KafkaPartition

from unstable_stream.log.port import TopicPartition

__all__ = ["METADATA_S", "Leaders", "WatchedConsumer"]

METADATA_S: Final = 10
"""Seconds after which a consumer asks for the metadata again, at the latest."""

_NONE: Final = -1


class WatchedConsumer(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka publishes no types
    """aiokafka's consumer, which tells what the brokers say of the cluster.

    aiokafka has no public name for that, and asking the brokers between two polls could miss a change, or
    come after the first records of a new leader. So this is an attribute of the class that is extended;
    ``tests/log/test_kafka_leaders.py`` fails if it goes.
    """

    def on_metadata(self, see: Callable[[Any], None]) -> None:
        """Call ``see`` with aiokafka's metadata whenever they are updated."""
        self._client.cluster.add_listener(see)


class Leaders:
    """The leaders of the partitions of one consumer."""

    def __init__(self, consumer: WatchedConsumer) -> None:
        self._leaders: dict[TopicPartition, int] = {}
        self._moved: set[TopicPartition] = set()
        self.partitions: dict[str, int] = {}
        """The number of partitions by topic, as the brokers said last."""
        consumer.on_metadata(self.see)

    def see(self, metadata: Any) -> None:
        """Take in what the brokers say of the cluster; ``metadata`` is aiokafka's."""
        for topic in metadata.topics(exclude_internal_topics=False):
            partitions = metadata.partitions_for_topic(topic) or ()
            self.partitions[topic] = len(partitions)
            for partition in partitions:
                at, leader = TopicPartition(topic, partition), self._leader(metadata, topic, partition)
                if self._leaders.setdefault(at, leader) != leader:
                    self._leaders[at] = leader
                    self._moved.add(at)

    @staticmethod
    def _leader(metadata: Any, topic: str, partition: int) -> int:
        leader = metadata.leader_for_partition(KafkaPartition(topic, partition))
        return _NONE if leader is None else int(leader)

    def take_moved(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return those of these partitions that have another leader than before; each is told once."""
        moved = {at for at in self._moved if at in partitions and self._leaders.get(at, _NONE) != _NONE}
        self._moved -= moved
        return moved

    def tell_again(self, partitions: Collection[TopicPartition]) -> None:
        """Have these told again: the first look at them failed."""
        self._moved.update(partitions)
