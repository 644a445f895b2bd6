"""One inference engine in a Ray actor, and its counterpart in the callers' processes.

Callers gather the requests of one turn of their event loop into one remote call. They receive completions in
groups when these finish. So a thousand short completions a second do not need a thousand remote calls, and a
long completion does not delay a short one.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import ray

from unstable_stream.errors import EngineDiedError, EngineError, UnstableStreamError
from unstable_stream.inference.engine import (
    Adapter,
    AdapterResult,
    Completion,
    EngineStats,
    GenerationRequest,
    ScoresCompletions,
    Tokens,
)
from unstable_stream.launch.ray.part_output import PartDiedError, printing_errors, reason_of, write_output_to
from unstable_stream.runs.code import find_code
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.placement import Share
from unstable_stream.workers.engine import build_engine, build_opponent, take_adapter_results

__all__ = ["EngineActor", "RayEngine", "RemoteEngine"]


class EngineActor:
    """The Ray actor: constructs the engine in its own process and serves many callers at once."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        output: Path,
        model_path: str,
        share: Share,
        *,
        opponent: bool = False,
    ) -> None:
        """``opponent``: the model is another one than the run's."""
        write_output_to(output, run_id)
        with printing_errors():
            find_code(config)
            build = build_opponent if opponent else build_engine
            self._engine = build(config, model_path, share)

    async def generate_many(
        self, requests: Sequence[GenerationRequest]
    ) -> AsyncIterator[list[tuple[int, Completion | UnstableStreamError]]]:
        """Yield ``(index, completion or error)`` in groups, as they finish."""
        tasks = {
            asyncio.create_task(self._generate(request)): index for index, request in enumerate(requests)
        }
        waiting = set(tasks)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                with printing_errors():
                    results = [(tasks[task], _result_of(task)) for task in done]
                yield results
        finally:
            for task in waiting:
                task.cancel()

    async def _generate(self, request: GenerationRequest) -> Completion:
        return await self._engine.generate(request)

    async def score(
        self, sequences: Sequence[Tokens], adapter: Adapter | None
    ) -> list[list[float]] | UnstableStreamError:
        """Return the log-probabilities of completions, or the error."""
        if not isinstance(self._engine, ScoresCompletions):
            return EngineError(f"{type(self._engine).__name__} scores no completions: it has no method score")
        with printing_errors():
            try:
                return await self._engine.score(sequences, adapter)
            except UnstableStreamError as error:
                return error

    async def stats(self) -> EngineStats:
        """Return the engine's counters; an answer also shows that it has started."""
        return self._engine.stats()

    async def adapter_results(self) -> list[AdapterResult]:
        """Return what came of the adapters that it has loaded since the last call."""
        return take_adapter_results(self._engine)

    async def close(self) -> None:
        await self._engine.close()


class RayEngine:
    """The handle of one engine actor, for a collector."""

    def __init__(self, actor: Any, number: int) -> None:
        self._actor = actor
        self._number = number
        self.has_started = False
        """Whether it has answered once, so has loaded its model."""

    async def stats(self) -> EngineStats:
        """Return the engine's counters when it has loaded its model.

        Raises:
            ServiceError: the engine did not start, or died.
        """
        try:
            stats: EngineStats = await self._actor.stats.remote()
        except ray.exceptions.RayError as error:
            raise PartDiedError(f"engine-{self._number}", reason_of(error)) from error
        self.has_started = True
        return stats

    async def adapter_results(self) -> list[AdapterResult]:
        """Return what came of the adapters that it has loaded since the last call.

        Raises:
            ServiceError: the engine did not start, or died.
        """
        try:
            results: list[AdapterResult] = await self._actor.adapter_results.remote()
        except ray.exceptions.RayError as error:
            raise PartDiedError(f"engine-{self._number}", reason_of(error)) from error
        return results


def _result_of(task: "asyncio.Task[Completion]") -> Completion | UnstableStreamError:
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, UnstableStreamError):
        return error
    raise error


class RemoteEngine:
    """An :class:`~unstable_stream.inference.engine.Engine` over several engine actors."""

    def __init__(self, actors: Sequence[Any], parts: Sequence[str] = ()) -> None:
        """``parts``: the names of the actors in messages; by default ``engine-0``, ``engine-1``, …"""
        self._actors = list(actors)
        self._parts = list(parts) or [f"engine-{number}" for number in range(len(actors))]
        self._outstanding = [0] * len(self._actors)
        self._queue: list[tuple[GenerationRequest, asyncio.Future[Completion]]] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._completions = 0
        self._tokens = 0

    async def generate(self, request: GenerationRequest) -> Completion:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        if not self._queue:
            # Runs after the callbacks that are ready now, so requests of this turn of the loop are sent
            # together.
            loop.call_soon(self._send)
        self._queue.append((request, future))
        completion = await future
        self._completions += 1
        self._tokens += len(completion.token_ids)
        return completion

    async def score(self, sequences: Sequence[Tokens], adapter: Adapter | None = None) -> list[list[float]]:
        """Return the log-probability of each token of each completion, by the engine with the least to do."""
        actor = self._idlest()
        try:
            found: list[list[float]] | UnstableStreamError = await self._actors[actor].score.remote(
                sequences, adapter
            )
        except ray.exceptions.RayError as error:
            raise PartDiedError(self._parts[actor], reason_of(error)) from error
        if isinstance(found, EngineDiedError):
            raise PartDiedError(self._parts[actor], f"{type(found).__name__}: {found}")
        if isinstance(found, UnstableStreamError):
            raise found
        return found

    def _idlest(self) -> int:
        return min(range(len(self._actors)), key=self._outstanding.__getitem__)

    def _send(self) -> None:
        batch, self._queue = self._queue, []
        actor = self._idlest()
        task = asyncio.ensure_future(self._call(actor, batch))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(
        self, actor: int, batch: list[tuple[GenerationRequest, "asyncio.Future[Completion]"]]
    ) -> None:
        self._outstanding[actor] += len(batch)
        remaining = len(batch)
        try:
            stream = (
                self._actors[actor]
                .generate_many.options(num_returns="streaming")
                .remote([request for request, _ in batch])
            )
            async for reference in stream:
                for index, result in await reference:
                    remaining -= 1
                    self._outstanding[actor] -= 1
                    if isinstance(result, EngineDiedError):
                        result = PartDiedError(self._parts[actor], f"{type(result).__name__}: {result}")
                    _settle(batch[index][1], result)
        except ray.exceptions.RayError as error:
            # Not an EngineError: no game caused this, and none can be played until the engine is restarted.
            failure = PartDiedError(self._parts[actor], reason_of(error))
            for _, future in batch:
                _settle(future, failure)
        finally:
            self._outstanding[actor] -= remaining

    def stats(self) -> EngineStats:
        outstanding = sum(self._outstanding)
        return EngineStats(
            queued=len(self._queue),
            running=outstanding,
            tokens_per_s=0.0,
            completions=self._completions,
            completion_tokens=self._tokens,
        )

    async def close(self) -> None:
        for task in tuple(self._calls):
            task.cancel()


def _settle(future: "asyncio.Future[Completion]", result: Completion | UnstableStreamError) -> None:
    if future.done():
        return  # the caller has given up
    if isinstance(result, Completion):
        future.set_result(result)
    else:
        future.set_exception(result)
