"""Starting and stopping aiokafka's consumers."""

import asyncio
import contextlib
from typing import Final

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from unstable_stream.log.kafka.cluster import Cluster

__all__ = ["FETCH_WAIT_MS", "open_reader", "stop_reader"]

FETCH_WAIT_MS: Final = 200
"""How long a broker waits for records; what is asked of it meanwhile waits with it."""

_FETCH_BYTES: Final = 16 * 1024 * 1024
_PARTITION_FETCH_BYTES: Final = 2 * 1024 * 1024
_HEARTBEAT_S: Final = 0.5  # how soon members notice that the group moves
_CLOSE_TIMEOUT_S: Final = 10.0


async def open_reader(
    cluster: Cluster, group: str | None = None, session_timeout_s: float = 10.0
) -> AIOKafkaConsumer:
    """Start an aiokafka consumer without topics. It sees committed records only, and commits nothing itself.

    A record larger than what is fetched at once comes alone: the limits bound memory, not a record's size.

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
            # Topics with as many partitions are cut the same way, so that equal keys meet at one member.
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=round(session_timeout_s * 1000),
            heartbeat_interval_ms=round(min(session_timeout_s / 3, _HEARTBEAT_S) * 1000),
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        try:
            await reader.start()
        except BaseException:
            await stop_reader(reader)
            raise

    await cluster.start(start, "connect" if group is None else f"join group {group!r}")
    assert reader is not None
    return reader


async def stop_reader(reader: AIOKafkaConsumer) -> None:
    """Stop aiokafka's consumer, within bounds; a member leaves its group at once."""
    # Its tasks must have begun: one that is cancelled before its first step ends stop() half way.
    await asyncio.sleep(0)
    # In a task of its own: with a broker away, a fetch that stop() cancels ends stop() itself as cancelled.
    stopping = asyncio.ensure_future(reader.stop())
    try:
        await asyncio.wait((stopping,), timeout=_CLOSE_TIMEOUT_S)
    finally:
        stopping.cancel()
    with contextlib.suppress(kafka.KafkaError):
        if stopping.done() and not stopping.cancelled():
            stopping.result()
        else:
            await reader._client.close()  # what stop() did not come to
