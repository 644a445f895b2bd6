"""Faust as the host of the stream processors: its agents share and read the partitions.

Faust brings membership, delivery and its command line. Our own code
(:mod:`unstable_stream.services.streams.fold_sink`) prevents loss and double counting. In particular:

- Faust acknowledges an event even if its agent failed. Nothing here is ever acknowledged, so Faust commits
  nothing in the group of its app. We commit positions in the processor's own group.
- Faust reads uncommitted records, except in its own exactly-once mode, which is broken. We set it to read
  committed records.
- We do not trust the positions at which Faust reads: it may drop or reorder records around a rebalance. Each
  record carries the offset from which Faust read up to it without a break. If that leaves a gap after the
  processed records, the record is dropped and Faust is sent back. If the gap is of records that were deleted,
  the host stops.

So Faust is a :class:`FaustConsumer` of the same loop (:mod:`unstable_stream.services.streams.consumer`) as on
any log.

``unstable-stream processors --runtime faust`` runs :func:`run_on_faust`. Faust's own command line works too:
``faust -A unstable_stream.services.streams.faust worker``, with ``UNSTABLE_STREAM_LOG`` (``kafka://HOST:PORT``)
and, to serve a single run, ``UNSTABLE_STREAM_RUN`` in the environment.
"""

import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import faust
from faust.app import BootStrategy
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from yarl import URL

from unstable_stream.errors import ConfigError, ServiceError
from unstable_stream.extensions import confine
from unstable_stream.log.kafka.cluster import Brokers
from unstable_stream.log.kafka.location import SCHEME, KafkaLocation, parse_location
from unstable_stream.log.kafka.records import stored_record
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.log.reading import any_record, check_offsets
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.streams.fold_sink import FoldSink
from unstable_stream.services.streams.processor import ProcessorSpec
from unstable_stream.services.streams.processors import PROCESSORS, fold_sinks, host_processors
from unstable_stream.services.streams.run_configs import RunDirectory

_BATCH: Final = 500
"""The most records in one batch."""
_BUFFER: Final = 2 * _BATCH
"""The most records that wait for one processor; then Faust waits."""
_IDLE_S: Final = 0.5
"""Seconds that a processor waits for records before it checks its partitions."""
_LINGER_S: Final = 0.02
"""Seconds without another record after which a batch that is not full begins: Faust delivers one by one."""
_LONGEST_LINGER_S: Final = 0.25
"""The most seconds that a batch waits in all; each costs a transaction, however small it is."""
_SESSION_TIMEOUT_S: Final = 10.0
"""Seconds after which the group notices a killed worker."""


# -- what joins on to what was processed ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FaustReading:
    """A record and the reading that led to it."""

    record: StoredRecord
    follows: int
    """The offset at which reading began or went on. No record lies between it and this record."""
    session: int
    """Counts the jumps of reading in this partition."""


def joined_on(
    batch: Iterable[FaustReading], positions: Positions, sessions: Mapping[tuple[str, int], int]
) -> tuple[list[StoredRecord], set[TopicPartition]]:
    """Return the records that follow ``positions`` without a gap, and the partitions with a gap.

    A record that was read before the last jump of its partition may leave a gap. It is dropped, and reading
    goes on as it is.
    """
    reached = dict(positions)
    records: list[StoredRecord] = []
    astray: set[TopicPartition] = set()
    for reading in batch:
        at = TopicPartition(reading.record.topic, reading.record.partition)
        expected = reached.get(at)
        if expected is None or reading.record.offset < expected:
            continue
        if reading.follows <= expected:
            records.append(reading.record)
            reached[at] = reading.record.offset + 1
        elif reading.session == sessions.get(at, 0):
            astray.add(at)
    return records, astray


async def check_gaps(log: EventLog, records: Iterable[StoredRecord], positions: Positions) -> None:
    """Raise :class:`OffsetOutOfRangeError` if records between ``positions`` and ``records`` were deleted."""
    reached = dict(positions)
    gaps: dict[TopicPartition, int] = {}
    for record in records:
        at = TopicPartition(record.topic, record.partition)
        if record.offset > reached[at]:
            gaps.setdefault(at, reached[at])
        reached[at] = record.offset + 1
    await check_offsets(log, gaps)


