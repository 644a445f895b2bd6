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
from unstable_stream.log.open import open_log_at
from unstable_stream.runs.code import find_code
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.launch.ray.cluster import (
    DRAINED,
    NOWHERE,
    Whereabouts,
    part_changed,
    whereabouts,
)
from unstable_stream.services.launch.ray.engine import RemoteEngine
from unstable_stream.services.launch.ray.part_output import (
    PartDiedError,
    PartLostError,
    answer_of,
    printing_errors,
    reason_of,
    starting,
)
from unstable_stream.services.workers.exploitability import Measurement
from unstable_stream.services.workers.rollout import RolloutWorker, end_with

_CLOSE_S: Final = 25.0
"""Seconds that an actor has to close once it has a successor and plays no game."""
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
        with starting(output, run_id):
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
    calls: int = 0
    """Those that it has not answered."""


class RayRolloutWorker:
    """The handle of a rollout actor, which can be replaced when it was lost with its process or machine, and
    before its machine is taken away: then it plays its games to their ends, and its successor the next ones.
    """

    def __init__(self, start: Callable[[str], Any], number: int, run_id: str) -> None:
        """``start`` makes an actor on the machine with this id of Ray; empty: where the plan has it."""
        self._start = start
        self._part = f"rollout-{number}"
        self._run_id = run_id
        self._player = _Player(start(""), "the collector was started")
        self._coming: _Player | None = None
        """The successor, before it has answered."""
        self._leaving: list[_Player] = []
        """Those that play their games to their ends and get no more."""
        self.successor_node = ""
        """The machine on which a successor starts."""
        self._lost_in_a_row = 0
        self._changes: list[PartChanged] = []

    @property
    def node(self) -> str:
        """Ray's id of the machine of the actor that gets the next games; empty: not known."""
        return self._player.at.node

    @property
    def parts(self) -> dict[str, Any]:
        """The actors that play, by their names in messages."""
        leaving = {f"{self._part}, leaving {n}": player.actor for n, player in enumerate(self._leaving)}
        return {self._part: self._player.actor, **leaving}

    def hear(self) -> list[PartChanged]:
        """Take the actors' answers to where they are, and ask again; return who has come and gone since."""
        for player in self._players:
            self._hear(player)
        self._leaving = [player for player in self._leaving if not player.lost]
        coming = self._coming
        if coming is not None and coming.lost:
            self._coming = None
        elif coming is not None and coming.told:
            self._leaving += [] if self._player.lost else [self._player]
            self._player, self._coming = coming, None
        changes, self._changes = self._changes, []
        return changes

    @property
    def _players(self) -> list[_Player]:
        return [self._player, *self._leaving, *([] if self._coming is None else [self._coming])]

    def move(self, reason: str) -> None:
        """Start a successor, which gets the next games once it answers."""
        if self._coming is None and not self._player.lost:
            self._coming = _Player(self._start(self.successor_node), reason)

    async def end_idle(self) -> None:
        """End actors that have a successor and have played their games to their ends."""
        for player in [player for player in self._leaving if player.calls == 0]:
            with suppress(ray.exceptions.RayError, TimeoutError):
                await asyncio.wait_for(answer_of(player.actor.close.remote()), _CLOSE_S)
            ray.kill(player.actor)
            self._leaving.remove(player)
            self._changes.append(self._changed(player, "removed", DRAINED))

    def _hear(self, player: _Player) -> None:
        if player.lost:
            return
        if player.asked is None:
            player.asked = asyncio.ensure_future(answer_of(player.actor.where.remote()))
        elif player.asked.done():
            asked, player.asked = player.asked, None
            if isinstance(error := asked.exception(), ray.exceptions.RayActorError):
                self._lose(player, reason_of(error))
            elif error is None:
                player.at = asked.result()
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
        finished: int = await self._call(
            self._player, "play", [encode_event(game) for game in games], adapters
        )
        return finished

    async def cancel(self, game_ids: Sequence[str], reason: str) -> None:
        """Abandon games that are still being played, and record this in the log."""
        for player in (self._player, *self._leaving):
            with suppress(PartLostError):  # which its games tell, too
                await self._call(player, "cancel", game_ids, reason)

    async def measure(self, wanted: Measurement, adapters: Sequence[Adapter | None]) -> None:
        """Measure a checkpoint's exploitability in the actor; raises as :meth:`play` does."""
        await self._call(self._player, "measure", wanted, adapters)

    async def use_engines(self, actors: Mapping[int, Any]) -> None:
        """Let the actors ask these engines from now on; a successor begins with them."""
        if self._coming is not None:  # it cannot answer yet
            self._coming.actor.use_engines.remote(dict(actors))
        for player in (self._player, *self._leaving):
            with suppress(PartDiedError):
                await self._call(player, "use_engines", dict(actors))

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
            self._player = self._coming or _Player(
                self._start(self.successor_node), "in place of the one that was lost"
            )
            self._coming = None
        return True

    async def _call(self, player: _Player, method: str, *arguments: Any) -> Any:
        player.calls += 1
        try:
            answer = await getattr(player.actor, method).remote(*arguments)
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, PartDiedError):
                raise error.cause from None  # its engine
            if isinstance(error, ray.exceptions.RayActorError):
                self._lose(player, reason_of(error))
                raise PartLostError(self._part, reason_of(error)) from error
            raise PartDiedError(self._part, reason_of(error)) from error
        finally:
            player.calls -= 1
        if method == "play":
            self._lost_in_a_row = 0
        return answer


def _decode_started(data: bytes) -> GameStarted:
    event = decode_event(data)
    assert isinstance(event, GameStarted), "the collector sends nothing else"
    return event
