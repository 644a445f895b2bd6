"""A rollout worker in a Ray actor, and the collector's handle of it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import ray

from unstable_stream.errors import ServiceError
from unstable_stream.events import GameStarted, PartChanged, decode_event, encode_event
from unstable_stream.inference.base_model import model_on_this_machine
from unstable_stream.inference.engine import Adapter, Engine
from unstable_stream.log.open import open_log_at
from unstable_stream.runs.code import find_code
from unstable_stream.runs.context import RunContext
from unstable_stream.services.launch.ray.cluster import NOWHERE, Whereabouts, part_changed, whereabouts
from unstable_stream.services.launch.ray.engine import RemoteEngine
from unstable_stream.services.launch.ray.part_output import (
    PartDiedError,
    PartLostError,
    printing_errors,
    reason_of,
    starting,
)
from unstable_stream.services.workers.exploitability import Measurement
from unstable_stream.services.workers.rollout import RolloutWorker, end_with

_REPLACEMENTS: Final = 3
"""Actors of a worker that may be lost in a row without having played a game to its end."""


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

    async def where(self) -> Whereabouts:
        """Return where it is."""
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