async def ends_without_record(log: EventLog, topic: str, positions: Positions) -> Positions:
    """Return, for partitions of a topic with nothing but offsets without a record behind ``positions``, their
    ends.

    Raises:
        OffsetOutOfRangeError: records were deleted there.
    """
    ends = await log.end_offsets(topic)
    behind = {at: offset for at, offset in positions.items() if at.topic == topic and offset < ends[at]}
    if not behind or await any_record(log, {**ends, **behind}, ends):
        return {}
    # Only now: if the first of them is there still, none of them was deleted before they were looked at.
    await check_offsets(log, behind)
    return {at: ends[at] for at in behind}


# -- Faust's consumer, which is sent to positions, and says where it was -------------------------------


class _ConsumerThread(driver.AIOKafkaConsumerThread):  # type: ignore[misc] # Faust is not typed here
    """The thread that reads. Nothing else runs in it at the same time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._reached: dict[TP, int] = {}
        self.sessions: Counter[TP] = Counter()

    def _create_worker_consumer(self, transport: Any) -> Any:
        # Faust asks for committed records only in its exactly-once mode.
        self.consumer.in_transaction = True
        try:
            return super()._create_worker_consumer(transport)
        finally:
            self.consumer.in_transaction = False

    async def _fetch_records(self, *args: Any, **kwargs: Any) -> Mapping[TP, Sequence[FaustReading]]:
        fetched = await super()._fetch_records(*args, **kwargs)
        return {at: [self._reading(at, record) for record in records] for at, records in fetched.items()}

    def _reading(self, at: TP, record: Any) -> FaustReading:
        follows = self._reached.get(at, record.offset)
        self._reached[at] = record.offset + 1
        return FaustReading(stored_record(record), follows, self.sessions[at])

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        self._reached.clear()
        self.sessions.update(assigned)
        await super().on_partitions_assigned(assigned, generation_id)

    def reached(self, at: TopicPartition) -> int:
        """Return the offset after the last record that was read."""
        return self._reached.get(TP(*at), 0)

    async def go_to(self, positions: Positions) -> None:
        """Continue at the given offsets, in those of the partitions that are assigned."""
        await self.call_thread(self._go_to, positions)

    async def _go_to(self, positions: Positions) -> None:
        consumer = self._ensure_consumer()
        for at in consumer.assignment():
            offset = positions.get(TopicPartition(at.topic, at.partition))
            if offset is not None:
                consumer.seek(at, offset)
                self._reached[at] = offset
                self.sessions[at] += 1


class _NoMemory(dict[TP, int | None]):
    """The offset that Faust has read, with which it drops records: always empty, so it drops none."""

    def __missing__(self, key: TP) -> None:
        return None

    def __setitem__(self, key: TP, value: int | None) -> None:
        pass

    def update(self, *args: Any, **kwargs: Any) -> None:
        pass


class _Consumer(driver.Consumer):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_offset = _NoMemory()

    def _new_consumer_thread(self) -> _ConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def reading(self) -> _ConsumerThread:
        """The thread that reads."""
        thread: _ConsumerThread = self._thread
        return thread

    async def seek_to_committed(self) -> Mapping[TP, int]:
        # Faust asks for this after every change of assignment. Go on at the positions of the open partitions.
        await self._thread.go_to(self.transport.host.positions())
        return {}

    def _to_message(self, tp: TP, record: FaustReading) -> Any:
        stored = record.record
        return driver.ConsumerMessage(
            stored.topic,
            stored.partition,
            stored.offset,
            stored.timestamp_ms / 1000,
            0,
            (),
            None,
            record,
            None,
            0,
            len(stored.value),
            tp,
            generation_id=self.app.consumer_generation_id,
        )


class _Transport(driver.Transport):  # type: ignore[misc]
    Consumer = _Consumer
    host: "FaustHost"


# -- one processor ----------------------------------------------------------------------------------


class FaustConsumer:
    """The records that Faust reads for one processor: a :class:`~unstable_stream.log.port.Consumer`.

    Its agent puts records into a queue, and :meth:`poll` takes from there those that join on.
    """

    log: EventLog

    def __init__(self, app: Any, spec: ProcessorSpec) -> None:
        """Make the agent; ``log`` must be set before the first poll."""
        self._app = app
        self._inputs = spec.inputs
        self._waiting: asyncio.Queue[FaustReading] = asyncio.Queue(_BUFFER)
        self._next: dict[TopicPartition, int] = {}
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._delivered_at = 0.0
        # Without acks Faust commits nothing, and we keep account of everything that it has read.
        topic = app.topic(*spec.inputs, acks=False, key_serializer="raw", value_serializer="raw")
        app.agent(topic, name=spec.name)(self._read)

    async def _read(self, stream: Any) -> None:
        """Receive records: this is the Faust agent."""
        async for event in stream.events():
            await self._waiting.put(event.message.value)

    async def poll(self, max_records: int = _BATCH, timeout_s: float = _IDLE_S) -> list[StoredRecord]:
        """Return records that follow the positions without a gap; send Faust back where it left one.

        Raises:
            OffsetOutOfRangeError: the next records were deleted.
        """
        reading: _ConsumerThread = self._app.consumer.reading
        batch = await self._batch(max_records, min(timeout_s, _IDLE_S))
        if not self._app.rebalancing:
            assigned = {TopicPartition(at.topic, at.partition) for at in self._app.consumer.assignment()}
            self._assigned = frozenset(at for at in assigned if at.topic in self._inputs)
            self._next = {at: offset for at, offset in self._next.items() if at in self._assigned}
        records, astray = joined_on(batch, self._next, reading.sessions)
        await check_gaps(self.log, records, self._next)
        self._next |= {TopicPartition(one.topic, one.partition): one.offset + 1 for one in records}
        if batch:
            self._delivered_at = time.monotonic()
        elif time.monotonic() - self._delivered_at >= _IDLE_S and not self._app.rebalancing:
            # Faust read a record and delivers nothing: it has dropped the record.
            astray = {at for at, offset in self._next.items() if reading.reached(at) > offset}
            for topic in self._inputs if not astray else ():
                self._next |= await ends_without_record(self.log, topic, self._next)
        if astray:
            await self.seek({at: self._next[at] for at in astray})
        return records

    async def _batch(self, most: int, wait_s: float) -> list[FaustReading]:
        try:
            async with asyncio.timeout(wait_s):
                batch = [await self._waiting.get()]
        except TimeoutError:
            return []
        began, waiting = time.monotonic(), -1
        while waiting < self._waiting.qsize() < most and time.monotonic() - began < _LONGEST_LINGER_S:
            waiting = self._waiting.qsize()
            await asyncio.sleep(_LINGER_S)
        while len(batch) < most and not self._waiting.empty():
            batch.append(self._waiting.get_nowait())
        return batch

    def assignment(self) -> frozenset[TopicPartition]:
        return self._assigned

    def positions(self) -> Positions:
        return self._next

    async def seek(self, positions: Positions) -> None:
        self._next |= positions
        self._delivered_at = time.monotonic()
        await self._app.consumer.reading.go_to(positions)

    async def committed(self) -> Positions:
        """Return nothing: nothing is committed in Faust's group."""
        return {}

    async def commit(self, positions: Positions | None = None) -> None:
        """Do nothing: positions are committed in the processor's own group."""

    async def close(self) -> None:
        """Do nothing: Faust closes what reads."""


