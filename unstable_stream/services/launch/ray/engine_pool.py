"""The engines of a run on Ray, which come and go while it plays, and the process that hosts its collector.

Every two seconds the pool asks each engine how it is and Ray what machines there are. It starts engines where
some are missing, lets those answer to the end that are too many or on a machine that is being drained, and
tells the rollout workers whom to ask. It records what it does, as
:class:`~unstable_stream.events.EnginesChanged`, and where rollout workers came and went,
as :class:`~unstable_stream.events.PartChanged`.

An engine that is lost is replaced while others answer. Where none is left, the collector ends and is started
again with all of them, as its supervisor allows.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from unstable_stream.console import get_logger
from unstable_stream.errors import ServiceError
from unstable_stream.events import EnginesChanged, EnginesWanted, Event, PartChanged, event_id
from unstable_stream.inference.engine import AdapterResult, EngineStats
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import readable_events
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.engine_sections import EngineRange
from unstable_stream.runs.history import run_started
from unstable_stream.runs.placement import Placement, Share
from unstable_stream.runs.starts import run_starts
from unstable_stream.services.launch.ray.actors import RayRolloutWorker, RolloutActor
from unstable_stream.services.launch.ray.cluster import (
    ANYWHERE,
    Cluster,
    actor_options,
    beside,
    look_at_nodes,
    planned,
)
from unstable_stream.services.launch.ray.engine import EngineActor, EngineHealth, RemoteEngine
from unstable_stream.services.launch.ray.nodes import Equipment, software
from unstable_stream.services.launch.ray.part_output import PartDiedError, explain, reason_of
from unstable_stream.services.launch.service_output import Output
from unstable_stream.services.workers.collector import Collector
from unstable_stream.services.workers.collector_reports import read_gpus

_DRAINED: Final = "its machine is being drained"
_EVERY_S: Final = 2.0
_CLOSE_S: Final = 25.0
"""Seconds that workers and engines have to close, together: less than the launcher gives this process to end,
and more than vLLM gives its own processes. Without a bound an actor that hangs would keep a run that is over
from ending."""
_RETRY_S: Final = 10.0
_LONGEST_RETRY_S: Final = 300.0
"""Between two engines that ended before they had loaded the model; the first pause doubles with each."""

_logger = get_logger(__name__)


@dataclass(eq=False)
class RayEngine:
    """One engine, and its handle for a collector."""

    number: int
    actor: Any
    node: str = ""
    host: str = ""
    has_started: bool = False
    """Whether it has answered once, so has loaded its model."""
    running: int = 0
    """Requests that it had not answered when it was last asked."""
    leaving: str = ""
    """The reason for which it is asked nothing any more; empty: it is asked."""
    asked: "asyncio.Future[EngineHealth] | None" = None
    told: bool = False
    """Whether its arrival is recorded."""
    initial: bool = False
    """Whether the run began with it: it is asked before it is known to have loaded the model."""

    @property
    def counts(self) -> bool:
        """Whether it is known outside the pool."""
        return self.initial or self.has_started

    async def stats(self) -> EngineStats:
        """Return its counters, once it has loaded its model."""
        stats: EngineStats = await self._ask("stats")
        self.has_started = True
        return stats

    async def adapter_results(self) -> list[AdapterResult]:
        """Return what came of the adapters that it has loaded since the last call."""
        results: list[AdapterResult] = await self._ask("adapter_results")
        return results

    async def _ask(self, method: str) -> Any:  # Ray's references have no type here
        try:
            return await getattr(self.actor, method).remote()
        except ray.exceptions.RayError as error:
            raise PartDiedError(f"engine-{self.number}", reason_of(error)) from error


class WantedEngines:
    """The fold of a run's :class:`~unstable_stream.events.EnginesWanted`: the last one counts."""

    def __init__(self, configured: int | EngineRange) -> None:
        self._configured = configured
        self.by_person: int | None = None
        """The number that a person wants; ``None``: as configured."""

    def apply(self, events: Iterable[Event], run_id: str) -> None:
        """Fold events; those of other runs change nothing."""
        for event in events:
            if isinstance(event, EnginesWanted) and event.run_id == run_id:
                self.by_person = event.engines

    def count(self, room: int) -> int:
        """Return how many there shall be, where there is room for ``room``.

        A range follows the room. What a person wants, or a fixed number, is tried in any case.
        """
        if self.by_person is not None:
            return self.by_person
        if isinstance(self._configured, int):
            return self._configured
        return min(self._configured.max, max(self._configured.min, room))

    def why(self) -> str:
        """Return in a few words where the number comes from."""
        if self.by_person is not None:
            return f"a person wants {self.by_person}"
        if isinstance(self._configured, int):
            return f"collector.num_actors is {self._configured}"
        return f"the cluster has room, up to {self._configured.max}"


