"""A rollout worker in a Ray actor, and the collector's handle of it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray

from unstable_stream.errors import ServiceError
from unstable_stream.events import GameStarted, PartChanged, decode_event, encode_event
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
from unstable_stream.launch.ray.whereabouts import NOWHERE, Whereabouts, part_changed, whereabouts
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


@dataclass(eq=False, slots=True)
class _Player:
    """One actor of a worker."""

    actor: Any
    why: str
    """The reason for which it was started."""
    at: Whereabouts = NOWHERE
    asked: "asyncio.Future[Whereabouts] | None" = None
    """Its answer to where it is."""
    told: bool = False
    """Whether its arrival is recorded."""
    lost: bool = False


class RayRolloutWorker:
    """The handle of a rollout actor; one that was lost with its process or machine can be replaced."""

    def __init__(self, start: Callable[[], Any], number: int, run_id: str) -> None:
        """``start`` makes an actor."""
        self._start = start
        self._part = f"rollout-{number}"
        self._run_id = run_id
        self._player = _Player(start(), "the collector was started")
        self._lost_in_a_row = 0
        self._changes: list[PartChanged] = []

    @property
    def actor(self) -> Any:
        """The actor that plays now."""
        return self._player.actor

    def hear(self) -> list[PartChanged]:
        """Take the actor's answer to where it is, and ask again; return who came and was lost since the last
        call."""
        self._hear(self._player)
        changes, self._changes = self._changes, []
        return changes

    def _hear(self, player: _Player) -> None:
        if player.lost:
            return
        if player.asked is None:
            player.asked = asyncio.ensure_future(_answer(player.actor.where.remote()))
        elif player.asked.done():
            asked, player.asked = player.asked, None
            if isinstance(error := asked.exception(), ray.exceptions.RayActorError):
                self._lose(player, reason_of(error))
            elif error is None:
                player.at = asked.result()
                self._tell_of(player)

    def _tell_of(self, player: _Player) -> None:
        if not player.told:
            player.told = True
            self._changes.append(self._changed(player, "added", player.why))

    def _lose(self, player: _Player, reason: str) -> None:
        if not player.lost:
            player.lost = True
            self._changes.append(self._changed(player, "lost", reason))

    def _changed(self, player: _Player, change: str, reason: str) -> PartChanged:
        return part_changed(self._run_id, self._part, change, player.at, reason)

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
        if self._player.lost:
            if self._lost_in_a_row == _REPLACEMENTS:
                return False
            self._lost_in_a_row += 1
            self._player = _Player(self._start(), "in place of the one that was lost")
        return True

    async def _answer(self, method: str, *arguments: Any) -> Any:
        player = self._player
        try:
            answer = await getattr(player.actor, method).remote(*arguments)
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, PartDiedError):
                raise error.cause from None  # its engine
            if isinstance(error, ray.exceptions.RayActorError):
                self._lose(player, reason_of(error))
                raise PartLostError(self._part, reason_of(error)) from error
            raise PartDiedError(self._part, reason_of(error)) from error
        if method == "play":
            self._lost_in_a_row = 0
        return answer


def _decode_started(data: bytes) -> GameStarted:
    event = decode_event(data)
    assert isinstance(event, GameStarted), "the collector sends nothing else"
    return event


async def _answer(reference: Any) -> Any:  # Ray's references have no type here
    return await reference
