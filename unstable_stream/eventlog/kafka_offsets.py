"""Looking up offsets: beginnings, ends, times, and what is there when a position is not."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.structs import TopicPartition as KafkaPartition

from unstable_stream.errors import OffsetOutOfRangeError
from unstable_stream.eventlog.kafka_cluster import Cluster, Lazy
from unstable_stream.eventlog.port import Positions, Start, TopicPartition

__all__ = ["KafkaOffsets", "listed", "open_reader"]

_HEARTBEAT_S: Final = 0.5  # how soon members notice that the group moves
FETCH_MAX_BYTES: Final = 16 * 1024 * 1024
PARTITION_FETCH_BYTES: Final = 2 * 1024 * 1024
FETCH_WAIT_MS: Final = 200


async def open_reader(
    cluster: Cluster, group: str | None = None, session_timeout_s: float = 10.0
) -> AIOKafkaConsumer:
    """Start an aiokafka consumer without any topics, which sees committed records only.

    It waits for new records on a broker for a short time only: what it learns meanwhile, such as that another
    partition on the same broker is wanted too, waits with it.

    A record larger than the limits is returned alone, so they bound memory, not the size of records.

    Raises the :class:`~unstable_stream.errors.EventLogError` family.
    """
    reader: AIOKafkaConsumer | None = None

    async def start() -> None:
        nonlocal reader
        reader = AIOKafkaConsumer(
            **cluster.settings(),
            group_id=group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=round(session_timeout_s * 1000),
            heartbeat_interval_ms=round(min(session_timeout_s / 3, _HEARTBEAT_S) * 1000),
            fetch_max_bytes=FETCH_MAX_BYTES,
            max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        try:
            await reader.start()
        except BaseException:
            await reader.stop()
            raise

    await cluster.start(start, "connect" if group is None else f"join group {group!r}")
    assert reader is not None
    return reader


class KafkaOffsets:
    """Offsets of whole partitions, committed records only."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._reader = Lazy(lambda: open_reader(cluster), lambda reader: reader.stop())

    async def close(self) -> None:
        """Close the connection."""
        await self._reader.close()

    async def beginning(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Offset of the first retained record of each partition."""
        reader = await self._reader.get()
        wanted = [KafkaPartition(*at) for at in partitions]
        found = await self._cluster.ask(lambda: reader.beginning_offsets(wanted), "look up offsets")
        return {at: found[at] for at in partitions}

    async def end(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Offset after the last committed record of each partition, its transaction's marker included."""
        reader = await self._reader.get()
        wanted = [KafkaPartition(*at) for at in partitions]
        found = await self._cluster.ask(lambda: reader.end_offsets(wanted), "look up offsets")
        return {at: found[at] for at in partitions}

    async def start(self, partitions: Sequence[TopicPartition], start: Start) -> dict[TopicPartition, int]:
        """Where reading begins when nothing is committed."""
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
        """First offset of each partition with a timestamp at or after the given one; the end if none.

        Kafka's index counts the markers of transactions too, which have the time they were written: where one
        was found, the records behind it are looked at.
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
        """Offset of the first record so late at or behind each candidate; the end if none."""
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
            await reader.stop()

    async def out_of_range(self, at: TopicPartition, offset: int) -> OffsetOutOfRangeError:
        """Return the error for a position that is not there."""
        begin, end = (await self.beginning([at]))[at], (await self.end([at]))[at]
        return OffsetOutOfRangeError(
            f"{at}@{offset} is out of range: this log has offsets {begin} up to (not including) {end}. "
            + (
                "Records before were deleted by retention: seek to the beginning, and count them as lost."
                if offset < begin
                else "The log is shorter than this position: is it another log, or an older copy of it?"
            )
        )


def listed(partitions: Collection[TopicPartition]) -> str:
    """Name partitions in a message."""
    return ", ".join(str(at) for at in sorted(partitions)) or "no partitions yet"
