"""The learner service in a Ray actor, and the process that hosts it.

The host loads neither torch nor the model. The actor does, on the machine where Ray placed it.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import ray

from unstable_stream.errors import EventLogError, ServiceError
from unstable_stream.inference.base_model import model_on_this_machine
from unstable_stream.launch.last_error import Output
from unstable_stream.launch.ray.part_output import PartDiedError, explain, reason_of, write_output_to
from unstable_stream.launch.ray.placement import actor_options, planned
from unstable_stream.launch.ray.whereabouts import NOWHERE, Whereabouts, part_changed, whereabouts
from unstable_stream.log.open import opened_log
from unstable_stream.log.records import record_from_event
from unstable_stream.log_lines import get_logger
from unstable_stream.runs.code import find_code
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.placement import Share

__all__ = ["LearnerActor", "run_learner"]

_logger = get_logger(__name__)


class LearnerActor:
    """The Ray actor."""

    def __init__(
        self, config: RunConfig, run_id: str, output: Path, data_root: str, model_path: str, share: Share
    ) -> None:
        write_output_to(output, run_id)
        from unstable_stream.workers.learners import Learners

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


async def run_learner(
    config: RunConfig, run_id: str, data: DataDir, model_path: str, stop: asyncio.Event
) -> None:
    """Host a learner actor until its updates are done or ``stop`` is set; Ray must be initialised.

    Raises:
        ServiceError: the actor died.
        LearnerError: training cannot go on, see the message.
        FencedError: another learner of this run has taken over.
    """
    placement = planned()
    options = await asyncio.to_thread(actor_options, placement, placement.learner)
    actor_class = ray.remote(LearnerActor).options(**options, max_concurrency=4)
    # The file that this process prints to as well, if its launcher is on this machine.
    output = Output(data.service_logs(run_id).absolute() / "learner.log")
    actor = actor_class.remote(
        config, run_id, output.path, str(data.root.absolute()), model_path, placement.learner
    )
    record = partial(_record, config, run_id, data)
    at = NOWHERE
    stopping = asyncio.ensure_future(stop.wait())
    try:
        ready = asyncio.ensure_future(_wait_for(actor.ready.remote()))
        await asyncio.wait((ready, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            return  # it has changed nothing, so it may end with this process
        at = await ready
        await record("added", at, "the service was started")
        training = asyncio.ensure_future(_wait_for(actor.train.remote()))
        await asyncio.wait((training, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not training.done():
            await actor.stop.remote()
        await training
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, Exception) else ServiceError(str(error))) from None
    except ray.exceptions.RayActorError as error:
        await record("lost", at, reason_of(error))
        raise explain(PartDiedError("learner", reason_of(error)), {"learner": output}) from error
    finally:
        stopping.cancel()


async def _record(
    config: RunConfig, run_id: str, data: DataDir, change: str, at: Whereabouts, reason: str
) -> None:
    """Record that the learner came or went, also where the log is away, as it may be when a machine is lost:
    then only this process's log tells."""
    event = part_changed(run_id, "learner", change, at, reason)
    try:
        async with opened_log(config.log, data.log, synchronous=config.synchronous) as log:
            await log.append([record_from_event(event)])
    except EventLogError as error:
        _logger.warning("not recorded", part="learner", change=change, reason=str(error))


async def _wait_for(reference: Any) -> Any:
    return await reference
