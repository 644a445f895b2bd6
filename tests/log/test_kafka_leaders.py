"""A consumer hears of each change of a leader, also of one that is undone before it looks."""

from types import SimpleNamespace
from typing import Any, cast

from aiokafka.cluster import ClusterMetadata
from aiokafka.protocol.metadata import MetadataResponse_v1

from unstable_stream.log.kafka.leaders import Leaders, WatchedConsumer
from unstable_stream.log.port import TopicPartition

_FIRST, _SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def _tell(metadata: ClusterMetadata, *leaders: int) -> None:
    partitions = [(0, number, leader, [1, 2], [1]) for number, leader in enumerate(leaders)]
    brokers = [(node, "127.0.0.1", node, None) for node in (1, 2)]
    metadata.update_metadata(MetadataResponse_v1(brokers, 1, [(0, "t", False, partitions)]))


def _watched() -> tuple[ClusterMetadata, Leaders]:
    metadata: Any = ClusterMetadata()
    consumer = SimpleNamespace(on_metadata=metadata.add_listener)
    return metadata, Leaders(cast(WatchedConsumer, consumer))


async def test_aiokafka_tells_a_consumer_what_the_brokers_say() -> None:
    consumer = WatchedConsumer(bootstrap_servers="127.0.0.1:1")
    told: list[object] = []
    consumer.on_metadata(told.append)
    _tell(consumer._client.cluster, 1, 2)
    assert len(told) == 1
    await consumer.stop()


def test_partitions_that_were_added_are_counted() -> None:
    metadata, leaders = _watched()
    _tell(metadata, 1, 2)
    assert leaders.partitions == {"t": 2}
    _tell(metadata, 1, 2, 1)
    assert leaders.partitions == {"t": 3}


def test_another_leader_is_told_once() -> None:
    metadata, leaders = _watched()
    _tell(metadata, 1, 2)
    assert leaders.take_moved({_FIRST, _SECOND}) == set()
    _tell(metadata, 2, 2)
    assert leaders.take_moved({_SECOND}) == set()
    assert leaders.take_moved({_FIRST, _SECOND}) == {_FIRST}
    _tell(metadata, 2, 2)
    assert leaders.take_moved({_FIRST, _SECOND}) == set()


def test_a_leader_that_was_another_in_between_is_told_of() -> None:
    metadata, leaders = _watched()
    for leader in (1, 2, 1):
        _tell(metadata, leader, 2)
    assert leaders.take_moved({_FIRST, _SECOND}) == {_FIRST}


def test_a_leader_that_comes_back_is_told_of_once_it_is_there() -> None:
    """Perhaps with an empty disk."""
    metadata, leaders = _watched()
    _tell(metadata, 1, 2)
    _tell(metadata, -1, 2)
    assert leaders.take_moved({_FIRST, _SECOND}) == set()
    _tell(metadata, 1, 2)
    assert leaders.take_moved({_FIRST, _SECOND}) == {_FIRST}
    leaders.tell_again([_FIRST])
    assert leaders.take_moved({_FIRST, _SECOND}) == {_FIRST}
