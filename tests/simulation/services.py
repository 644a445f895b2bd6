"""The real services of a run, each as simulated processes start them."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.simulation.loop import PROCESS, settle
from tests.simulation.stand_ins import RandomMoves
from tests.simulation.world import MARK, FoundError, Service, World
from unstable_stream.errors import ServiceError
from unstable_stream.events import GameOutcome, GameStarted, Step
from unstable_stream.inference.base_model import resolve_model
from unstable_stream.inference.engine import Adapter
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.history import run_started
from unstable_stream.services.streams.plugins import Context, Plugin, consumer
from unstable_stream.services.streams.plugins.host import run_plugin
from unstable_stream.services.streams.service import run_processors
from unstable_stream.services.streams.snapshots import SnapshotPace
from unstable_stream.services.workers.archiver import run_archiver
from unstable_stream.services.workers.collector import Collector
from unstable_stream.services.workers.engine import LocalEngine
from unstable_stream.services.workers.exploitability import Measurement
from unstable_stream.services.workers.learner import Learners
from unstable_stream.services.workers.rollout import RolloutWorker

T = TypeVar("T")

RUN = "simulated-run"


@dataclass
class Counts:
    """The state of the plug-in."""

    seen: int = 0
    turns: dict[str, int] = field(default_factory=dict)


@consumer(topics=["game-outcomes", "steps"], name="tallying", state=Counts)
def tally(event: GameOutcome | Step, context: Context) -> None:
    """Count what comes, in order: the state depends on every event before."""
    state: Counts = context.state
    state.seen += 1
    if isinstance(event, GameOutcome):
        state.turns[event.env_id] = state.turns.get(event.env_id, 0) + event.num_turns
    context.emit("tally/seen", state.seen)
    context.emit("tally/turns", sum(state.turns.values()))


tallying: Plugin = tally


@dataclass(eq=False)
class Services:
    """Makes the main coroutine of each service; all files are below one directory."""

    world: World
    config: RunConfig
    data: DataDir

    def all(self) -> list[Service]:
        """Return the services of the scenario: first those that end by themselves."""
        scenario = self.world.scenario
        services = [Service("learner", self.learner), Service("collector", self.collector)]
        services += [
            Service(f"processors-{number}", self.processors) for number in range(scenario.processor_hosts)
        ]
        if scenario.archived:
            services.append(Service("archiver", self.archiver))
        if scenario.plugged_in:
            services.append(Service("plug-in", self.plugin))
        return services

    async def learner(self, stop: asyncio.Event) -> None:
        """Train until the last update."""
        # As the launcher does: the model is loaded in a thread, before anything is read.
        service = await asyncio.to_thread(
            Learners, self.config, RUN, self.data, resolve_model(self.config.model)
        )
        async with self.world.log() as log:
            made = await service.train(log, stop)
        if made < self.config.learner.iterations and not stop.is_set():
            raise FoundError(f"the learner returned after {made} updates")

    async def collector(self, stop: asyncio.Event) -> None:
        """Play until there is no game left, with rollout workers in processes of their own."""
        world, config = self.world, self.config
        log = world.log()
        started = await run_started(log, RUN)
        engine = LocalEngine(RandomMoves(world))
        workers = [
            _RemoteWorker(world, config, number) for number in range(config.collector.num_rollout_workers)
        ]
        me = PROCESS.get()
        world.on_death.setdefault(me, []).extend(one.orphaned for one in workers)
        try:
            # Snapshots so often that restarts meet them in a short run.
            pace = SnapshotPace(events=6, times_its_size=0, passed=30)
            collector = Collector(config, RUN, [engine], workers, started, self.data, pace=pace)
            await collector.collect(log, stop)
        finally:
            for one in workers:
                one.orphaned()
            await log.close()

    async def processors(self, stop: asyncio.Event) -> None:
        """Host the stream processors."""
        run_id = None if self.world.scenario.shared_hosts else RUN
        async with self.world.log() as log:
            await run_processors(log, run_id, stop)

    async def archiver(self, stop: asyncio.Event) -> None:
        """Write everything into the archive."""
        async with self.world.log() as log:
            await run_archiver(log, self.data.archive, stop=stop, flush_interval_s=5.0)

    async def plugin(self, stop: asyncio.Event) -> None:
        """Host a plug-in with state."""
        async with self.world.log() as log:
            await run_plugin(log, tallying, self.data, stop=stop, run_id=RUN, drain=True)


class _RemoteWorker:
    """A rollout worker in a process of its own, and the handle that a collector has of it."""

    def __init__(self, world: World, config: RunConfig, number: int) -> None:
        self._world = world
        self._calls: dict[asyncio.Future[Any], None] = {}
        self._requests = asyncio.Queue[tuple[Callable[[RolloutWorker], Any], asyncio.Future[Any]]]()
        self._config = config
        self._process, self._ended = world.start(f"rollout-{number}", self._serve())
        world.on_death.setdefault(self._process, []).append(self._died)
        self._ended.add_done_callback(self._judge)

    def orphaned(self) -> None:
        """The collector is gone: its workers end, sooner or later."""
        world, process = self._world, self._process
        lasts_s = world.rng.uniform(0, 30) if world.rng.random() < world.scenario.orphans else 0.0
        if world.calm or not lasts_s:
            world.kill(process, "its collector is gone")
        else:
            world.later(lasts_s, world.kill, process, "an orphan")

    async def play(self, games: Sequence[GameStarted], adapters: Mapping[str, Adapter]) -> int:
        """Play in the worker's process."""
        return await self._call(lambda worker: worker.play(games, adapters))

    async def cancel(self, game_ids: Sequence[str], reason: str) -> None:
        """Cancel in the worker's process."""
        await self._call(lambda worker: worker.cancel(game_ids, reason))

    async def measure(self, wanted: Measurement, adapters: Sequence[Adapter | None]) -> None:
        """Measure in the worker's process."""
        await self._call(lambda worker: worker.measure(wanted, adapters))

    async def _call(self, what: Callable[[RolloutWorker], Coroutine[Any, Any, T]]) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._process.dead:
            raise ServiceError(f"the rollout worker is dead {MARK}")
        self._calls[answer] = None
        self._requests.put_nowait((what, answer))
        try:
            return await answer
        finally:
            self._calls.pop(answer, None)

    def _died(self) -> None:
        for answer in self._calls:
            settle(answer, ServiceError(f"the rollout worker died {MARK}"))

    def _judge(self, ended: asyncio.Future[str]) -> None:
        if not ended.cancelled() and ended.exception() is not None:
            self._world.found = FoundError(f"{self._process!r} did not start: {ended.exception()!r}")

    async def _serve(self) -> None:
        log = self._world.log()
        worker = RolloutWorker(self._config, log, resolve_model(self._config.model), RandomMoves(self._world))
        answering: set[asyncio.Task[None]] = set()

        async def answer_one(what: Callable[[RolloutWorker], Any], answer: asyncio.Future[Any]) -> None:
            try:
                settle(answer, await what(worker))
            except Exception as error:  # noqa: BLE001 - goes to the caller
                settle(answer, error)
                answer.exception()  # its caller may be dead

        while True:
            what, answer = await self._requests.get()
            task = asyncio.ensure_future(answer_one(what, answer))
            answering.add(task)
            task.add_done_callback(answering.discard)
