"""A rollout worker in a Ray actor, and the collector's handle of it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import ray

from unstable_stream.errors import ServiceError
from unstable_stream.events import GameStarted, decode_event, encode_event
from unstable_stream.inference.base_model import model_on_this_machine
from unstable_stream.inference.engine import Adapter, Engine
from unstable_stream.launch.ray.engine import RemoteEngine
from unstable_stream.launch.ray.part_output import (
    PartDiedError,
    PartLostError,
    printing_errors,
    reason_of,
    write_output_to,
)
from unstable_stream.log.open import open_log_at
from unstable_stream.runs.code import find_code
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.workers.exploitability import Measurement
from unstable_stream.workers.hung_games import end_with
from unstable_stream.workers.rollout import RolloutWorker

__all__ = ["RayRolloutWorker", "RolloutActor"]

_REPLACEMENTS: Final = 3
"""Actors of a worker that may be lost in a row without having played a game to its end."""


class RolloutActor:
    """The Ray actor: a rollout worker in its own process, with its own connection to the log."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        output: Path,
        data_root: str,
        model_path: str,
        engine: RemoteEngine,
        others: Mapping[str, Engine],
    ) -> None:
        write_output_to(output, run_id)
        with printing_errors():
            find_code(config)
            data = DataDir(Path(data_root))
            self._engine = engine
            self._log = open_log_at(config.log, data.log, config.synchronous)
            hung = end_with(config, data, "Another one takes its place.")
            model_path = model_on_this_machine(config.model, model_path)
            self._worker = RolloutWorker(config, self._log, model_path, engine, others, hung)

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
    """The handle of a rollout actor; one that was lost with its process or machine can be replaced."""

    def __init__(self, start: Callable[[], Any], number: int) -> None:
        """``start`` makes an actor."""
        self._start = start
        self._number = number
        self._actor = start()
        self._is_lost = False
        self._lost_in_a_row = 0

    @property
    def actor(self) -> Any:
        """The actor that plays now."""
        return self._actor

    async def play(self, games: Sequence[GameStarted], adapters: Mapping[str, Adapter]) -> int:
        """Play games in the actor; return the number published as finished.

        Raises:
            ServiceError: the actor or its engine died, or has a bug; the games must be played again.
        """
        finished: int = await self._answer("play", [encode_event(game) for game in games], adapters)
        return finished

    async def cancel(self, game_ids: Sequence[str], reason: str) -> None:
        """Abandon games that are still being played, and record this in the log."""
        await self._answer("cancel", game_ids, reason)

    async def measure(self, wanted: Measurement, adapters: Sequence[Adapter | None]) -> None:
        """Measure a checkpoint's exploitability in the actor; raises as :meth:`play` does."""
        await self._answer("measure", wanted, adapters)

    async def use_engines(self, actors: Mapping[int, Any]) -> None:
        """Let the actor ask these engines from now on; the successor of a lost one begins with them."""
        with suppress(PartDiedError):
            await self._answer("use_engines", dict(actors))

    def replaced(self, error: ServiceError) -> bool:
        """Return whether another actor plays for the one that an error tells is lost; start it if need be.

        One that is lost again and again without having played is not started for ever.
        """
        if not isinstance(error, PartLostError):
            return False
        if self._is_lost:
            if self._lost_in_a_row == _REPLACEMENTS:
                return False
            self._lost_in_a_row += 1
            self._actor = self._start()
            self._is_lost = False
        return True

    async def _answer(self, method: str, *arguments: Any) -> Any:
        actor = self._actor
        try:
            answer = await getattr(actor, method).remote(*arguments)
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, PartDiedError):
                raise error.cause from None  # its engine
            part = f"rollout-{self._number}"
            if isinstance(error, ray.exceptions.RayActorError):
                self._is_lost = self._is_lost or actor is self._actor
                raise PartLostError(part, reason_of(error)) from error
            raise PartDiedError(part, reason_of(error)) from error
        if method == "play":
            self._lost_in_a_row = 0
        return answer


def _decode_started(data: bytes) -> GameStarted:
    event = decode_event(data)
    assert isinstance(event, GameStarted), "the collector sends nothing else"
    return event