# -- the app ----------------------------------------------------------------------------------------


class _WithoutWeb(BootStrategy):  # type: ignore[misc]
    enable_web = False


class _App(faust.App):  # type: ignore[misc]
    BootStrategy = _WithoutWeb


class FaustHost:
    """A Faust app with an agent for each processor."""

    def __init__(self, location: KafkaLocation, run_id: str | None) -> None:
        """Make the app; workers that serve the same runs have the same name and Kafka group."""
        self._files = tempfile.TemporaryDirectory(prefix="unstable_stream-faust-")
        self.app = _App(
            "unstable_stream-faust" if run_id is None else f"unstable_stream-faust-{run_id}",
            broker=[URL(f"{SCHEME}{server}") for server in location.servers],
            broker_credentials=credentials(location),
            broker_session_timeout=_SESSION_TIMEOUT_S,
            broker_heartbeat_interval=_SESSION_TIMEOUT_S / 3,
            consumer_auto_offset_reset="earliest",
            stream_wait_empty=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            datadir=self._files.name,
        )
        transport = _Transport(self.app.conf.broker_consumer, self.app)
        transport.host = self
        self.app.transport = transport
        self._consumers = {spec.name: FaustConsumer(self.app, spec) for spec in PROCESSORS}

    def positions(self) -> Positions:
        """Return the next offset of every partition that is read."""
        return {at: offset for one in self._consumers.values() for at, offset in one.positions().items()}

    async def join(self, sink: FoldSink) -> FaustConsumer:
        """Return what reads for a sink."""
        consumer = self._consumers[sink.spec.name]
        consumer.log = sink.log
        return consumer


