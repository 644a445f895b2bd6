"""A log to try plug-ins on, local or Kafka, with topics of its own on a shared broker."""

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.log.harness import topics_of_one_partition
from tests.services.streams.tapped_log import Told, at_call, kill_this_process, tapped
from unstable_stream import Context, consumer
from unstable_stream.events import Event, Metrics, RecordRejected, Step
from unstable_stream.log.open import open_log_at, opened_log
from unstable_stream.log.port import EventLog, Record, StoredRecord, TopicPartition, Trimmable
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.records import event_from_record, record_from_event
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.streams.plugins import Plugin
from unstable_stream.services.streams.plugins.host import PluginCounters, run_plugin

BATCH = 7
_SHARED = (Metrics.TOPIC, RecordRejected.TOPIC)


def counting(suffix: str, name: str = "counting") -> Plugin:
    """A plug-in that numbers the steps of each run in each partition."""

    @consumer(topics=[f"steps{suffix}"], name=f"{name}{suffix}", state=dict)
    def count(event: Step, context: Context) -> None:
        context.state["n"] = context.state.get("n", 0) + 1
        context.emit("n", context.state["n"])

    return count


@dataclasses.dataclass
class PluginBench:
    """A log, its data directory, and what a test needs of both."""

    log: EventLog
    location: str
    data: DataDir
    suffix: str = ""
    run_id: str = dataclasses.field(default_factory=lambda: f"run-{uuid.uuid4().hex[:8]}")

    @classmethod
    async def open(cls, location: str, directory: Path) -> "PluginBench":
        """Open a log; on a shared one the topics get names nobody else uses."""
        data = DataDir(directory)
        suffix = "" if location == "local" else f"-{uuid.uuid4().hex[:8]}"
        bench = cls(open_log_at(location, data.log), location, data, suffix)
        specs = {spec.name: spec for spec in topics_of_one_partition()}
        await bench.log.create_topics(
            # Kept for ever: the made-up history happened long ago.
            [
                dataclasses.replace(spec, name=bench.topic(spec.name), retention_ms=None)
                for spec in specs.values()
            ]
        )
        await bench.log.create_topics([specs[name] for name in _SHARED])
        return bench

    def topic(self, name: str) -> str:
        """The name a topic has here."""
        return name if name in _SHARED else f"{name}{self.suffix}"

    def record(self, event: Event) -> Record:
        """The record of an event on this log."""
        record = record_from_event(event)
        return msgspec.structs.replace(record, topic=self.topic(record.topic))

    async def publish(self, events: Sequence[Event]) -> None:
        await self.log.append([self.record(event) for event in events])

    async def run(self, plugin: Plugin, told: Told | None = None, **named: object) -> PluginCounters:
        """Run a plug-in until it has seen everything; ``told`` hears of its calls to the log."""
        counters = PluginCounters()
        arguments: dict[str, object] = {
            "stop": asyncio.Event(),
            "until_end": True,
            "max_records": BATCH,
            "counters": counters,
            **named,
        }
        async with asyncio.timeout(60):
            log = self.log if told is None else tapped(self.log, told)
            await run_plugin(log, plugin, self.data, **arguments)  # type: ignore[arg-type]
        return counters

    async def stored(self, name: str) -> list[StoredRecord]:
        """What a topic holds."""
        return [record async for record in read_to_end(self.log, (self.topic(name),))]

    async def metrics(self, plugin: Plugin) -> dict[str, float]:
        """Event id to value of what a plug-in has published; of an id published twice, all must be equal."""
        found: dict[str, float] = {}
        for record in await self.stored("metrics"):
            event = event_from_record(record)
            if isinstance(event, Metrics) and event.source == plugin.source:
                (value,) = event.values.values()
                assert found.setdefault(event.event_id, value) == value, "one id, two values"
        return found

    async def letters(self, plugin: Plugin) -> list[RecordRejected]:
        """What the plug-in has set aside."""
        events = [event_from_record(record) for record in await self.stored("dead-letters")]
        return [
            event
            for event in events
            if isinstance(event, RecordRejected) and event.consumer.startswith(plugin.source)
        ]

    async def delete_before(self, positions: Mapping[TopicPartition, int]) -> None:
        """Delete the beginning of partitions, as retention does."""
        if isinstance(self.log, Trimmable):
            await self.log.delete_before(positions)
        else:
            await asyncio.to_thread(delete_on_kafka, self.location, positions)

    async def close(self) -> None:
        await self.log.close()


@pytest.fixture
async def bench(location: str, tmp_path: Path) -> AsyncIterator[PluginBench]:
    opened = await PluginBench.open(location, tmp_path)
    yield opened
    await opened.close()


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[PluginBench]:
    opened = await PluginBench.open("local", tmp_path)
    yield opened
    await opened.close()


def delete_on_kafka(location: str, positions: Mapping[TopicPartition, int]) -> None:
    """Delete the beginning of partitions, as retention does."""
    from confluent_kafka import TopicPartition as KafkaPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": location.removeprefix("kafka://")})
    asked = [KafkaPartition(where.topic, where.partition, offset) for where, offset in positions.items()]
    for future in admin.delete_records(asked).values():
        future.result(30)


def run_until_killed(location: str, directory: Path, suffix: str, call: str, occurrence: int) -> None:
    """Host :func:`counting`, and die at a call to the log."""
    die = at_call(call, occurrence, kill_this_process)

    async def host() -> None:
        data = DataDir(directory)
        async with opened_log(location, data.log) as log:
            await PluginBench(log, location, data, suffix).run(counting(suffix), told=die)

    asyncio.run(host())
