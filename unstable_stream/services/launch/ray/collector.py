"""The process that hosts a collector, and the engine and rollout actors it starts."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import ray

from unstable_stream.console import get_logger
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.history import run_started
from unstable_stream.runs.placement import Placement
from unstable_stream.services.launch.death import Output
from unstable_stream.services.launch.ray.engine import EngineActor, RemoteEngine
from unstable_stream.services.launch.ray.engine_pool import EnginePool
from unstable_stream.services.launch.ray.part_output import PartDiedError, answer_of, explain
from unstable_stream.services.launch.ray.placement import actor_options, beside, on_node, planned
from unstable_stream.services.launch.ray.rollout import RayRolloutWorker, RolloutActor
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
    logs = data.service_logs(run_id).absolute()
    outputs = {
        part: Output(logs / f"{part}.log")
        for part in (
            *(f"rollout-{number}" for number in range(config.collector.num_rollout_workers)),
            *(f"opponent-{number}" for number in range(len(config.opponent_models))),
        )
    }
    placement = planned()
    pool = EnginePool(config, run_id, logs, model_path, placement, outputs)
    await asyncio.to_thread(pool.start)
    others = await asyncio.to_thread(_start_opponents, config, run_id, outputs, placement)
    # Each beside an engine in turn: on a cluster they would otherwise all be on one machine.
    near = [
        await asyncio.to_thread(beside, placement, placement.engines[number % len(placement.engines)])
        for number in range(config.collector.num_rollout_workers)
    ]

    def start_worker(number: int, node: str) -> Any:
        options = on_node(node) if node else near[number]
        return (
            ray.remote(RolloutActor)
            .options(**options, max_concurrency=1024)
            .remote(
                config,
                run_id,
                outputs[f"rollout-{number}"].path,
                str(data.root.absolute()),
                model_path,
                RemoteEngine(pool.actors),
                {
                    path: RemoteEngine({number: actor}, part="opponent")
                    for path, (number, actor) in others.items()
                },
            )
        )

    workers = [
        RayRolloutWorker(partial(start_worker, number), number, run_id)
        for number in range(config.collector.num_rollout_workers)
    ]
    pool.workers = workers
    async with run.opened_log() as log:
        collector = Collector(
            config,
            run_id,
            pool,
            workers,
            await run_started(log, run_id),
            data,
            read_gpus,
        )
        try:
            await collector.collect(log, stop)
        except PartDiedError as error:
            raise explain(error, outputs) from error
    if pool.all_have_started:  # else they load a model, and hear nothing meanwhile
        parts = {part: actor for worker in workers for part, actor in worker.parts.items()}
        parts |= {f"opponent-{number}": actor for number, actor in others.values()}
        await _close(parts | pool.parts)


async def _close(parts: Mapping[str, Any]) -> None:
    """Let the actors end in order, the players before the engines that answer them.

    Ray alone would end them wherever they are.
    """
    deadline = asyncio.get_running_loop().time() + _CLOSE_S
    players = [part for part in parts if part.startswith("rollout-")]
    for some in (players, [part for part in parts if part not in players]):
        await _close_within(deadline, some, [parts[part] for part in some])


async def _close_within(deadline: float, parts: Sequence[str], actors: Sequence[Any]) -> None:
    answers = [asyncio.ensure_future(answer_of(actor.close.remote())) for actor in actors]
    left_s = deadline - asyncio.get_running_loop().time()
    await asyncio.wait(answers, timeout=max(0.0, left_s))
    for part, answer in zip(parts, answers, strict=True):
        error = answer.exception() if answer.done() else f"still busy, {_CLOSE_S:g} s after it was asked"
        if error is not None:
            # The run is over and all of it is in the log: what is left is ended with this process.
            _logger.warning("not closed in order", part=part, reason=str(error))
        answer.cancel()


def _start_opponents(
    config: RunConfig, run_id: str, outputs: Mapping[str, Output], placement: Placement
) -> dict[str, tuple[int, Any]]:
    """Start an engine for each other model that is an opponent; return its number and actor, by path."""
    actors = {}
    pairs = zip(config.opponent_models, placement.opponents, strict=True)
    for number, (path, share) in enumerate(pairs):
        part = f"opponent-{number}"
        options = actor_options(placement, share)
        actor = ray.remote(EngineActor).options(**options, max_concurrency=4096)
        actors[path] = (number, actor.remote(config, run_id, outputs[part].path, path, share, opponent=True))
    return actors
