"""Faust as the host of the stream processors: its agents share and read the partitions.

Faust brings membership, delivery and its command line. Our own code
(:mod:`unstable_stream.streams.fold_sink`) prevents loss and double counting. In particular:

- Faust acknowledges an event even if its agent failed. Nothing here is ever acknowledged, so Faust commits
  nothing in the group of its app. We commit positions in the processor's own group.
- Faust reads uncommitted records, except in its own exactly-once mode, which is broken. We set it to read
  committed records.
- We do not trust the positions at which Faust reads. Each record carries the offset from which Faust read up
  to it without a break. If that leaves a gap after the processed records, the record is dropped and Faust is
  sent back. If the gap is of records that were deleted, the host stops.

``unstable-stream processors --runtime faust`` runs :func:`run_on_faust`. Faust's own command line works too:
``faust -A unstable_stream.streams.faust worker``, with ``UNSTABLE_STREAM_LOG`` (``kafka://HOST:PORT``)
and, to serve a single run, ``UNSTABLE_STREAM_RUN`` in the environment.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.streams.faust_reading import FaustReading, check_gaps, ends_without_record, joined_on
from unstable_stream.streams.fold_sink import FoldSink, ProcessorSpec
from unstable_stream.streams.processors import PROCESSORS, fold_sinks
from unstable_stream.streams.run_configs import RunDirectory

__all__ = ["FaustProcessors", "credentials", "kafka_location", "run_on_faust"]

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
_DRAIN_S: Final = 60.0
"""Seconds without progress after which a draining host gives up."""


# -- Faust's consumer, told where to read and made to say where it was ------------------------------


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
    host: "FaustProcessors"


# -- one processor ----------------------------------------------------------------------------------


class _Served:
    """One processor. The records that its agent reads wait here until the partitions have been checked."""

    def __init__(self, app: Any, spec: ProcessorSpec) -> None:
        self._app = app
        self._inputs = spec.inputs
        self._waiting: asyncio.Queue[FaustReading] = asyncio.Queue(_BUFFER)
        self._sink: FoldSink | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.ready = asyncio.Event()
        # Without acks Faust commits nothing, and we keep account of everything that it has read.
        topic = app.topic(*spec.inputs, acks=False, key_serializer="raw", value_serializer="raw")
        app.agent(topic, name=spec.name)(self._read)

    async def _read(self, stream: Any) -> None:
        """Receive records: this is the Faust agent."""
        async for event in stream.events():
            await self._waiting.put(event.message.value)

    def positions(self) -> Positions:
        """Next offset of every open partition."""
        return {} if self._sink is None else self._sink.positions()

    def begin(self, sink: FoldSink, fail: Callable[[BaseException], None]) -> None:
        """Process records until :meth:`end`; report an error to ``fail``."""
        self._sink = sink
        self._task = asyncio.ensure_future(self._serve(sink))

        def look(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                fail(error)

        self._task.add_done_callback(look)

    def stop(self) -> None:
        """Begin no further batch."""
        self._stopping.set()

    async def end(self) -> None:
        """Finish the current batch and close the partitions."""
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._sink is not None:
            await self._sink.close()

    async def drained(self, log: EventLog) -> bool:
        """Return whether this processor's partitions were read and processed to their ends."""
        assigned, processed = self._assigned(), self.positions()
        if assigned != processed.keys():
            return False
        ends: dict[TopicPartition, int] = {}
        for topic in self._inputs:
            ends |= await log.end_offsets(topic)
        return all(processed[at] >= ends[at] for at in assigned)

    async def _serve(self, sink: FoldSink) -> None:
        reading: _ConsumerThread = self._app.consumer.reading
        while not self._stopping.is_set():
            batch = await self._next_batch()
            opened: Positions = {}
            if not self._app.rebalancing:
                opened = await sink.follow(self._assigned())
                self.ready.set()
            before = {at: offset for at, offset in sink.positions().items() if at not in opened}
            records, astray = joined_on(batch, before, reading.sessions)
            if not batch:
                # Faust read a record and delivers nothing: it has dropped the record.
                astray = {at for at, offset in before.items() if reading.reached(at) > offset}
            await check_gaps(sink.log, records, before)
            await sink.process(records, {})
            if not batch and not astray and not self._app.rebalancing:
                for topic in self._inputs:
                    await sink.settle(await ends_without_record(sink.log, topic, sink.positions()))
            back = {at: offset for at, offset in sink.positions().items() if at in opened or at in astray}
            if back:
                await self._unless_stopping(reading.go_to(back))

    async def _unless_stopping(self, asked: Awaitable[None]) -> None:
        """Wait for the thread that reads. After a crash Faust ends it, and it never answers."""
        answer, stopping = asyncio.ensure_future(asked), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({answer, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                answer.result()
        finally:
            answer.cancel()
            stopping.cancel()
            await asyncio.gather(answer, stopping, return_exceptions=True)

    async def _next_batch(self) -> list[FaustReading]:
        try:
            async with asyncio.timeout(_IDLE_S):
                batch = [await self._waiting.get()]
        except TimeoutError:
            return []
        began, waiting = time.monotonic(), -1
        while waiting < self._waiting.qsize() < _BATCH and time.monotonic() - began < _LONGEST_LINGER_S:
            waiting = self._waiting.qsize()
            await asyncio.sleep(_LINGER_S)
        while len(batch) < _BATCH and not self._waiting.empty():
            batch.append(self._waiting.get_nowait())
        return batch

    def _assigned(self) -> set[TopicPartition]:
        assigned = {TopicPartition(at.topic, at.partition) for at in self._app.consumer.assignment()}
        return {at for at in assigned if at.topic in self._inputs}


# -- the app ----------------------------------------------------------------------------------------


class _WithoutWeb(BootStrategy):  # type: ignore[misc]
    enable_web = False


class _App(faust.App):  # type: ignore[misc]
    BootStrategy = _WithoutWeb


class FaustProcessors:
    """A Faust app with an agent for each processor.

    Args:
        location: the location of the Kafka log.
        app_id: names the app and its Kafka group, in which Faust shares the partitions.
        begin: called when the app has started; returns the sinks of the processors.
        close: called when the app has stopped.
    """

    def __init__(
        self,
        location: KafkaLocation,
        app_id: str,
        begin: Callable[[], Awaitable[Sequence[FoldSink]]],
        close: Callable[[], Awaitable[None]],
        *,
        crash_on_failure: bool,
    ) -> None:
        self._begin = begin
        self._close = close
        self._crash_on_failure = crash_on_failure
        self._files = tempfile.TemporaryDirectory(prefix="unstable_stream-faust-")
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self.app = _App(
            app_id,
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
        self._served = {spec.name: _Served(self.app, spec) for spec in PROCESSORS}
        self.app.task(self._start)
        self.app.on_before_shutdown.connect(self._end)

    def positions(self) -> Positions:
        """Next offset of every open partition."""
        return {at: offset for served in self._served.values() for at, offset in served.positions().items()}

    async def start(self) -> None:
        """Start the app; return when it has joined its group and opened its first partitions."""
        await self.app.start()
        for served in self._served.values():
            await served.ready.wait()

    async def drain(self, log: EventLog) -> None:
        """Return when this host has processed its partitions to their ends, or when it makes no progress."""
        moved_at, before = _now(), self.positions()
        while not self.failed.is_set() and _now() - moved_at < _DRAIN_S:
            with contextlib.suppress(TimeoutError):  # a partition may be moving to another host
                async with asyncio.timeout(_DRAIN_S / 4):
                    if all([await served.drained(log) for served in self._served.values()]):
                        return
            if before != (before := self.positions()):
                moved_at = _now()
            await asyncio.sleep(_IDLE_S)

    async def _start(self) -> None:
        for sink in await self._begin():
            self._served[sink.spec.name].begin(sink, self._fail)

    async def _end(self, *_: object, **__: object) -> None:
        for served in self._served.values():
            await served.end()
        await self._close()

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.failed.set()
        for served in self._served.values():
            served.stop()
        if self._crash_on_failure:
            self.app.add_future(self.app.crash(error))


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


def _app_id(run_id: str | None) -> str:
    """Return the name of Faust's group; workers that serve the same runs have the same."""
    return "unstable_stream-faust" if run_id is None else f"unstable_stream-faust-{run_id}"


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
    kafka, log = kafka_location(location), sinks[0].log
    for topic in {topic for sink in sinks for topic in sink.spec.inputs}:
        await log.end_offsets(topic)  # Faust would wait for ever for a broker or a topic that is not there

    async def begin() -> Sequence[FoldSink]:
        return sinks

    async def close() -> None:
        pass

    processors = FaustProcessors(kafka, _app_id(sinks[0].run_id), begin, close, crash_on_failure=False)
    app = processors.app
    starting = asyncio.ensure_future(processors.start())
    stopping = asyncio.ensure_future(stop.wait())
    endings = [asyncio.ensure_future(processors.failed.wait()), asyncio.ensure_future(app.wait())]
    first = {starting, *endings} if drain else {starting, stopping, *endings}
    try:
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            on_ready()
            await asyncio.wait({stopping, *endings}, return_when=asyncio.FIRST_COMPLETED)
            if drain and not any(ending.done() for ending in endings):
                await processors.drain(log)
    finally:
        for task in (starting, stopping, *endings):
            task.cancel()
        await asyncio.gather(starting, stopping, *endings, return_exceptions=True)
        await app.stop()
    if processors.failure is not None:
        raise processors.failure
    if app.crash_reason is not None:
        reason = app.crash_reason
        raise ServiceError(f"Faust stopped: {type(reason).__name__}: {reason}") from reason


def _standalone() -> Any:
    """Return the app of Faust's own command line, configured from the environment.

    It loads only the code of recorded runs that :data:`~unstable_stream.extensions.ALLOW_CODE` allows.
    """
    confine()
    text = os.environ.get("UNSTABLE_STREAM_LOG", "")
    run_id = os.environ.get("UNSTABLE_STREAM_RUN") or None
    opened = contextlib.AsyncExitStack()

    async def begin() -> Sequence[FoldSink]:
        log = await opened.enter_async_context(opened_log(text, DataDir().log))
        runs = await opened.enter_async_context(RunDirectory(log))
        return await fold_sinks(log, runs, run_id)

    return FaustProcessors(
        kafka_location(text), _app_id(run_id), begin, opened.aclose, crash_on_failure=True
    ).app


def __getattr__(name: str) -> Any:
    # `faust -A` looks for an app here. Importing this module for another purpose must not make one.
    if name == "app":
        globals()[name] = _standalone()
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _at(record: StoredRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _now() -> float:
    return asyncio.get_running_loop().time()
