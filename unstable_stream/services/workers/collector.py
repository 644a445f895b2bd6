"""The collector: keeps games in flight over rollout workers and inference engines, until the run ends.

:class:`~unstable_stream.services.workers.game_schedule.GameSchedule` decides on the games. They are recorded
before they are played, and their results are read from the log. The loop, in this order:

1. publish ``game-started`` for the games decided on;
2. pass them to the rollout workers;
3. wait for news: outcomes, checkpoints, updates;
4. now and then, save what is known (:mod:`~unstable_stream.services.workers.collector_snapshot`).

After a kill between 1 and 2, or with games in flight, the restart plays again all games that have no end in
the log, with the same seed and seats. So long games are not lost more often than short ones.

Games are recorded with a fenced producer: of two launchers of one run, the collector of the later one goes
on, and the other one's can start no game any more.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from typing import Protocol, runtime_checkable

from unstable_stream.console import get_logger
from unstable_stream.errors import EventLogError, FencedError, ServiceError
from unstable_stream.events import (
    ON_ENGINE,
    Event,
    GameAbandoned,
    GameStarted,
    LearnerUpdate,
    Metrics,
    RecordRejected,
    RunStarted,
    StepsDropped,
    now_ms,
)
from unstable_stream.inference.engine import Adapter
from unstable_stream.log.port import Consumer, EventLog, Positions, Producer, StoredRecord
from unstable_stream.log.reading import of_run, read_on, readable_event, settled_ends
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.starts import check_whole, run_starts, within
from unstable_stream.services.streams.snapshots import SnapshotPace
from unstable_stream.services.workers.collector_reports import CollectorReports, GpuReader
from unstable_stream.services.workers.collector_snapshot import CollectorSnapshots
from unstable_stream.services.workers.engine import EngineHandle
from unstable_stream.services.workers.exploitability import ExploitabilitySchedule, Measurement
from unstable_stream.services.workers.game_schedule import GameSchedule

_TOPICS = ("games", "game-outcomes", "checkpoints", "learner-updates", "ratings", "dead-letters")
_WHOLE = ("games", "game-outcomes", "checkpoints", "learner-updates")
"""Topics of which it must know every event of the run. Ratings follow from outcomes, and are compacted."""
_MAX_ABANDONED_IN_A_ROW = 50
"""Many failed games in a row mean a broken environment or engine: stop instead of trying for ever."""

_logger = get_logger(__name__)


def topics_of_collector(config: RunConfig) -> tuple[str, ...]:
    """Return the topics that a run's collector reads."""
    # Results of measurements are the only metrics that it reads.
    return (*_TOPICS, Metrics.TOPIC) if config.measured_games else _TOPICS


def event_for_collector(record: StoredRecord, run_id: str) -> Event | None:
    """Return the run's event in a record, or the dead letter: those of a host of all runs name none."""
    if record.topic == RecordRejected.TOPIC or of_run([record], run_id):
        return readable_event(record)
    return None


@runtime_checkable
class Engines(Protocol):
    """Engines that come and go while the run goes on."""

    @property
    def engines(self) -> Mapping[int, EngineHandle]:
        """Those that answer now, or that the run began with, by number."""

    async def keep(self, log: EventLog) -> None:
        """Keep as many as are wanted, until cancelled.

        Raises:
            ServiceError: none is left.
        """


class RolloutWorkerHandle(Protocol):
    """A rollout worker that may be in another process."""

    async def play(self, games: Sequence[GameStarted], adapters: Mapping[str, Adapter]) -> int:
        """Play games to their ends and publish them; return the number of finished ones.

        Raises:
            ServiceError: the worker or its engine died; the games must be played again.
        """

    async def cancel(self, game_ids: Sequence[str], reason: str) -> None:
        """Abandon games that are still being played, and record this in the log."""

    async def measure(self, wanted: Measurement, adapters: Sequence[Adapter | None]) -> None:
        """Measure a checkpoint's exploitability and publish it.

        Raises:
            ServiceError: the worker or its engine died; it must be measured again.
        """


