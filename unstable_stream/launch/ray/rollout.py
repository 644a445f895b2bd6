"""A rollout worker in a Ray actor, and the collector's handle of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from unstable_stream.events import GameStarted, decode_event, encode_event
from unstable_stream.inference.engine import Adapter, Engine
from unstable_stream.launch.ray.part_output import PartDiedError, printing_errors, reason_of, write_output_to
from unstable_stream.log.open import open_log_at
from unstable_stream.runs.code import find_code
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.workers.exploitability import Measurement
from unstable_stream.workers.hung_games import end_with
from unstable_stream.workers.rollout import RolloutWorker

__all__ = ["RayRolloutWorker", "RolloutActor"]


class RolloutActor:
    """The Ray actor: a rollout worker in its own process, with its own connection to the log."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        output: Path,
        data_root: str,
        model_path: str,
        engine: Engine,
        others: Mapping[str, Engine],
    ) -> None:
        write_output_to(output, run_id)
        with printing_errors():
            find_code(config)
            data = DataDir(Path(data_root))
            self._log = open_log_at(config.log, data.log, config.synchronous)
            hung = end_with(config, data, "The collector is started again with a new one.")
            self._worker = RolloutWorker(config, self._log, model_path, engine, others, hung)

    async def play(self, games: Sequence[bytes], adapters: Mapping[str, Adapter]) -> int:
        """Play encoded ``game-started`` events; see :meth:`RolloutWorker.play`."""
        with printing_errors():
            return await self._worker.play([_decode_started(data) for data in games], adapters)

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
    """The handle of a rollout actor."""

    def __init__(self, actor: Any, number: int) -> None:
        self._actor = actor
        self._number = number

    async def play(self, games: Sequence[GameStarted], adapters: Mapping[str, Adapter]) -> int:
        """Play games in the actor; return the number published as finished.

        Raises:
            ServiceError: the actor or its engine died, or has a bug; the games must be played again.
        """
        finished: int = await self._answer(
            self._actor.play.remote([encode_event(game) for game in games], adapters)
        )
        return finished

    async def cancel(self, game_ids: Sequence[str], reason: str) -> None:
        """Abandon games that are still being played, and record this in the log."""
        await self._actor.cancel.remote(game_ids, reason)

    async def measure(self, wanted: Measurement, adapters: Sequence[Adapter | None]) -> None:
        """Measure a checkpoint's exploitability in the actor; raises as :meth:`play` does."""
        await self._answer(self._actor.measure.remote(wanted, adapters))

    async def _answer(self, reference: Any) -> Any:  # Ray's references have no type here
        try:
            return await reference
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, PartDiedError):
                raise error.cause from None  # its engine
            raise PartDiedError(f"rollout-{self._number}", reason_of(error)) from error


def _decode_started(data: bytes) -> GameStarted:
    event = decode_event(data)
    assert isinstance(event, GameStarted), "the collector sends nothing else"
    return event
