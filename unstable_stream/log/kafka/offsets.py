"""Look up offsets: beginnings, ends, offsets of times, and the error for a position that does not exist."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as KafkaPartition

from unstable_stream.errors import OffsetOutOfRangeError
from unstable_stream.log.kafka.cluster import Brokers, Lazy
from unstable_stream.log.kafka.readers import FETCH_WAIT_MS, open_reader, stop_reader
from unstable_stream.log.port import Positions, Start, TopicPartition


class KafkaOffsets:
    """Looks up offsets of whole partitions."""

    def __init__(self, cluster: Brokers) -> None:
        self._cluster = cluster
        self._reader = Lazy(lambda: open_reader(cluster), stop_reader)
        self._uncommitted = Lazy(
            lambda: open_reader(cluster, isolation_level="read_uncommitted"), stop_reader
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._reader.close()
        await self._uncommitted.close()

    async def beginning(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the first retained record of each partition."""
        return await self._look_up(self._reader, AIOKafkaConsumer.beginning_offsets, partitions)

    async def end(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition: committed records behind it cannot be read yet."""
        return await self._look_up(self._reader, AIOKafkaConsumer.end_offsets, partitions)

    async def high_watermark(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition, whatever transaction it is in."""
        return await self._look_up(self._uncommitted, AIOKafkaConsumer.end_offsets, partitions)

    async def _look_up(
        self, lazy: Lazy[AIOKafkaConsumer], find: Callable[..., Any], partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        reader = await lazy.get()
        wanted = [KafkaPartition(*at) for at in partitions]
        found = await self._cluster.ask(lambda: find(reader, wanted), "look up offsets")
        return {at: found[at] for at in partitions}

    async def start(self, partitions: Sequence[TopicPartition], start: Start) -> dict[TopicPartition, int]:
        """Return the first position to read if no position is committed."""
        if not partitions:
            return {}
        if start == "beginning":
            return await self.beginning(partitions)
        if start == "end":
            return await self.end(partitions)
        return await self.for_time(partitions, start)

    async def for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset with a timestamp at or after the given one, for each partition; the end if
        none.

        Kafka's index also finds markers of transactions, which carry the time of writing. Where it finds a
        marker, the records after it are read.
        """
        ends = await self.end(partitions)
        reader = await self._reader.get()
        wanted = {KafkaPartition(*at): max(timestamp_ms, 0) for at in partitions}
        found = await self._cluster.ask(lambda: reader.offsets_for_times(wanted), "look up offsets by time")
        offsets = dict(ends)
        candidates = {
            at: found[at].offset for at in partitions if found[at] is not None and found[at].offset < ends[at]
        }
        if candidates:
            offsets |= await self._first_records(candidates, ends, timestamp_ms)
        return offsets

    async def _first_records(
        self, candidates: Mapping[TopicPartition, int], ends: Positions, timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first late enough record, from each candidate on; the end if none."""
        reader = await open_reader(self._cluster)
        try:
            wanted = {KafkaPartition(*at): offset for at, offset in candidates.items()}
            reader.assign(list(wanted))
            for at, offset in wanted.items():
                reader.seek(at, offset)
            offsets: dict[TopicPartition, int] = {}
            while len(offsets) < len(candidates):
                left = [at for at in wanted if at not in offsets]
                fetch = partial(reader.getmany, *left, timeout_ms=FETCH_WAIT_MS)
                fetched = await self._cluster.ask(fetch, "look up offsets by time")
                for at in left:
                    late = (r.offset for r in fetched.get(at, ()) if r.timestamp >= timestamp_ms)
                    first = next(late, None)
                    own = TopicPartition(*at)
                    if first is not None:
                        offsets[own] = min(first, ends[own])
                    elif await reader.position(at) >= ends[own]:
                        offsets[own] = ends[own]
                if len(offsets) < len(candidates):
                    reader.pause(*(at for at in wanted if at in offsets))
            return offsets
        finally:
            await stop_reader(reader)

    async def out_of_range(self, at: TopicPartition, offset: int) -> OffsetOutOfRangeError:
        """Return the error for a position that does not exist."""
        begin, end = (await self.beginning([at]))[at], (await self.end([at]))[at]
        return OffsetOutOfRangeError.of(at, offset, begin, end)
