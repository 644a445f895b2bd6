"""The learner service in a Ray actor, and the process that hosts it.

The host loads neither torch nor the model. The actor does, on the machine where Ray placed it.
"""

import asyncio
from pathlib import Path

import ray

from unstable_stream.console import get_logger
from unstable_stream.errors import EventLogError, ServiceError
from unstable_stream.inference.base_model import model_on_this_machine
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.code import find_code
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.placement import Share
from unstable_stream.services.launch.ray.cluster import (
    NOWHERE,
    Whereabouts,
    actor_options,
    part_changed,
    planned,
    whereabouts,
)
from unstable_stream.services.launch.ray.part_output import (
    PartDiedError,
    explain,
    reason_of,
    starting,
)
from unstable_stream.services.launch.service_output import Output

_logger = get_logger(__name__)


class LearnerActor:
    """The Ray actor."""

    def __init__(self, run: RunContext, output: Path, model_path: str, share: Share) -> None:
        with starting(output, run.run_id):
            from unstable_stream.services.workers.learner import Learners

            find_code(run.config)
            model_path = model_on_this_machine(run.config.model, model_path)
            self._service = Learners(run.config, run.run_id, run.data, model_path, share)
        self._run = run
        self._stop = asyncio.Event()

    async def ready(self) -> Whereabouts:
        """Return where it is, when the model is loaded."""
        return whereabouts()

    async def train(self) -> int:
        """Train to the end; see :meth:`Learners.train`."""
        async with self._run.opened_log() as log:
            return await self._service.train(log, self._stop)

    async def stop(self) -> None:
        """Finish the current update and return from :meth:`train`."""
        self._stop.set()


async def run_learner(run: RunContext, model_path: str, stop: asyncio.Event) -> None:
    """Host a learner actor until its updates are done or ``stop`` is set; Ray must be initialised.

    Raises:
        ServiceError: the actor died.
        LearnerError: training cannot go on, see the message.
        FencedError: another learner of this run has taken over.
    """
    placement = planned()
    # The file that this process prints to as well, if its launcher is on this machine.
    output = Output(run.data.service_logs(run.run_id) / "learner.log")
    options = await asyncio.to_thread(actor_options, placement, placement.learner)
    made = ray.remote(LearnerActor).options(**options, max_concurrency=4)
    actor = made.remote(run, output.path, model_path, placement.learner)
    at = NOWHERE
    stopping = asyncio.ensure_future(stop.wait())
    try:
        ready = asyncio.ensure_future(actor.ready.remote())
        await asyncio.wait((ready, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            return  # it has changed nothing, so it may end with this process
        at = await ready
        await _record(run, "added", at, "the service was started")
        training = asyncio.ensure_future(actor.train.remote())
        await asyncio.wait((training, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not training.done():
            await actor.stop.remote()
        await training
    except ray.exceptions.RayTaskError as error:
        await _record(run, "lost", at, reason_of(error))
        cause = error.cause
        raise (cause if isinstance(cause, Exception) else ServiceError(str(error))) from None
    except ray.exceptions.RayActorError as error:
        await _record(run, "lost", at, reason_of(error))
        died = PartDiedError("learner", reason_of(error))
        raise explain(died, {"learner": output}) from error
    finally:
        stopping.cancel()


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
