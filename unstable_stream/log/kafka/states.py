"""Keep saved states on Kafka: in one compacted topic of the adapter's own.

The scope picks the partition, and scope and name together are the record key. So the states of a scope are
the newest records of its keys in one partition, and brokers remove the older ones. The adapter makes the
topic when the first state is saved.
"""

import time
from collections.abc import AsyncIterator, Collection, Mapping, Set
from typing import Final

from unstable_stream.log.kafka.topics import KafkaTopics
from unstable_stream.log.partitioner import partition_for_key
from unstable_stream.log.port import EventLog, Record, StoredRecord, TopicPartition, TopicSpec
from unstable_stream.log.reading import read_on, settled_ends

STATES: Final = TopicSpec(
    name="saved-states",
    partitions=8,
    cleanup_policy="compact",
    key="scope and name",
    writers=("stream processors",),
    readers=("stream processors",),
    description="Snapshots of the state of stream processors: disposable.",
)
_BETWEEN: Final = "\t"

# Brokers do not compact the segment that is being written. With their defaults (1 GiB, a week) nothing would
# be compacted for long, and a reader reads all of it.
_SETTINGS: Final = {
    "segment.bytes": str(32 * 1024 * 1024),
    "segment.ms": str(60 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.2",
}


async def state_records(topics: KafkaTopics, scope: str, states: Mapping[str, bytes]) -> list[Record]:
    """Return the records that save states; make the topic if it does not exist."""
    partitions = await topics.ensure(STATES, _SETTINGS)
    partition = partition_for_key(scope, partitions)
    now_ms = time.time_ns() // 1_000_000  # brokers begin a new segment by the time of its records
    return [
        Record(STATES.name, f"{scope}{_BETWEEN}{name}", state, timestamp_ms=now_ms, partition=partition)
        for name, state in states.items()
    ]


async def read_states(
    log: EventLog, topics: KafkaTopics, scope: str, names: Collection[str] | None
) -> dict[str, bytes]:
    """Return the states of a scope; see the port."""
    partitions = (await topics.partitions()).get(STATES.name)
    if partitions is None:
        return {}
    at = TopicPartition(STATES.name, partition_for_key(scope, partitions))
    found: dict[str, bytes] = {}
    async for record in _records(log, {at}):
        owner, _, name = record.key.partition(_BETWEEN)
        if owner == scope:
            found[name] = record.value
    return {name: state for name, state in found.items() if state and (names is None or name in names)}


async def read_names(log: EventLog, topics: KafkaTopics) -> dict[str, list[str]]:
    """Return the names of all states by scope; see the port."""
    partitions = (await topics.partitions()).get(STATES.name)
    if partitions is None:
        return {}
    there: dict[str, dict[str, bool]] = {}
    async for record in _records(log, {TopicPartition(STATES.name, at) for at in range(partitions)}):
        scope, _, name = record.key.partition(_BETWEEN)
        there.setdefault(scope, {})[name] = bool(record.value)
    kept = {
        scope: sorted(name for name, is_there in names.items() if is_there) for scope, names in there.items()
    }
    return {scope: names for scope, names in sorted(kept.items()) if names}


async def _records(log: EventLog, partitions: Set[TopicPartition]) -> AsyncIterator[StoredRecord]:
    """Yield the records of some partitions of the topic, up to their present ends."""
    begins = await log.beginning_offsets(STATES.name)
    ends = await settled_ends(log, (STATES.name,))
    wanted = {at: ends[at] for at in partitions if begins[at] < ends[at]}
    if not wanted:
        return
    consumer = await log.consumer([STATES.name], start="end")
    try:
        await consumer.seek({at: begins[at] for at in wanted})
        async for records in read_on(consumer, wanted):
            for record in records:
                if record.offset < wanted.get(TopicPartition(record.topic, record.partition), 0):
                    yield record
    finally:
        await consumer.close()
