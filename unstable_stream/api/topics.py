"""The topics of a log: as declared and as they are, how far their readers are, and what they end with."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from unstable_stream.api.loops import iterate, wait_for
from unstable_stream.api.place import Place
from unstable_stream.errors import EventLogError, RunError, UnknownTopicError, did_you_mean
from unstable_stream.events import EVENT_TYPES
from unstable_stream.log import topic_drift, topics
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog, TopicPartition, TopicSpec, Trimmable
from unstable_stream.log.port import StoredRecord as StoredRecord
from unstable_stream.log.records import json_object
from unstable_stream.log.schema_registry import RegisteredSchema, SchemaRegistry, event_schemas
from unstable_stream.log.topic_drift import Drift
from unstable_stream.log.topic_drift import show_setting as show_setting
from unstable_stream.runs.history import read_history
from unstable_stream.services.streams.finished_states import (
    FinishedState,
    finished_states,
    forget_states,
    idle_runs,
)
from unstable_stream.services.tracking.lag import Lag as Lag
from unstable_stream.services.tracking.lag import live_groups, measure_lag

if TYPE_CHECKING:
    from unstable_stream.services.workers.retention import Expired

T = TypeVar("T")


def declared_topics() -> Mapping[str, TopicSpec]:
    """Return the topics by name, as ``topics/`` declares them."""
    return topics.load_topics()


def declared_topic(name: str) -> TopicSpec:
    """Return one topic's declaration; raises :class:`UnknownTopicError` that names those there are."""
    specs = topics.load_topics()
    if name not in specs:
        meant = did_you_mean(name, specs, after=" ")
        raise UnknownTopicError(f"no topic {name!r}; {meant}topics: {', '.join(specs)}")
    return specs[name]


def event_fields(event: str) -> list[str]:
    """Return the names of an event's fields."""
    return ["type", *EVENT_TYPES[event].__struct_encode_fields__]


def kept(spec: TopicSpec) -> str:
    """Say how long a topic's records are kept."""
    return "latest per key" if spec.cleanup_policy == "compact" else show_setting(spec, "retention_ms")


def record_counts(place: Place) -> Mapping[str, int] | None:
    """Return how many records (on Kafka offsets) each topic holds; ``None``: there is no log yet."""

    async def count(log: EventLog, topic: str) -> int:
        begin, end = await asyncio.gather(log.beginning_offsets(topic), log.end_offsets(topic))
        return sum(end.values()) - sum(begin.values())

    async def ask(log: EventLog) -> dict[str, int]:
        there = await log.topics()
        names = [topic for topic in topics.load_topics() if topic in there]
        counts = await asyncio.gather(*(count(log, name) for name in names))
        return dict(zip(names, counts, strict=True))

    return _on_log(ask, place)


def topic_settings(place: Place) -> Mapping[str, TopicSpec] | None:
    """Return the settings in force by topic; ``None``: there is no log yet."""
    return _on_log(lambda log: log.topic_settings(), place)


def _on_log(ask: Callable[[EventLog], Awaitable[T]], place: Place) -> T | None:
    """Ask a log; ``None`` if it is a file that does not exist, since the declaration is worth showing too."""
    if place.log == "local" and not place.data.log.is_file():
        return None

    return place.ask_log(ask)


@dataclass(frozen=True)
class Created:
    """The result of :func:`create_topics`."""

    created: Sequence[str]
    different: Sequence[str]
    """Topics that were there with other settings; altered if that was asked for."""


def create_topics(place: Place, *, alter: bool = False) -> Created:
    """Create the topics that are missing; ``alter``: also bring existing ones to their declaration."""
    declared = topics.load_topics()

    async def work() -> Created:
        place.data.refuse_export()
        async with opened_log(place.log, place.data.log) as log:
            drift = topic_drift.find_drift(declared, await log.topic_settings())
            await topic_drift.create_declared_topics(log, declared)
            different = {
                each.topic: each.declared
                for each in drift
                if each.setting not in ("topic", "partitions", "loses_by")
            }
            if alter and different:
                await log.alter_topics(list(different.values()))
            return Created([each.topic for each in drift if each.setting == "topic"], list(different))

    return wait_for(work())


def topic_drifts(place: Place) -> Sequence[Drift]:
    """Return where the log's topics differ from their declaration.

    Raises:
        EventLogError: there is no log.
    """

    async def work(log: EventLog) -> Sequence[Drift]:
        return topic_drift.find_drift(topics.load_topics(), await log.topic_settings())

    return place.ask_log(work)


def remedy(place: Place, drift: Drift) -> str:
    """Say how to mend a difference."""
    return topic_drift.remedy(drift, place.log, place.options)


def trim(
    place: Place, *, ignored_groups: Sequence[str] = (), shrink: bool = False, dry_run: bool = False
) -> Sequence["Expired"]:
    """Delete the expired records of the local log that are archived and that no group needs.

    Args:
        place: whose log.
        ignored_groups: groups that hold back nothing.
        shrink: also make the file smaller; nothing else may use the log.
        dry_run: only return what would be deleted.

    Raises:
        ArchiveError: there is no archive.
        EventLogError: there is no log, it deletes by itself, or with ``shrink`` another process uses it.
    """
    from unstable_stream.archive import RecordReader
    from unstable_stream.services.workers.retention import expired_records

    async def work(log: EventLog) -> Sequence["Expired"]:
        if not isinstance(log, Trimmable):
            raise EventLogError(
                f"{place.log} deletes expired records by itself; shorten what a topic keeps with Kafka's "
                "own tools, or in topics/ and with unstable-stream topics create --alter"
            )
        reader = await asyncio.to_thread(RecordReader, place.archive, await log.log_id())
        archived = {TopicPartition(*at): end for at, end in (await asyncio.to_thread(reader.ends)).items()}
        await asyncio.to_thread(reader.release)
        now_ms = int(time.time() * 1000)
        found = await expired_records(log, archived, now_ms, ignored_groups)
        if not dry_run:
            await log.delete_before({each.at: each.until for each in found if each.records})
            if shrink:
                await log.shrink()
        return found

    return place.ask_log(work)


