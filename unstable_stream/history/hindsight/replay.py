"""Replay history, at its original speed or faster, into a target.

:func:`paced` yields records when they are due; :func:`write_lines`, :func:`copy_into` and :func:`rehearse`
take them. :mod:`unstable_stream.history.hindsight.offline` trains on replayed steps.
"""

import asyncio
import base64
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unstable_stream.errors import ConfigError
from unstable_stream.events import Metrics
from unstable_stream.log.port import EventLog, Record, StoredRecord, TopicPartition, TopicSpec
from unstable_stream.log.topic_drift import with_partitions
from unstable_stream.log.topics import load_topics
from unstable_stream.services.streams.ordered_history import Merged
from unstable_stream.services.streams.plugins import Plugin
from unstable_stream.services.streams.plugins.worker import PluginWorker

_SHORTEST_SLEEP_S: Final = 0.002
"""Records due within this time are passed on together, because a sleep costs about as much."""


async def paced(
    history: AsyncIterator[Merged],
    speed: float | None,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[Merged]:
    """Pass records on when they are due.

    Args:
        history: records in order.
        speed: factor of the original speed; ``None``: at once.
        now: the clock, in seconds.
        sleep: waits so many seconds on that clock.
    """
    first_ms: int | None = None
    latest_ms = 0
    began = 0.0
    async for piece in history:
        due: list[StoredRecord] = []
        for record in piece.records:
            if first_ms is None:
                first_ms, began = record.timestamp_ms, now()
            # A record with an earlier time than the one before is due at once: offsets decide the order in a
            # partition.
            latest_ms = max(latest_ms, record.timestamp_ms)
            due_s = began + (latest_ms - first_ms) / 1000 / (speed or math.inf)
            if due_s - now() > _SHORTEST_SLEEP_S:
                if due:
                    yield Merged(due, piece.read)
                    due = []
                if (wait_s := due_s - now()) > 0:
                    await sleep(wait_s)
            due.append(record)
        yield Merged(due, piece.read)


# -- targets --------------------------------------------------------------------------------------


def line_of(record: StoredRecord) -> bytes:
    """Return a record as a JSON object: position, key, time, and the unchanged body under ``event``.

    A body that is no JSON stands under ``value_base64`` instead.
    """
    head = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": record.key,
    }
    try:
        msgspec.json.decode(record.value, type=msgspec.Raw)
        record.value.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode(head | {"value_base64": base64.b64encode(record.value).decode()})
    # Insert the body unchanged: decoding and encoding it again would be most of the work.
    return msgspec.json.encode(head)[:-1] + b',"event":' + record.value.replace(b"\n", b" ") + b"}"


async def write_lines(history: AsyncIterator[Merged], write: Callable[[bytes], Any]) -> int:
    """Write each record as a line; return the number of records."""
    count = 0
    async for piece in history:
        if piece.records:
            write(b"\n".join(map(line_of, piece.records)) + b"\n")
        count += len(piece.records)
    return count


async def copy_into(
    history: AsyncIterator[Merged], source: EventLog | None, target: EventLog, topics: dict[str, int]
) -> int:
    """Append each record to another log with the same key, body, headers and time; return the number of
    records.

    Args:
        history: the records to copy.
        source: the log of the records, for the settings of undeclared topics; ``None``: an archive.
        target: the log to append to; missing topics are created.
        topics: the number of partitions in the source, by topic. An archive knows only those that have
            records, so from one the declared topics get those that they are declared with.

    Raises:
        ConfigError: source and target are the same log.
    """
    if source is not None and await source.log_id() == await target.log_id():
        raise ConfigError("--into-log names the log that is replayed: it would get every event twice")
    declared = load_topics()
    settings = {} if source is None else await source.topic_settings()
    there = await target.topics()
    missing = [
        (declared[name] if source is None else with_partitions(declared[name], partitions))
        if name in declared
        else settings.get(name) or TopicSpec(name, partitions)
        for name, partitions in topics.items()
        if name not in there
    ]
    if missing:
        await target.create_topics(missing)
    count = 0
    async for piece in history:
        if piece.records:
            copied = [Record(r.topic, r.key, r.value, r.headers, r.timestamp_ms) for r in piece.records]
            await target.append(copied)
        count += len(piece.records)
    return count


@dataclass(slots=True)
class PluginTally:
    """The results of a plug-in over a history; nothing of it is on the log."""

    handled: int = 0
    emitted: int = 0
    failed: int = 0
    first_failure: str = ""


async def rehearse(
    history: AsyncIterator[Merged], plugin: Plugin, on_metrics: Callable[[Sequence[Metrics]], Any]
) -> PluginTally:
    """Pass the events of a history to a plug-in. It starts without state, and no position is stored.

    An event it fails at is not tried again.

    Args:
        history: the records; topics that the plug-in does not read are left out.
        plugin: the plug-in.
        on_metrics: called with its metrics.

    Raises:
        PluginError: the plug-in does not start.
    """
    done = PluginTally()
    worker = PluginWorker(plugin, None)
    known: set[TopicPartition] = set()
    try:
        await worker.start()
        async for piece in history:
            pending = [record for record in piece.records if record.topic in plugin.topics]
            for record in pending:
                where = TopicPartition(record.topic, record.partition)
                if where not in known:
                    known.add(where)
                    worker.restore(where, {})
            limit = len(pending)
            while pending:
                attempt = await worker.attempt(pending[:limit])
                if attempt.failure is not None and attempt.failure.index > 0:
                    limit = attempt.failure.index  # those before it once more, without it
                    continue
                if attempt.failure is None:
                    done.handled += attempt.handled
                    done.emitted += len(attempt.metrics)
                    on_metrics(attempt.metrics)
                else:
                    done.failed += 1
                    done.first_failure = done.first_failure or f"{pending[0]}: {attempt.failure.reason}"
                    limit = 1
                pending = pending[limit:]
                limit = len(pending)
    finally:
        await worker.close()
    return done
