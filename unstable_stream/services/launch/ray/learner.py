"""The learner service in a Ray actor, and the process that hosts it.

The host loads neither torch nor the model. The actor does, on the machine where Ray placed it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import ray

from unstable_stream.console import get_logger
from unstable_stream.errors import EventLogError, ServiceError
from unstable_stream.inference.base_model import model_on_this_machine
from unstable_stream.log.open import opened_log
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.code import find_code
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.placement import Share
from unstable_stream.services.launch.death import Output
from unstable_stream.services.launch.ray.cluster import (
    DRAINED,
    NOWHERE,
    Whereabouts,
    look_at_nodes,
    part_changed,
    whereabouts,
)
from unstable_stream.services.launch.ray.part_output import (
    PartDiedError,
    answer_of,
    explain,
    reason_of,
    starting,
)
from unstable_stream.services.launch.ray.placement import actor_options, on_node, planned

_Record: TypeAlias = Callable[[str, Whereabouts, str], Awaitable[None]]
"""Records a change, the machine, and the reason."""

_EVERY_S: Final = 2.0
"""Seconds between two looks at the cluster's machines."""

_logger = get_logger(__name__)


class LearnerActor:
    """The Ray actor."""

    def __init__(
        self, config: RunConfig, run_id: str, output: Path, data_root: str, model_path: str, share: Share
    ) -> None:
        with starting(output, run_id):
            from unstable_stream.services.workers.learner import Learners

            find_code(config)
            self._config = config
            self._data = DataDir(Path(data_root))
            model_path = model_on_this_machine(config.model, model_path)
            self._service = Learners(config, run_id, self._data, model_path, share)
        self._stop = asyncio.Event()

    async def ready(self) -> Whereabouts:
        """Return where it is, when the model is loaded."""
        return whereabouts()

    async def train(self) -> int:
        """Train to the end; see :meth:`Learners.train`."""
        async with opened_log(self._config.log, self._data.log, synchronous=self._config.synchronous) as log:
            return await self._service.train(log, self._stop)

    async def stop(self) -> None:
        """Finish the current update and return from :meth:`train`."""
        self._stop.set()


async def run_learner(run: RunContext, model_path: str, stop: asyncio.Event) -> None:
    """Host a learner actor until its updates are done or ``stop`` is set; Ray must be initialised.

    One that computes on a CPU leaves a machine that Ray drains after its current update.

    Raises:
        ServiceError: the actor died.
        LearnerError: training cannot go on, see the message.
        FencedError: another learner of this run has taken over.
    """
    run_id, config, data = run
    placement = planned()
    share = placement.learner
    # The file that this process prints to as well, if its launcher is on this machine.
    output = Output(data.service_logs(run_id).absolute() / "learner.log")

    def start(options: Mapping[str, Any]) -> Any:
        return (
            ray.remote(LearnerActor)
            .options(**options, max_concurrency=4)
            .remote(config, run_id, output.path, str(data.root.absolute()), model_path, share)
        )

    record = partial(_record, run)
    stopping = asyncio.ensure_future(stop.wait())
    why = "the service was started"
    actor = start(await asyncio.to_thread(actor_options, placement, share))
    try:
        while node := await _train(actor, record, why, stopping, moves=share.num_gpus == 0):
            ray.kill(actor)
            why = DRAINED
            actor = start(on_node(node))
    except PartDiedError as error:
        raise explain(error, {"learner": output}) from error
    finally:
        stopping.cancel()


async def _train(
    actor: Any, record: _Record, why: str, stopping: "asyncio.Future[Any]", *, moves: bool
) -> str:
    """Train to the end, or until the actor's machine is drained and another one has cores.

    Returns:
        Ray's id of that other machine; empty: it has ended.
    """
    at = NOWHERE
    leaving: asyncio.Future[str] | None = None
    try:
        ready = asyncio.ensure_future(answer_of(actor.ready.remote()))
        await asyncio.wait((ready, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            return ""  # it has changed nothing, so it may end with this process
        at = await ready
        await record("added", at, why)
        training = asyncio.ensure_future(answer_of(actor.train.remote()))
        leaving = asyncio.ensure_future(_elsewhere(at.node)) if moves else None
        until = [training, stopping, *([leaving] if leaving else [])]
        await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
        node = ""
        if not training.done():
            node = leaving.result() if leaving and leaving.done() and not stopping.done() else ""
            await actor.stop.remote()
        await training
        if node:
            await record("removed", at, DRAINED)
        return "" if stopping.done() else node
    except ray.exceptions.RayTaskError as error:
        await record("lost", at, reason_of(error))
        cause = error.cause
        raise (cause if isinstance(cause, Exception) else ServiceError(str(error))) from None
    except ray.exceptions.RayActorError as error:
        await record("lost", at, reason_of(error))
        raise PartDiedError("learner", reason_of(error)) from error
    finally:
        if leaving is not None:
            leaving.cancel()


async def _elsewhere(node: str) -> str:
    """Wait until Ray drains a machine and another one has cores; return Ray's id of that one."""
    while True:
        await asyncio.sleep(_EVERY_S)
        try:
            cluster = await asyncio.to_thread(look_at_nodes)
        except (ray.exceptions.RayError, OSError) as error:
            _logger.warning("the cluster does not say what it has", reason=str(error))
            continue
        others = {other: cores for other, cores in cluster.cpus.items() if cores > 0 and other != node}
        if node in cluster.drained and others:
            return max(others, key=lambda other: (others[other], other))


async def _record(run: RunContext, change: str, at: Whereabouts, reason: str) -> None:
    """Record that the learner came or went, also where the log is away, as it may be when a machine is lost:
    then only this process's log tells.
    """
    event = part_changed(run.run_id, "learner", change, at, reason)
    try:
        async with run.opened_log() as log:
            await log.append([record_from_event(event)])
    except EventLogError as error:
        _logger.warning("not recorded", part="learner", change=change, reason=str(error))