class EnginePool:
    """Starts, watches and ends the engine actors of one run."""

    def __init__(
        self, run: RunContext, model_path: str, placement: Placement, outputs: dict[str, Output]
    ) -> None:
        """Take the plan; ``outputs`` gets a file of what it prints for each engine."""
        self._run = run
        self._model_path = model_path
        self._placement = placement
        self._outputs = outputs
        self._slots: dict[int, RayEngine] = {}
        self._wanted = WantedEngines(run.config.collector.num_actors)
        self._software: Equipment | None = None
        """Of this machine, which those that join later are compared with."""
        self._failed_starts = 0
        self._not_before = 0.0
        """No engine is started before this moment of the monotonic clock."""
        self.workers: Sequence[RayRolloutWorker] = ()
        """Those that are told whom to ask."""
        self._pushed: Mapping[int, Any] = {}
        self._last_lost: list[EnginesChanged] = []
        """The loss that leaves no engine."""

    def start(self) -> None:
        """Start the engines of the plan; it waits for their reservations."""
        for number, share in enumerate(self._placement.engines):
            self._start(number, share, actor_options(self._placement, share), initial=True)
        self._pushed = self.actors

    @property
    def engines(self) -> Mapping[int, RayEngine]:
        """The engines that have answered, or that the run began with, by number."""
        return {number: slot for number, slot in self._slots.items() if slot.counts}

    @property
    def actors(self) -> dict[int, Any]:
        """Whom rollout workers ask."""
        return {number: slot.actor for number, slot in self.engines.items() if not slot.leaving}

    @property
    def parts(self) -> dict[str, Any]:
        """Every actor that can be asked to close, by its name in messages."""
        return {f"engine-{number}": slot.actor for number, slot in self._slots.items() if slot.has_started}

    @property
    def all_have_started(self) -> bool:
        """Whether none is loading the model."""
        return all(slot.has_started for slot in self._slots.values())

    async def keep(self, log: EventLog) -> None:
        """Keep as many engines as are wanted, until cancelled.

        Raises:
            ServiceError: no engine is left.
        """
        consumer = await log.consumer([EnginesWanted.TOPIC])
        try:
            await consumer.seek(await run_starts(log, self._run.run_id, (EnginesWanted.TOPIC,)))
            self._hear()  # asks all, so that a short run tells where it was, too
            self._hear_workers()
            while True:
                self._wanted.apply(readable_events(await consumer.poll(timeout_s=_EVERY_S)), self._run.run_id)
                try:
                    cluster = await asyncio.to_thread(look_at_nodes)
                except (ray.exceptions.RayError, OSError) as error:
                    _logger.warning("the cluster does not say what it has", reason=str(error))
                    continue
                await self._step(log, cluster)
        finally:
            await consumer.close()
            with contextlib.suppress(PartDiedError):  # the collector ends of it already
                await self._record(log, self._hear())
            await self._record(log, [*self._last_lost, *self._hear_workers()])

    async def _step(self, log: EventLog, cluster: Cluster) -> None:
        changes: list[Event] = [*self._hear(), *self._hear_workers()]
        self._leave(cluster)
        self._add(cluster)
        if (actors := self.actors) != self._pushed and actors:
            await asyncio.gather(*(worker.use_engines(actors) for worker in self.workers))
            self._pushed = actors
        changes += await self._end_idle()
        await self._record(log, changes)

    async def _record(self, log: EventLog, changes: Sequence[Event]) -> None:
        if changes:
            await log.append([record_from_event(change) for change in changes])

    def _hear_workers(self) -> list[PartChanged]:
        return [change for worker in self.workers for change in worker.hear()]

    # -- what has happened -------------------------------------------------------------------------

    def _hear(self) -> list[EnginesChanged]:
        """Take the engines' answers to how they are, and ask again; return who came and who was lost."""
        changes = []
        for slot in list(self._slots.values()):
            if slot.asked is None:
                slot.asked = asyncio.ensure_future(slot.actor.health.remote())
            elif slot.asked.done():
                asked, slot.asked = slot.asked, None
                error = asked.exception()
                failure = reason_of(error) if error is not None else asked.result().failure
                if failure:
                    changes.append(self._lost(slot, failure))
                    continue
                health = asked.result()
                slot.node, slot.host, slot.running = health.at.node, health.at.host, health.running
                slot.has_started = True
                if not slot.told:
                    slot.told = True
                    self._failed_starts = 0
                    changes.append(self._changed(slot, "added", self._wanted.why()))
        return changes

    def _lost(self, slot: RayEngine, reason: str) -> EnginesChanged:
        """Forget an engine that answers no more.

        Raises:
            PartDiedError: none is left.
        """
        if not slot.has_started:
            pause = min(_LONGEST_RETRY_S, _RETRY_S * 2**self._failed_starts)
            self._not_before = time.monotonic() + pause
            self._failed_starts += 1
        if not any(other.has_started for other in self._slots.values() if other is not slot):
            self._last_lost = [self._changed(slot, "lost", reason)]
            raise PartDiedError(f"engine-{slot.number}", reason)
        del self._slots[slot.number]
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(slot.actor)  # what says that it can answer no more still holds memory
        _logger.warning("engine lost, others go on", engine=slot.number, reason=reason)
        return self._changed(slot, "lost", reason)

    def _changed(self, slot: RayEngine, change: str, reason: str) -> EnginesChanged:
        now_ms = time.time_ns() // 1_000_000
        engine = f"engine-{slot.number}"
        return EnginesChanged(
            event_id=event_id(self._run.run_id, "engines-changed", engine, change, now_ms),
            run_id=self._run.run_id,
            occurred_at_ms=now_ms,
            engine=engine,
            change=change,
            host=slot.host,
            node=slot.node,
            reason=reason,
            serving=len([slot for slot in self._slots.values() if slot.told and not slot.leaving]),
        )

    # -- what is to be done ------------------------------------------------------------------------

    def _room(self, cluster: Cluster) -> int:
        """Return how many engines there is room for, those that are there included."""
        staying = [slot for slot in self._slots.values() if slot.node not in cluster.drained]
        gpus = self._gpus
        if gpus == 0:
            return sum(cores > 0 for cores in cluster.cpus.values())
        free = sum(int(free / gpus + 1e-9) for free in cluster.gpus.values())
        return len(staying) + len(self._reserved()) + free

    def _reserved(self) -> list[int]:
        """Return the numbers of engines that are missing, and whose GPUs are reserved and there."""
        missing = [number for number in range(len(self._placement.engines)) if number not in self._slots]
        if not missing or not self._gpus:
            return []
        try:
            actor_options(self._placement, self._share(missing[0]), deadline_s=0)
        except ServiceError:
            return []  # the reservation waits for a machine
        return missing

    @property
    def _gpus(self) -> float:
        return self._placement.engines[0].num_gpus

    def _staying(self, cluster: Cluster) -> list[RayEngine]:
        """Return the engines that count towards those that are wanted."""
        return [
            slot for slot in self._slots.values() if not slot.leaving and slot.node not in cluster.drained
        ]

    def _leave(self, cluster: Cluster) -> None:
        """Ask nothing more of engines that are too many, or whose machine is being drained."""
        serving = [slot for slot in self._slots.values() if slot.has_started and not slot.leaving]
        drained = [slot for slot in serving if slot.node in cluster.drained]
        if len(serving) > len(drained):  # else they play until another has taken over
            for slot in drained:
                slot.leaving = _DRAINED
        staying = self._staying(cluster)
        too_many = len(staying) - max(1, self._wanted.count(self._room(cluster)))
        for slot in sorted(staying, key=lambda slot: -slot.number)[: max(0, too_many)]:
            slot.leaving = self._wanted.why()

    def _add(self, cluster: Cluster) -> None:
        """Start the engines that are missing, as far as there is room."""
        staying = self._staying(cluster)
        missing = self._wanted.count(self._room(cluster)) - len(staying)
        if missing <= 0 or time.monotonic() < self._not_before:
            return
        for number in self._reserved()[:missing]:
            share = self._share(number)
            self._start(number, share, actor_options(self._placement, share))
            missing -= 1
        taken = Counter(slot.node for slot in self._slots.values())
        # By machine: GPUs that are free, or where none is wanted, a place if it has cores.
        free = dict(cluster.gpus) if self._gpus else {node: float(n > 0) for node, n in cluster.cpus.items()}
        for _ in range(missing):
            number = next(number for number in range(len(self._slots) + 1) if number not in self._slots)
            nodes = [node for node, left in free.items() if left >= (self._gpus or 1.0) - 1e-9]
            if not nodes:
                return
            if self._gpus:
                node = max(nodes, key=free.__getitem__)
                free[node] -= self._gpus
            else:
                node = min(nodes, key=lambda node: (taken[node], node))
            taken[node] += 1
            strategy = NodeAffinitySchedulingStrategy(node, soft=False)
            options = {"num_cpus": 0, "num_gpus": self._gpus, "scheduling_strategy": strategy}
            _logger.info("starting an engine", engine=number, reason=self._wanted.why())
            self._start(number, self._share(number), options).node = node

    def _share(self, number: int) -> Share:
        engines = self._placement.engines
        return engines[number] if number < len(engines) else engines[-1]

    def _start(
        self, number: int, share: Share, options: Mapping[str, Any], *, initial: bool = False
    ) -> RayEngine:
        part = f"engine-{number}"
        self._outputs[part] = Output(self._run.data.service_logs(self._run.run_id) / f"{part}.log")
        if not initial and self._software is None:
            self._software = software(self._run.config, self._model_path)
        expected = None if initial else self._software
        made = ray.remote(EngineActor).options(**options, max_concurrency=4096)
        actor = made.remote(self._run, self._outputs[part].path, self._model_path, share, expected=expected)
        self._slots[number] = RayEngine(number, actor, initial=initial)
        return self._slots[number]

    async def _end_idle(self) -> list[EnginesChanged]:
        """End engines that were asked to leave and have answered everything."""
        changes = []
        for slot in [slot for slot in self._slots.values() if slot.leaving]:
            if slot.has_started and (slot.running or slot.number in self._pushed):
                continue
            if slot.has_started:
                with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                    await asyncio.wait_for(slot.actor.close.remote(), _CLOSE_S)
            ray.kill(slot.actor)
            del self._slots[slot.number]
            if slot.told:
                changes.append(self._changed(slot, "removed", slot.leaving))
        return changes


