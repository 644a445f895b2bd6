"""The monitor follows the log, measures the lag of its groups, and serves both to Prometheus.

It reads the log without a group and writes nothing. So it works in the same way on a local log and on Kafka,
wherever the services run. Counts are folds of the log from the monitor's first position. It serves them only
when it has caught up, so that a restart shows no jump.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from unstable_stream.errors import LogUnavailableError, OffsetOutOfRangeError, ServiceError
from unstable_stream.events import RunStarted
from unstable_stream.log.port import Consumer, EventLog, Start, TopicPartition
from unstable_stream.log.reading import ends_of, events_to_end
from unstable_stream.log.topics import load_topics
from unstable_stream.log_lines import get_logger
from unstable_stream.tracking.lag import Lag, live_groups, measure_lag
from unstable_stream.tracking.log_state import Key, MonitorState

__all__ = ["exposition", "run_monitor"]

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
    """Return all served values; ``docs/monitoring.md`` describes each."""
    runs: dict[Key, float] = {
        (run.run_id,): float(run.state == "running") for run in state.runs.runs.values()
    }
    positions = {(lag.group, *map(str, lag.at)): float(lag.committed or 0) for lag in lags}
    behind = {(lag.group, *map(str, lag.at)): float(lag.lag) for lag in lags}
    read = {tuple(map(str, at)): float(end) for at, end in ends.items()}
    group = ("group", "topic", "partition")
    service = ("run", "service")
    return [
        _gauge("log_up", "1 if the log could be reached at the last measurement", (), {(): float(log_up)}),
        _counter("events", "Records by topic and event type", ("run", "topic", "type"), state.events),
        _counter("games", "Finished games", ("run", "split", "reason"), state.games),
        _counter("steps_trained", "Steps trained on", ("run",), state.trained),
        _counter("steps_dropped", "Steps dropped", ("run", "reason"), state.dropped),
        _counter("tokens_trained", "Completion tokens trained on", ("run",), state.tokens),
        _gauge("learner_update", "Number of the latest learner update", ("run",), state.update),
        _gauge(
            "learner_progress_timestamp_seconds",
            "When the latest learner update was made, or the run started or resumed",
            ("run",),
            state.progress_s,
        ),
        _gauge("run_active", "1 until the run has ended", ("run",), runs),
        _counter("dead_letters", "Records set aside", ("run", "consumer", "topic"), state.dead_letters),
        _gauge("service_up", "1 while the service's process runs", service, state.service_up),
        _counter("service_restarts", "Restarts since the run began", service, state.service_restarts),
        _counter("archive_records", "Records stored by the run's archiver", ("run",), state.archived),
        _gauge("consumer_position", "Offset a group has committed", group, positions),
        _gauge("consumer_lag", "Records a group has not committed yet", group, behind),
        _gauge("topic_position", "Offset the monitor has read up to", ("topic", "partition"), read),
        _gauge("value", "The latest value on the topic metrics", ("run", "source", "name"), state.values),
    ]


def _counter(name: str, text: str, labels: Sequence[str], values: Mapping[Key, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(_PREFIX + name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _gauge(name: str, text: str, labels: Sequence[str], values: Mapping[Key, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(_PREFIX + name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
