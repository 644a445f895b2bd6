"""The games that rollout workers play now; those of a worker that was lost are played again."""

import asyncio
from collections.abc import Container, Mapping, Sequence
from typing import Protocol, runtime_checkable

from unstable_stream.console import get_logger
from unstable_stream.errors import ServiceError
from unstable_stream.events import GameStarted
from unstable_stream.inference.engine import Adapter
from unstable_stream.log.port import Positions
from unstable_stream.services.workers.exploitability import Measurement

_logger = get_logger(__name__)


class RolloutWorkerHandle(Protocol):
    """A rollout worker that may be in another process."""

    async def play(self, games: Sequence[GameStarted], adapters: Mapping[str, Adapter]) -> int:
        """Play games to their ends and publish them; return the number of finished ones.

        Raises:
            ServiceError: the worker or its engine died; the games must be played again.
        """

    async def cancel(self, game_ids: Sequence[str], reason: str) -> None:
        """Abandon games that are still being played, and record this in the log."""

    async def measure(self, wanted: Measurement, adapters: Sequence[Adapter | None]) -> None:
        """Measure a checkpoint's exploitability and publish it.

        Raises:
            ServiceError: the worker or its engine died; it must be measured again.
        """


@runtime_checkable
class ReplaceableWorker(Protocol):
    """A rollout worker whose process can be replaced."""

    def replaced(self, error: ServiceError) -> bool:
        """Return whether another process plays for the one that an error reports as lost."""


class WorkerCalls:
    """Passes games to the workers in turn."""

    def __init__(self, workers: Sequence[RolloutWorkerHandle]) -> None:
        self.workers = workers
        self._next = 0
        self._calls: dict[asyncio.Task[int], tuple[RolloutWorkerHandle, Sequence[GameStarted]]] = {}
        self._again: list[GameStarted] = []
        """Games of workers that were lost, played again once the log is read to where it ended then."""
        self._again_from: Positions = {}

    @property
    def tasks(self) -> list[asyncio.Task[int]]:
        """The calls under way."""
        return list(self._calls)

    def next_worker(self) -> RolloutWorkerHandle:
        """Return the worker whose turn it is."""
        worker = self.workers[self._next]
        self._next = (self._next + 1) % len(self.workers)
        return worker

    def play(self, games: Sequence[GameStarted], adapters: Mapping[str, Adapter]) -> None:
        """Let the next worker play games."""
        worker = self.next_worker()
        self._calls[asyncio.ensure_future(worker.play(games, adapters))] = (worker, games)

    def lost(self) -> list[GameStarted]:
        """Return the games of workers that were lost and replaced since the last call.

        Raises:
            ServiceError: one was lost and not replaced; or whatever else has ended a call.
        """
        games: list[GameStarted] = []
        for call in [call for call in self._calls if call.done()]:
            worker, own = self._calls.pop(call)
            error = call.exception()
            if error is None:
                continue
            if not _is_replaced(worker, error):
                raise error
            _logger.warning("worker lost, its games are played again", games=len(own), reason=str(error))
            games += own
        return games

    def play_again(self, games: Sequence[GameStarted], after: Positions) -> None:
        """Play games again once the log is read up to ``after``: then it is known which have ended."""
        self._again += games
        self._again_from = after

    def playable_again(self, read: Positions, in_flight: Container[str]) -> list[GameStarted]:
        """Return the games to play again now, where the log is read up to ``read``: those without an end."""
        if not self._again or any(read.get(at, 0) < end for at, end in self._again_from.items()):
            return []
        again, self._again = self._again, []
        return [game for game in again if game.game_id in in_flight]


def _is_replaced(worker: RolloutWorkerHandle, error: BaseException) -> bool:
    return (
        isinstance(worker, ReplaceableWorker) and isinstance(error, ServiceError) and worker.replaced(error)
    )