async def run_collector(run: RunContext, model_path: str, stop: asyncio.Event) -> None:
    """Host a collector until its run has no game left; Ray must be initialised.

    Raises:
        ServiceError: an engine or a worker died, or too many games in a row were abandoned.
        FencedError: another launcher has taken over the run.
    """
    run_id, config, data = run
    workers_count = config.collector.num_rollout_workers
    parts = [f"rollout-{number}" for number in range(workers_count)]
    parts += [f"opponent-{number}" for number in range(len(config.opponent_models))]
    outputs = {part: Output(data.service_logs(run_id) / f"{part}.log") for part in parts}
    placement = planned()
    pool = EnginePool(run, model_path, placement, outputs)
    await asyncio.to_thread(pool.start)
    others = await asyncio.to_thread(_start_opponents, run, outputs, placement)
    # Each beside an engine in turn: on a cluster they would otherwise all be on one machine.
    near = [
        await asyncio.to_thread(beside, placement, placement.engines[number % len(placement.engines)])
        for number in range(workers_count)
    ]

    def start_worker(number: int, *, successor: bool = False) -> Any:
        options = ANYWHERE if successor else near[number]
        made = ray.remote(RolloutActor).options(**options, max_concurrency=1024)
        opponents = {
            path: RemoteEngine({number: actor}, part="opponent") for path, (number, actor) in others.items()
        }
        output = outputs[f"rollout-{number}"].path
        return made.remote(run, output, model_path, RemoteEngine(pool.actors), opponents)

    pool.workers = workers = [
        RayRolloutWorker(partial(start_worker, number), number, run_id) for number in range(workers_count)
    ]
    async with run.opened_log() as log:
        started = await run_started(log, run_id)
        collector = Collector(config, run_id, pool, workers, started, data, read_gpus)
        try:
            await collector.collect(log, stop)
        except PartDiedError as error:
            raise explain(error, outputs) from error
    if pool.all_have_started:  # else they load a model, and hear nothing meanwhile
        # Ray alone would end them wherever they are: the players before the engines that answer them.
        deadline = asyncio.get_running_loop().time() + _CLOSE_S
        await _close(deadline, {worker.part: worker.actor for worker in workers})
        opponents = {f"opponent-{number}": actor for number, actor in others.values()}
        await _close(deadline, opponents | pool.parts)


