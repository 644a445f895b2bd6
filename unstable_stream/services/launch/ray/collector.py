"""The process that hosts a collector, and the engine and rollout actors it starts."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import ray

from unstable_stream.console import get_logger
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.history import run_started
from unstable_stream.runs.placement import Placement
from unstable_stream.services.launch.ray.cluster import ANYWHERE, actor_options, beside, planned
from unstable_stream.services.launch.ray.engine import EngineActor, RemoteEngine
from unstable_stream.services.launch.ray.engine_pool import EnginePool
from unstable_stream.services.launch.ray.part_output import PartDiedError, explain
from unstable_stream.services.launch.ray.rollout import RayRolloutWorker, RolloutActor
from unstable_stream.services.launch.service_output import Output
from unstable_stream.services.workers.collector import Collector
from unstable_stream.services.workers.collector_reports import read_gpus

_CLOSE_S: Final = 25.0
"""Seconds that workers and engines have to close, together: less than the launcher gives this process to end,
and more than vLLM gives its own processes. Without a bound an actor that hangs would keep a run that is over
from ending."""

_logger = get_logger(__name__)


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