@runtime_checkable
class ReplaceableWorker(Protocol):
    """A rollout worker whose process can be replaced."""

    def replaced(self, error: ServiceError) -> bool:
        """Return whether another process plays for the one that an error reports as lost."""


class Collector:
    """Keeps the games of a run in flight, with the given engines and rollout workers, local or remote."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        engines: Sequence[EngineHandle] | Engines,
        workers: Sequence[RolloutWorkerHandle],
        started: RunStarted | None = None,
        data: DataDir | None = None,
        gpus: GpuReader | None = None,
        *,
        pace: SnapshotPace = SnapshotPace(),  # noqa: B008  # frozen
    ) -> None:
        """Take what plays.

        ``data`` has the checkpoints if they were moved. ``gpus`` is asked with the engines how busy and full
        this machine's GPUs are. ``pace``: how often a snapshot of what is known is saved.
        """
        self._pace = pace
        self._config = config
        self._data = data
        self._run_id = run_id
        self._pool = engines if isinstance(engines, Engines) else None
        self._fixed = {} if isinstance(engines, Engines) else dict(enumerate(engines))
        self._schedule = GameSchedule(run_id, config, started)
        first_update = started.parent_update or 0 if started else 0
        self._measuring = ExploitabilitySchedule(run_id, config, first_update)
        self._topics = topics_of_collector(config)
        self._measurement: asyncio.Task[None] | None = None
        self._calls = _WorkerCalls(workers)
        self._abandoned_in_a_row = 0
        self._quarantined_before = 0
        """The number of steps quarantined before the last update, or before the start."""
        self._restored = False
        self._reports = CollectorReports(
            run_id, lambda: self._engines, lambda: self._schedule.snapshot() if self._restored else {}, gpus
        )

    async def collect(self, log: EventLog, stop: asyncio.Event) -> None:
        """Play until the schedule has no game left or ``stop`` is set.

        Raises:
            ServiceError: an engine or a worker died, or too many games in a row were abandoned.
            FencedError: another launcher has taken over the run.
        """
        if not await self._engines_ready(stop):
            return
        _logger.info("engines ready", engines=len(self._engines), workers=len(self._calls.workers))
        # Before the log is read: from here on no other collector starts a game that this one does not know.
        producer = await log.producer(f"collector/{self._run_id}")
        consumer = await log.consumer(self._topics)
        snapshots = CollectorSnapshots(
            log, self._run_id, self._topics, self._config, self._schedule, self._measuring, self._pace
        )
        stats = asyncio.ensure_future(self._reports.keep_reporting(log))
        keeper = asyncio.ensure_future(self._pool.keep(log)) if self._pool else None
        try:
            await self._restore(log, consumer, snapshots)
            while not stop.is_set() and not self._finished:
                await self._start_games(producer)
                self._start_measurement()
                self._fold(await consumer.poll(max_records=2000), snapshots)
                await self._check_calls(log)
                self._dispatch(self._calls.playable_again(consumer.positions(), self._schedule.in_flight))
                if keeper is not None and keeper.done():
                    keeper.result()  # raises its error
                if self._schedule.training_finished:
                    await self._cancel_training()
                if snapshots.fits and snapshots.since.is_due(time.monotonic()):
                    await self._save(producer, consumer.positions(), snapshots)
            if snapshots.fits and snapshots.since.records:
                try:
                    await self._save(producer, consumer.positions(), snapshots)
                except EventLogError as error:  # also a collector that has taken over: it saves its own
                    _logger.warning("snapshot not saved", run=self._run_id, reason=str(error))
            await self._reports.report_pool(log)  # what changed since the last time, or all of a short run
        finally:
            tasks = [stats, *self._calls.tasks, *filter(None, (self._measurement, keeper))]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(ServiceError):  # an engine that is gone, which others report
                await self._reports.record_adapters(log)
            await consumer.close()
            await producer.close()

    @property
    def _engines(self) -> Mapping[int, EngineHandle]:
        return self._fixed if self._pool is None else self._pool.engines

    @property
    def _finished(self) -> bool:
        return self._schedule.finished and self._measuring.finished

    async def _engines_ready(self, stop: asyncio.Event) -> bool:
        """Wait until the engines have loaded their model; return ``False`` if ``stop`` came first."""
        ready = asyncio.gather(*(engine.stats() for engine in self._engines.values()))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((ready, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                return False
            ready.result()
            return True
        finally:
            ready.cancel()
            stopping.cancel()

    async def _restore(self, log: EventLog, consumer: Consumer, snapshots: CollectorSnapshots) -> None:
        ends = await settled_ends(log, self._topics)
        known = await snapshots.load()
        await check_whole(log, self._run_id, _WHOLE, known)
        starts = await run_starts(log, self._run_id, self._topics)
        await consumer.seek({**starts, **await within(log, known)})
        async for records in read_on(consumer, ends):
            self._fold(records, snapshots)
        self._abandoned_in_a_row = 0
        self._quarantined_before = self._schedule.pending.steps_quarantined
        self._restored = True
        unfinished = list(self._schedule.in_flight.values())
        if unfinished:
            _logger.info("playing unfinished games again", games=len(unfinished))
            self._dispatch(unfinished)

    def _fold(self, records: Sequence[StoredRecord], snapshots: CollectorSnapshots) -> None:
        now_s = time.monotonic()
        for record in records:
            event = event_for_collector(record, self._run_id)
            snapshots.since.count(None if event is None else len(record.value), now_s)
            if event is not None:
                self._apply(event)

    async def _save(self, producer: Producer, positions: Positions, snapshots: CollectorSnapshots) -> None:
        async with self._fencing(), producer.transaction() as transaction:
            await snapshots.save(transaction, positions)

    @contextlib.asynccontextmanager
    async def _fencing(self) -> AsyncIterator[None]:
        """Say what it means that another collector has fenced this one."""
        try:
            yield
        except FencedError as error:
            raise FencedError(
                f"another launcher has taken over run {self._run_id}: its collector starts the games from "
                f"now on. This one stops ({error})"
            ) from error

    def _apply(self, event: Event) -> None:
        self._schedule.apply(event)
        self._measuring.apply(event)
        if isinstance(event, RecordRejected):
            where = f"{event.topic}[{event.partition}]@{event.offset}"
            self._check_quarantined(f"{where} because: {event.reason}")
        if event.run_id != self._run_id:
            return
        # Before a resumption they were abandoned for what may be over, or because training was finished.
        if isinstance(event, GameAbandoned) and self._restored and not self._schedule.training_finished:
            self._abandoned_in_a_row += 1
            if self._abandoned_in_a_row >= _MAX_ABANDONED_IN_A_ROW:
                raise ServiceError(
                    f"{self._abandoned_in_a_row} games in a row were abandoned, the last one "
                    f"({event.game_id}) because: {event.reason}"
                )
        elif event.TOPIC == "game-outcomes":
            self._abandoned_in_a_row = 0
        elif isinstance(event, StepsDropped):
            self._check_quarantined("could not be decoded, see dead-letters")
        elif isinstance(event, LearnerUpdate):
            self._quarantined_before = self._schedule.pending.steps_quarantined

    def _check_quarantined(self, last: str) -> None:
        """Raise if games are played for nothing: their steps do not count as pending any more."""
        lost = self._schedule.pending.steps_quarantined - self._quarantined_before
        if self._restored and lost > self._config.max_pending_steps:
            raise ServiceError(
                f"run {self._run_id}: trajectories with {lost} steps were quarantined since the last update, "
                f"the last one {last}"
            )

    async def _start_games(self, producer: Producer) -> None:
        games = self._schedule.next_games(now_ms())
        if not games:
            return
        async with self._fencing(), producer.transaction() as transaction:
            await transaction.append([record_from_event(game) for game in games])
        for game in games:
            self._schedule.apply(game)
        self._dispatch(games)

    def _dispatch(self, games: Sequence[GameStarted]) -> None:
        if not games:
            return
        share = -(-len(games) // len(self._calls.workers))
        for start in range(0, len(games), share):
            some = games[start : start + share]
            played = {seat.model_uid: seat.kind for game in some for seat in game.seats}
            adapters = {
                uid: adapter
                for uid, kind in played.items()
                if kind in ON_ENGINE and (adapter := self._adapter(uid, kind)) is not None
            }
            self._calls.play(some, adapters)

    def _start_measurement(self) -> None:
        """Measure the next checkpoint in the next game, if none is being measured."""
        if self._measurement is not None:
            return
        wanted = self._measuring.next()
        if wanted is not None:
            adapters = [self._adapter(uid, "checkpoint") for uid in wanted.seats]
            self._measurement = asyncio.ensure_future(self._calls.next_worker().measure(wanted, adapters))

    def _adapter(self, uid: str, kind: str) -> Adapter | None:
        """Return the weights of a seat that plays on an engine; ``None``: those of the base model."""
        if kind == "adapter":
            opponent = self._schedule.opponent(uid)
            if opponent.path is None:
                return None
            return Adapter(uid, self._located(opponent.path), opponent.sha256)
        checkpoint = self._schedule.checkpoints[uid]
        if checkpoint.path is None:
            return None
        return Adapter(uid, self._located(checkpoint.path), checkpoint.sha256, checkpoint.probe)

    def _located(self, path: str) -> str:
        return path if self._data is None else self._data.located(path)

    async def _check_calls(self, log: EventLog) -> None:
        if lost := self._calls.lost():
            # What the lost workers had published is read first.
            self._calls.play_again(lost, await settled_ends(log, self._topics))
        if self._measurement is not None and self._measurement.done():
            measured, self._measurement = self._measurement, None
            measured.result()

    async def _cancel_training(self) -> None:
        games = [game.game_id for game in self._schedule.in_flight.values() if game.split == "train"]
        if games:
            reason = "training finished"
            await asyncio.gather(*(worker.cancel(games, reason) for worker in self._calls.workers))


class _WorkerCalls:
    """Passes games to the workers in turn."""

    def __init__(self, workers: Sequence[RolloutWorkerHandle]) -> None:
        self.workers = workers
        self._next = 0
        self._calls: dict[asyncio.Task[int], tuple[RolloutWorkerHandle, Sequence[GameStarted]]] = {}
        self._again: list[GameStarted] = []
        """Games of workers that were lost, played again once the log is read to where it ended then."""
        self._again_from: Positions = {}

    @property
    def tasks(self) -> list[asyncio.Task[int]]:
        """The calls under way."""
        return list(self._calls)

    def next_worker(self) -> RolloutWorkerHandle:
        """Return the worker whose turn it is."""
        worker = self.workers[self._next]
        self._next = (self._next + 1) % len(self.workers)
        return worker

    def play(self, games: Sequence[GameStarted], adapters: Mapping[str, Adapter]) -> None:
        """Let the next worker play games."""
        worker = self.next_worker()
        self._calls[asyncio.ensure_future(worker.play(games, adapters))] = (worker, games)

    def lost(self) -> list[GameStarted]:
        """Return the games of workers that were lost and replaced since the last call.

        Raises:
            ServiceError: one was lost and not replaced; or whatever else has ended a call.
        """
        games: list[GameStarted] = []
        for call in [call for call in self._calls if call.done()]:
            worker, own = self._calls.pop(call)
            error = call.exception()
            if error is None:
                continue
            if not _is_replaced(worker, error):
                raise error
            _logger.warning("worker lost, its games are played again", games=len(own), reason=str(error))
            games += own
        return games

    def play_again(self, games: Sequence[GameStarted], after: Positions) -> None:
        """Play games again once the log is read up to ``after``: then it is known which have ended."""
        self._again += games
        self._again_from = after

    def playable_again(self, read: Positions, in_flight: Container[str]) -> list[GameStarted]:
        """Return the games to play again now, where the log is read up to ``read``: those without an end."""
        if not self._again or any(read.get(at, 0) < end for at, end in self._again_from.items()):
            return []
        again, self._again = self._again, []
        return [game for game in again if game.game_id in in_flight]


def _is_replaced(worker: RolloutWorkerHandle, error: BaseException) -> bool:
    return (
        isinstance(worker, ReplaceableWorker) and isinstance(error, ServiceError) and worker.replaced(error)
    )