async def _close(deadline: float, parts: Mapping[str, Any]) -> None:
    """Let the actors end in order, by their names in messages."""
    answers = [asyncio.ensure_future(actor.close.remote()) for actor in parts.values()]
    if answers:
        left_s = deadline - asyncio.get_running_loop().time()
        await asyncio.wait(answers, timeout=max(0.0, left_s))
    for part, answer in zip(parts, answers, strict=True):
        error = answer.exception() if answer.done() else f"still busy, {_CLOSE_S:g} s after it was asked"
        if error is not None:
            # The run is over and all of it is in the log: what is left is ended with this process.
            _logger.warning("not closed in order", part=part, reason=str(error))
        answer.cancel()


def _start_opponents(
    run: RunContext, outputs: Mapping[str, Output], placement: Placement
) -> dict[str, tuple[int, Any]]:
    """Start an engine for each other model that is an opponent; return its number and actor, by path."""
    actors = {}
    pairs = zip(run.config.opponent_models, placement.opponents, strict=True)
    for number, (path, share) in enumerate(pairs):
        part = f"opponent-{number}"
        options = actor_options(placement, share)
        actor = ray.remote(EngineActor).options(**options, max_concurrency=4096)
        actors[path] = (number, actor.remote(run, outputs[part].path, path, share, opponent=True))
    return actors
