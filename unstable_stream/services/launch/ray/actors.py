"""A rollout worker and the learner service in Ray actors, and the processes that hold on to them.

The learner's host loads neither torch nor the model. The actor does, on the machine where Ray placed it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import ray

from unstable_stream.console import get_logger
from unstable_stream.errors import EventLogError, ServiceError
from unstable_stream.events import GameStarted, PartChanged, decode_event, encode_event
from unstable_stream.inference.base_model import model_on_this_machine
from unstable_stream.inference.engine import Adapter, Engine
from unstable_stream.log.open import open_log_at
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
from unstable_stream.services.launch.ray.engine import RemoteEngine
from unstable_stream.services.launch.ray.part_output import (
    PartDiedError,
    PartLostError,
    explain,
    printing_errors,
    reason_of,
    starting,
)
from unstable_stream.services.launch.service_output import Output
from unstable_stream.services.streams.costs import ActorCosts, CostMeter, reported
from unstable_stream.services.workers.exploitability import Measurement
from unstable_stream.services.workers.rollout import RolloutWorker, end_with

_REPLACEMENTS: Final = 3
"""Actors of a worker that may be lost in a row without having played a game to its end."""

_logger = get_logger(__name__)


class RolloutActor:
    """The Ray actor: a rollout worker in its own process, with its own connection to the log."""

    def __init__(
        self,
        run: RunContext,
        output: Path,
        model_path: str,
        engine: RemoteEngine,
        others: Mapping[str, Engine],
    ) -> None:
        config, data = run.config, run.data
        with starting(output, run.run_id):
            find_code(config)
            self._engine = engine
            self._log = open_log_at(config.log, data.log, config.synchronous)
            hung = end_with(config, data, "Another one takes its place.")
            model_path = model_on_this_machine(config.model, model_path)
            self._worker = RolloutWorker(config, self._log, model_path, engine, others, hung)
        self._costs = ActorCosts(run, CostMeter(run.run_id, output.stem))

    async def where(self) -> Whereabouts:
        """Return where it is."""
        self._costs.begin()
        return whereabouts()

    async def play(self, games: Sequence[bytes], adapters: Mapping[str, Adapter]) -> int:
        """Play encoded ``game-started`` events; see :meth:`RolloutWorker.play`."""
        with printing_errors():
            return await self._worker.play([_decode_started(data) for data in games], adapters)

    async def use_engines(self, actors: Mapping[int, Any]) -> None:
        """See :meth:`RemoteEngine.use`."""
        self._engine.use(actors)

    async def cancel(self, game_ids: Sequence[str], reason: str) -> None:
        """See :meth:`RolloutWorker.cancel`."""
        await self._worker.cancel(game_ids, reason)

    async def measure(self, wanted: Measurement, adapters: Sequence[Adapter | None]) -> None:
        """See :meth:`RolloutWorker.measure`."""
        with printing_errors():
            await self._worker.measure(wanted, adapters)

    async def close(self) -> None:
        """Stop playing, publish what was passed on for it, and close the log."""
        with printing_errors():
            await self._worker.close()
            await self._costs.close()
            await self._log.close()


class RayRolloutWorker:
    """The handle of a rollout actor, which is replaced when it was lost with its process or machine."""

    def __init__(self, start: Callable[..., Any], number: int, run_id: str) -> None:
        """``start`` makes an actor: the first one where the plan has it, and ``successor=True`` anywhere."""
        self._start = start
        self.part = f"rollout-{number}"
        """Its name in messages."""
        self._run_id = run_id
        self._lost_in_a_row = 0
        self._changes: list[PartChanged] = []
        self._begin(start(), "the collector was started")

    def _begin(self, actor: Any, why: str) -> None:
        self.actor = actor
        self._why = why
        self._at = NOWHERE
        self._asked: asyncio.Future[Whereabouts] | None = None
        self._lost = False

    def hear(self) -> list[PartChanged]:
        """Ask the actor once where it is, and take its answer; return who has come and gone since."""
        if self._asked is None:
            self._asked = asyncio.ensure_future(self.actor.where.remote())
        elif self._asked.done() and self._at is NOWHERE and not self._lost:
            if isinstance(error := self._asked.exception(), ray.exceptions.RayActorError):
                self._lose(reason_of(error))
            elif error is None:
                self._at = self._asked.result()
                self._change("added", self._why)
        changes, self._changes = self._changes, []
        return changes

    def _lose(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            self._change("lost", reason)

    def _change(self, change: str, reason: str) -> None:
        self._changes.append(part_changed(self._run_id, self.part, change, self._at, reason))

    async def play(self, games: Sequence[GameStarted], adapters: Mapping[str, Adapter]) -> int:
        """Play games in the actor; return the number published as finished.

        Raises:
            ServiceError: the actor or its engine died, or has a bug; the games must be played again.
        """
        finished: int = await self._call("play", [encode_event(game) for game in games], adapters)
        self._lost_in_a_row = 0
        return finished

    async def cancel(self, game_ids: Sequence[str], reason: str) -> None:
        """Abandon games that are still being played, and record this in the log."""
        with suppress(PartLostError):  # which its games tell, too
            await self._call("cancel", game_ids, reason)

    async def measure(self, wanted: Measurement, adapters: Sequence[Adapter | None]) -> None:
        """Measure a checkpoint's exploitability in the actor; raises as :meth:`play` does."""
        await self._call("measure", wanted, adapters)

    async def use_engines(self, actors: Mapping[int, Any]) -> None:
        """Let the actor ask these engines from now on; a successor begins with them."""
        with suppress(PartDiedError):
            await self._call("use_engines", dict(actors))

    def replaced(self, error: ServiceError) -> bool:
        """Return whether another actor plays for the one that an error tells is lost; start it if need be.

        One that is lost again and again without having played is not started for ever.
        """
        if not isinstance(error, PartLostError):
            return False
        if self._lost:
            if self._lost_in_a_row == _REPLACEMENTS:
                return False
            self._lost_in_a_row += 1
            self._begin(self._start(successor=True), "in place of the one that was lost")
        return True

    async def _call(self, method: str, *arguments: Any) -> Any:
        actor = self.actor
        try:
            return await getattr(actor, method).remote(*arguments)
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, PartDiedError):
                raise error.cause from None  # its engine
            if isinstance(error, ray.exceptions.RayActorError):
                if actor is self.actor:
                    self._lose(reason_of(error))
                raise PartLostError(self.part, reason_of(error)) from error
            raise PartDiedError(self.part, reason_of(error)) from error


def _decode_started(data: bytes) -> GameStarted:
    event = decode_event(data)
    assert isinstance(event, GameStarted), "the collector sends nothing else"
    return event


class LearnerActor:
    """The Ray actor: the learner service in its own process."""

    def __init__(self, run: RunContext, output: Path, model_path: str, share: Share) -> None:
        with starting(output, run.run_id):
            from unstable_stream.services.workers.learner import Learners

            find_code(run.config)
            model_path = model_on_this_machine(run.config.model, model_path)
            self._meter = CostMeter(run.run_id, "learner", gpus=share.num_gpus)
            self._service = Learners(run.config, run.run_id, run.data, model_path, share)
        self._run = run
        self._stop = asyncio.Event()

    async def ready(self) -> Whereabouts:
        """Return where it is, when the model is loaded."""
        return whereabouts()

    async def train(self) -> int:
        """Train to the end; see :meth:`Learners.train`."""
        async with self._run.opened_log() as log, reported(log, self._meter):
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