def credentials(location: KafkaLocation) -> Any:
    """Return Faust's credentials for the brokers; ``None`` if they ask for none."""
    context = Brokers(location, 0.0, 0.0).settings()["ssl_context"]
    if location.uses_sasl:
        return faust.SASLCredentials(
            username=location.sasl_username,
            password=location.sasl_password,
            ssl_context=context,
            mechanism=location.sasl_mechanism,
        )
    return faust.SSLCredentials(context) if location.uses_tls else None


def kafka_location(text: str) -> KafkaLocation:
    """Return the location of Faust's brokers; raises :class:`ConfigError` for another kind of log."""
    if not text.startswith(SCHEME):
        raise ConfigError(
            f"the faust runtime needs a Kafka log, found log {text!r}: give --log kafka://HOST:PORT, or use "
            "--runtime generic"
        )
    return parse_location(text, os.environ)


async def run_on_faust(
    sinks: Sequence[FoldSink],
    location: str,
    *,
    stop: asyncio.Event,
    drain: bool,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Host processors on Faust until ``stop`` is set; the arguments are those of the generic host.

    Raises:
        ConfigError: the log is not on Kafka.
        UnknownTopicError: a topic is missing.
        ServiceError: a fold failed, or Faust failed; nothing of the batch is committed.
        FencedError: a process outside the group takes the partitions over.
    """
    host = FaustHost(kafka_location(location), sinks[0].run_id)
    for topic in {topic for sink in sinks for topic in sink.spec.inputs}:
        # Faust would wait for ever for a broker or a topic that is not there.
        await sinks[0].log.end_offsets(topic)
    started = asyncio.ensure_future(host.app.start())
    ended = asyncio.ensure_future(host.app.wait())
    stopped = asyncio.ensure_future(stop.wait())
    tasks: list[asyncio.Future[Any]] = [started, ended, stopped]
    try:
        await asyncio.wait(tasks if not drain else [started, ended], return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            started.result()
            hosting = asyncio.ensure_future(
                host_processors(
                    sinks, stop=stop, drain=drain, max_records=_BATCH, on_ready=on_ready, join=host.join
                )
            )
            tasks.append(hosting)
            await asyncio.wait({hosting, ended}, return_when=asyncio.FIRST_COMPLETED)
            if hosting.done():
                hosting.result()
    finally:
        for task in tasks:
            task.cancel()  # after a crash Faust ends the thread that reads, and it never answers
        await asyncio.gather(*tasks, return_exceptions=True)
        await host.app.stop()
    if host.app.crash_reason is not None:
        reason = host.app.crash_reason
        raise ServiceError(f"Faust stopped: {type(reason).__name__}: {reason}") from reason


def _standalone() -> Any:
    """Return the app of Faust's own command line, configured from the environment.

    It loads only the code of recorded runs that :data:`~unstable_stream.extensions.ALLOW_CODE` allows.
    """
    confine()
    text = os.environ.get("UNSTABLE_STREAM_LOG", "")
    run_id = os.environ.get("UNSTABLE_STREAM_RUN") or None
    host = FaustHost(kafka_location(text), run_id)
    app, stop = host.app, asyncio.Event()
    hosting: list[asyncio.Task[None]] = []

    async def serve() -> None:
        async with opened_log(text, DataDir().log) as log, RunDirectory(log) as runs:
            sinks = await fold_sinks(log, runs, run_id)
            await host_processors(sinks, stop=stop, drain=False, max_records=_BATCH, join=host.join)

    def crash(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            app.add_future(app.crash(error))

    async def begin() -> None:
        hosting.append(asyncio.ensure_future(serve()))
        hosting[0].add_done_callback(crash)

    async def end(*_: object, **__: object) -> None:
        stop.set()
        for task in hosting:
            if app.crash_reason is not None:  # Faust ends the thread that reads, and it never answers
                task.cancel()
            await asyncio.wait([task])

    app.task(begin)
    app.on_before_shutdown.connect(end)
    return app


def __getattr__(name: str) -> Any:
    # `faust -A` looks for an app here. Importing this module for another purpose must not make one.
    if name == "app":
        globals()[name] = _standalone()
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
