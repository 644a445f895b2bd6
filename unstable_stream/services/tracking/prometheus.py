"""The monitor follows the log, measures the lag of its groups, and serves both to Prometheus.

It reads the log without a group and writes nothing. So it works in the same way on a local log and on Kafka,
wherever the services run. Counts are folds of the log from the monitor's first position. It serves them only
when it has caught up, so that a restart shows no jump.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from unstable_stream.console import get_logger
from unstable_stream.errors import EventError, LogUnavailableError, OffsetOutOfRangeError, ServiceError
from unstable_stream.events import (
    EVENT_TYPES,
    Event,
    GameOutcome,
    LearnerUpdate,
    Metrics,
    RecordRejected,
    RunFinished,
    RunStarted,
    StepsDropped,
)
from unstable_stream.log.port import Consumer, EventLog, Start, StoredRecord, TopicPartition
from unstable_stream.log.reading import ends_of, events_to_end
from unstable_stream.log.records import event_from_record
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.history import RunHistory
from unstable_stream.services.tracking.lag import Lag, live_groups, measure_lag
from unstable_stream.services.tracking.service_reports import ARCHIVER, LAUNCHER, read_archived, read_services

Key: TypeAlias = tuple[str, ...]
"""The labels of a count or value; the first is the run."""

_DECODED: Final = frozenset({"runs", "game-outcomes", "learner-updates", "dead-letters", "metrics"})
"""The topics whose records are decoded; for other topics the headers of a record are enough."""
_MOST_RUNS: Final = 100
"""The most runs with series of their own. Beyond it, the longest silent run loses its series.
"""
_SOURCE_PREFIX: Final = b"/unstable_stream/runs/"
_TYPE_NAMES: Final = {
    f"unstable_stream.{name}.v{version}".encode(): name
    for name, event_class in EVENT_TYPES.items()
    for version in range(1, event_class.SCHEMA_VERSION + 1)
}
_GROUP: Final = ("group", "topic", "partition")
_SERVICE: Final = ("run", "service")
_Family: TypeAlias = type[CounterMetricFamily] | type[GaugeMetricFamily]
FAMILIES: Final[Mapping[str, tuple[_Family, str, Sequence[str]]]] = {
    "log_up": (GaugeMetricFamily, "1 if the log could be reached at the last measurement", ()),
    "events": (CounterMetricFamily, "Records by topic and event type", ("run", "topic", "type")),
    "games": (CounterMetricFamily, "Finished games", ("run", "split", "reason")),
    "steps_trained": (CounterMetricFamily, "Steps trained on", ("run",)),
    "steps_dropped": (CounterMetricFamily, "Steps dropped", ("run", "reason")),
    "tokens_trained": (CounterMetricFamily, "Completion tokens trained on", ("run",)),
    # Of several trained models, of the one behind.
    "learner_update": (GaugeMetricFamily, "Number of the latest learner update", ("run",)),
    "learner_progress_timestamp_seconds": (
        GaugeMetricFamily,
        "When the latest learner update was made, or the run started or resumed",
        ("run",),
    ),
    "run_active": (GaugeMetricFamily, "1 until the run has ended", ("run",)),
    "dead_letters": (CounterMetricFamily, "Records set aside", ("run", "consumer", "topic")),
    "service_up": (GaugeMetricFamily, "1 while the service's process runs", _SERVICE),
    "service_restarts": (CounterMetricFamily, "Restarts since the run began", _SERVICE),
    "archive_records": (CounterMetricFamily, "Records stored by the run's archiver", ("run",)),
    "consumer_position": (GaugeMetricFamily, "Offset a group has committed", _GROUP),
    "consumer_lag": (GaugeMetricFamily, "Records a group has not committed yet", _GROUP),
    "topic_position": (GaugeMetricFamily, "Offset the monitor has read up to", ("topic", "partition")),
    "value": (GaugeMetricFamily, "The latest value on the topic metrics", ("run", "source", "name")),
}
"""Class, description and labels of each family of series, by name."""


class MonitorState:
    """The fold. Pass it every record. It counts records, so a record delivered twice counts twice."""

    def __init__(self, most_runs: int = _MOST_RUNS) -> None:
        self.runs = RunHistory()
        self.values: dict[str, defaultdict[Key, float]] = {name: defaultdict(float) for name in FAMILIES}
        """Everything that is folded, by name of its family in :data:`FAMILIES`."""
        self._models: dict[str, dict[str | None, int]] = {}
        """Number of the latest update by run and trained model."""
        self._most_runs = most_runs
        self._recent: dict[str, None] = {}

    def apply(self, record: StoredRecord) -> None:
        """Fold a record; an unreadable record is counted with the type ``unreadable``."""
        event: Event | None = None
        kind = _TYPE_NAMES.get(record.headers.get("ce_type", b""))
        source = record.headers.get("ce_source", b"")
        if record.topic in _DECODED or kind is None or not source.startswith(_SOURCE_PREFIX):
            try:
                event = event_from_record(record)
            except EventError:
                self.values["events"]["", record.topic, "unreadable"] += 1
                return
            run, kind = event.run_id, str(event.__struct_config__.tag)
        else:
            run = source.removeprefix(_SOURCE_PREFIX).decode(errors="replace")
        self._touch(run)
        self.values["events"][run, record.topic, kind] += 1
        if event is not None:
            self._apply_event(event)

    def _apply_event(self, event: Event) -> None:
        run = event.run_id
        if isinstance(event, GameOutcome):
            self.values["games"][run, event.split, event.reason] += 1
        elif isinstance(event, LearnerUpdate):
            self._apply_update(event)
        elif isinstance(event, RecordRejected):
            self.values["dead_letters"][run, event.consumer.partition("/")[0], event.topic] += 1
        elif isinstance(event, StepsDropped):
            self._apply_drops(event)
        elif isinstance(event, Metrics):
            self._apply_metrics(event)
        elif event.TOPIC == RunStarted.TOPIC:
            self.apply_run(event)

    def apply_run(self, event: Event) -> None:
        """Fold an event of topic ``runs`` without counting it."""
        run = event.run_id
        self._touch(run)
        self.runs.apply(event)
        if not isinstance(event, RunFinished):
            self._progress(event)
            return
        up, latest = self.values["service_up"], self.values["value"]
        up.update((key, 0.0) for key in list(up) if key[0] == run)
        for key in [key for key in latest if key[0] == run]:
            del latest[key]  # these values describe a running run, and this one is over

    def _apply_update(self, event: LearnerUpdate) -> None:
        models = self._models.setdefault(event.run_id, {})
        if event.update <= models.get(event.model, 0):
            return  # the record was delivered again
        models[event.model] = event.update
        run = (event.run_id,)
        self.values["learner_update"][run] = min(models.values())
        self.values["steps_trained"][run] += len(event.step_ids)
        self.values["tokens_trained"][run] += int(event.metrics.get("completion_tokens", 0))
        self._apply_drops(event)
        self._progress(event)

    def _apply_drops(self, event: LearnerUpdate | StepsDropped) -> None:
        for drop in event.dropped:
            self.values["steps_dropped"][event.run_id, drop.reason] += 1

    def _apply_metrics(self, event: Metrics) -> None:
        run = event.run_id
        if event.source == LAUNCHER:
            for service, (up, restarts) in read_services(event).items():
                self.values["service_up"][run, service] = up
                self.values["service_restarts"][run, service] = restarts
        elif event.source == ARCHIVER:
            self.values["archive_records"][run,] = read_archived(event)
        else:
            for name, value in event.values.items():
                self.values["value"][run, event.source, name] = value

    def _progress(self, event: Event) -> None:
        times = self.values["learner_progress_timestamp_seconds"]
        times[event.run_id,] = max(times[event.run_id,], event.occurred_at_ms / 1000)

    def _touch(self, run: str) -> None:
        self._recent.pop(run, None)
        self._recent[run] = None
        if len(self._recent) > self._most_runs:
            self._forget(next(iter(self._recent)))

    def _forget(self, run: str) -> None:
        del self._recent[run]
        self.runs.runs.pop(run, None)
        self._models.pop(run, None)
        for table in self.values.values():
            for key in [key for key in table if key[0] == run]:
                del table[key]


_PREFIX: Final = "unstable_stream_"
_RETRY_S: Final = 1.0
_STOP_NOTICED_S: Final = 0.5

_log = get_logger(__name__)


async def run_monitor(
    log: EventLog,
    *,
    port: int,
    host: str = "127.0.0.1",
    start: Start = "beginning",
    stop: asyncio.Event,
    every_s: float = 5.0,
    on_ready: Callable[[int], None] = lambda port: None,
) -> None:
    """Serve ``http://host:port/metrics`` until ``stop``.

    Args:
        log: the event log.
        port: the port to listen on; 0 takes a free one.
        host: the address to listen on.
        start: the place to begin counting; runs are always read from their beginning.
        stop: ends the monitor.
        every_s: seconds between two measurements of lag, after which the served values are renewed.
        on_ready: called with the port when the monitor has caught up with the log.

    Raises:
        ServiceError: the monitor cannot listen on the port.
        LogUnavailableError: the log could not be reached at the start; later failures are tried again.
    """
    served = _ServedMetrics()
    with _serving(served, host, port) as listening_on:
        monitor = _Monitor(log, served, start, every_s)
        try:
            await monitor.catch_up(stop)
            _log.info("serving metrics", host=host, port=listening_on)
            on_ready(listening_on)
            while not stop.is_set():
                await monitor.follow(stop)
        finally:
            await monitor.close()


class _ServedMetrics(Collector):
    """The answer to the next scrape. It is replaced as a whole, because scrapes come in other threads."""

    def __init__(self) -> None:
        self.metrics: Sequence[Metric] = ()

    def collect(self) -> Iterable[Metric]:
        return self.metrics


@contextmanager
def _serving(served: _ServedMetrics, host: str, port: int) -> Iterator[int]:
    registry = CollectorRegistry()
    registry.register(served)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ServiceError(
            f"cannot serve metrics on {host}:{port}: {error.strerror or error}; choose another port"
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Monitor:
    def __init__(self, log: EventLog, served: _ServedMetrics, start: Start, every_s: float) -> None:
        self._event_log = log
        self._served = served
        self._start = start
        self._every_s = every_s
        self._state = MonitorState()
        self._topics: list[str] = []
        self._consumer: Consumer | None = None
        self._lags: Sequence[Lag] = ()
        self._ends: Mapping[TopicPartition, int] = {}

    async def catch_up(self, stop: asyncio.Event) -> None:
        """Read the log to its present end, then serve the values."""
        if self._start != "beginning" and RunStarted.TOPIC in await self._event_log.topics():
            async for _, event in events_to_end(self._event_log, (RunStarted.TOPIC,)):
                self._state.apply_run(event)
        await self._open()
        ends = await ends_of(self._event_log, self._topics)
        while self._consumer is not None and not stop.is_set():
            positions = self._consumer.positions()
            if all(positions.get(at, 0) >= end for at, end in ends.items()):
                break
            await self._read(0.2)
        await self._measure()

    async def follow(self, stop: asyncio.Event) -> None:
        """Read for one interval, then measure; try again if the log cannot be reached."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._every_s
        try:
            await self._open()
            while (left := deadline - loop.time()) > 0 and not stop.is_set():
                if self._consumer is None:
                    await asyncio.sleep(min(left, _STOP_NOTICED_S))
                else:
                    await self._read(min(left, _STOP_NOTICED_S))
            await self._measure()
        except LogUnavailableError as error:
            _log.warning("the log cannot be reached, trying again", reason=str(error))
            self._served.metrics = exposition(self._state, self._lags, self._ends, log_up=False)
            await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.close()

    async def _open(self) -> None:
        """Follow all declared topics that exist now; the first run creates them."""
        there = await self._event_log.topics()
        topics = [name for name in load_topics() if name in there]
        if topics == self._topics:
            return
        before = self._consumer
        # Read new topics from their beginning; go on with the others at the present positions.
        consumer = await self._event_log.consumer(topics, start="beginning" if before else self._start)
        if before is not None:
            await consumer.seek(before.positions())
            await before.close()
        self._consumer, self._topics = consumer, topics

    async def _read(self, timeout_s: float) -> None:
        assert self._consumer is not None
        try:
            for record in await self._consumer.poll(max_records=2000, timeout_s=timeout_s):
                self._state.apply(record)
        except OffsetOutOfRangeError as error:
            _log.warning("records were deleted before they could be counted", reason=str(error))
            positions = self._consumer.positions()
            for topic in self._topics:
                begins = await self._event_log.beginning_offsets(topic)
                await self._consumer.seek({at: max(begin, positions[at]) for at, begin in begins.items()})

    async def _measure(self) -> None:
        groups = await live_groups(self._event_log, self._state.runs.finished())
        self._lags = await measure_lag(self._event_log, groups, self._topics)
        self._ends = dict(self._consumer.positions()) if self._consumer is not None else {}
        self._served.metrics = exposition(self._state, self._lags, self._ends, log_up=True)


def exposition(
    state: MonitorState, lags: Sequence[Lag], ends: Mapping[TopicPartition, int], *, log_up: bool
) -> list[Metric]:
    """Return all served values; ``docs/how-to/monitoring.md`` describes each."""
    measured: dict[str, Mapping[Key, float]] = {
        "log_up": {(): float(log_up)},
        "run_active": {(run.run_id,): float(run.state == "running") for run in state.runs.runs.values()},
        "consumer_position": {(lag.group, *map(str, lag.at)): float(lag.committed or 0) for lag in lags},
        "consumer_lag": {(lag.group, *map(str, lag.at)): float(lag.lag) for lag in lags},
        "topic_position": {tuple(map(str, at)): float(end) for at, end in ends.items()},
    }
    families: list[Metric] = []
    for name, (kind, text, labels) in FAMILIES.items():
        family = kind(_PREFIX + name, text, labels=labels)
        for key, value in (state.values | measured)[name].items():
            family.add_metric(key, value)
        families.append(family)
    return families