def prune_states(
    place: Place, runs: Sequence[str] = (), *, dry_run: bool = False, idle_days: float = 30
) -> list[FinishedState]:
    """Forget the saved states of runs that are over; return what was found.

    Args:
        place: whose log.
        runs: ids or prefixes of runs; if empty, of all.
        dry_run: only return what is there.
        idle_days: a run that never ended is over if nothing was recorded of it for so many days.

    Raises:
        RunError: no such run, or it is not over.
        EventLogError: there is no log.
    """

    async def work(log: EventLog) -> list[FinishedState]:
        history = await read_history(log)
        named = [history.find(run, place.dropped()) for run in runs]
        now_ms, idle_ms = int(time.time() * 1000), int(idle_days * 24 * 3600 * 1000)
        idle = await idle_runs(log, history, now_ms, idle_ms) if named else ()
        for run in named:
            if run.ended is None and run.run_id not in idle:
                raise RunError(
                    f"run {run.run_id} has not ended, and something was recorded of it within "
                    f"{idle_days:g} days, so its states are needed. If it was killed, resume it and stop "
                    "it with Ctrl-C, or give a lower number: --idle-days"
                )
        found = await finished_states(
            log,
            ended_before_ms=now_ms + 1,
            named=[run.run_id for run in named],
            now_ms=now_ms,
            idle_ms=idle_ms,
        )
        if not dry_run:
            await forget_states(log, found)
        return found

    return place.ask_log(work)


def strimzi(cluster: str, *, replicas: int = 3, namespace: str | None = None, api_version: str = "v1") -> str:
    """Return Kubernetes KafkaTopic manifests for Strimzi's operator.

    Args:
        cluster: name of the Strimzi Kafka cluster.
        replicas: copies of each partition.
        namespace: Kubernetes namespace of the cluster.
        api_version: ``v1``, or ``v1beta2`` before Strimzi 0.49.
    """
    specs = topics.load_topics().values()
    return topics.manifests(specs, cluster, replicas=replicas, namespace=namespace, api_version=api_version)


def asyncapi() -> str:
    """Return the AsyncAPI 3.0 document of all topics."""
    return (topics.TOPICS_DIR / "asyncapi.json").read_text(encoding="utf-8")


def register_schemas(
    registry: str, *, compatibility: str | None = None, dry_run: bool = False
) -> Sequence[RegisteredSchema]:
    """Register the JSON Schema of every event at a schema registry; those that are there stay as they are.

    The login comes from ``UNSTABLE_STREAM_REGISTRY_USERNAME`` and ``_PASSWORD``, certificates to trust from
    ``UNSTABLE_STREAM_REGISTRY_SSL_CAFILE``.

    Args:
        registry: its address, up to where ``/subjects`` follows.
        compatibility: what the versions of each new or changed event have to be; ``None``: as it is set.
        dry_run: only look which are there.

    Raises:
        ConfigError: the address is none, or has a password in it.
        EventLogError: the registry is not reached, or refuses.
    """
    at = SchemaRegistry(registry)
    return [
        at.find(subject, schema) if dry_run else at.register(subject, schema, compatibility)
        for subject, schema in event_schemas()
    ]


def lags(
    place: Place, *, group: str | None = None, everyone: bool = False, every_s: float | None = None
) -> Iterator[Sequence[Lag]]:
    """Measure how far each consumer group is behind.

    Args:
        place: whose log.
        group: only groups with this in the name.
        everyone: also the groups of finished runs.
        every_s: measure again every so many seconds, without end; ``None``: once.
    """

    async def measure() -> AsyncGenerator[Sequence[Lag], None]:
        async with place.opened_log() as log:
            while True:
                over = () if everyone else (await read_history(log)).finished() | place.dropped()
                groups = await live_groups(log, over)
                wanted = [name for name in groups if group is None or group in name]
                yield await measure_lag(log, wanted, topics.load_topics().keys())
                if every_s is None:
                    return
                await asyncio.sleep(every_s)

    return iterate(measure())


def record_body(record: StoredRecord) -> dict[str, object]:
    """Return a record's JSON object; anything else under a name that says so."""
    body = json_object(record.value)
    return {"unreadable": record.value.decode(errors="replace")} if body is None else body


def tail(
    place: Place, topic: str, lines: int = 10, *, follow: bool = False, run: str | None = None
) -> Iterator[StoredRecord]:
    """Yield the last records of a topic.

    Args:
        place: whose log.
        topic: its name.
        lines: how many.
        follow: go on with new records, without end.
        run: only records of this run; see :func:`~unstable_stream.api.run.open_run`.

    Raises:
        RunError: no such run, or several.
        UnknownTopicError: the log has no such topic.
    """
    from unstable_stream.log.reading import read_tail

    async def read() -> AsyncGenerator[StoredRecord, None]:
        async with place.opened_log() as log:
            run_id = (await read_history(log)).find(run, place.dropped()).run_id if run else None

            def is_wanted(record: StoredRecord) -> bool:
                return run_id is None or record_body(record).get("run_id") == run_id

            found, consumer = await read_tail(log, topic, lines, is_wanted)
            try:
                for record in found:
                    yield record
                while follow:
                    for record in filter(is_wanted, await consumer.poll(timeout_s=1.0)):
                        yield record
            finally:
                await consumer.close()

    return iterate(read())
