"""Start and stop aiokafka's consumers."""

import asyncio
import contextlib
from typing import Final, Literal

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka

from unstable_stream.log.kafka.cluster import Brokers
from unstable_stream.log.kafka.membership import ShareAssignor

FETCH_WAIT_MS: Final = 200
"""Milliseconds that a broker waits for records; other requests to it wait too."""

_METADATA_S: Final = 10  # after this time, at the latest, a reader notices partitions that were added
_FETCH_BYTES: Final = 16 * 1024 * 1024
_PARTITION_FETCH_BYTES: Final = 2 * 1024 * 1024
_HEARTBEAT_S: Final = 0.5  # after this time members notice a rebalance
_CLOSE_TIMEOUT_S: Final = 10.0
_STOPPING: Final[set[asyncio.Task[None]]] = set()  # an event loop does not hold its tasks
_LAST_FETCH_S: Final = 0.01  # a fetch in progress ends in a few turns of the event loop


async def open_reader(
    cluster: Brokers,
    group: str | None = None,
    session_timeout_s: float = 10.0,
    assignor: ShareAssignor | None = None,
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed",
) -> AIOKafkaConsumer:
    """Start an aiokafka consumer without topics. It commits nothing itself.

    The fetch limits bound memory, not the size of a record: a larger record comes alone.

    Args:
        cluster: the cluster to read from.
        group: the group to join.
        session_timeout_s: seconds of silence after which a member loses its partitions.
        assignor: divides partitions and interprets this member's shares.
        isolation_level: ``read_uncommitted`` is for looking up offsets only.

    Raises the :class:`~unstable_stream.errors.EventLogError` family.
    """

    async def start() -> AIOKafkaConsumer:
        reader = AIOKafkaConsumer(
            **cluster.settings(),
            group_id=group,
            isolation_level=isolation_level,
            enable_auto_commit=False,
            auto_offset_reset="none",
            partition_assignment_strategy=(assignor or ShareAssignor(),),
            session_timeout_ms=round(session_timeout_s * 1000),
            heartbeat_interval_ms=round(min(session_timeout_s / 3, _HEARTBEAT_S) * 1000),
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            metadata_max_age_ms=_METADATA_S * 1000,
        )
        try:
            await reader.start()
        except BaseException:
            await _stop(reader)
            raise
        return reader

    return await cluster.start(start, "connect" if group is None else f"join group {group!r}")


async def stop_reader(reader: AIOKafkaConsumer) -> None:
    """Stop a started consumer; a member leaves its group at once.

    The call waits a limited time for a broker that does not answer; then stopping goes on in the background.
    """
    # Its tasks must have begun: a task that is cancelled before its first step makes stop() end too early.
    await asyncio.sleep(0)
    # A fetch that stop() cancels while a broker is away has the same effect. Unsubscribing cancels it
    # correctly.
    reader.unsubscribe()
    await asyncio.sleep(_LAST_FETCH_S)
    await _stop(reader)


async def _stop(reader: AIOKafkaConsumer) -> None:
    stopping = asyncio.create_task(reader.stop())
    _STOPPING.add(stopping)
    stopping.add_done_callback(_STOPPING.discard)
    await asyncio.wait((stopping,), timeout=_CLOSE_TIMEOUT_S)
    if stopping.done() and not stopping.cancelled():
        with contextlib.suppress(kafka.KafkaError):
            stopping.result()
