"""One inference engine in a Ray actor, and its counterpart in the callers' processes.

A remote call takes 2 ms of CPU time in all, as much as ten turns of a tiny model. So a call takes along all
requests of one turn of the caller's event loop, and brings back all answers to this caller that are there,
whichever call asked for them, as soon as there is one. Of a caller at most two calls wait: another one sends
the oldest home. So a long completion does not delay a short one, and turns that are answered together are
also asked for together the next time.
"""

import asyncio
import secrets
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import ray

from unstable_stream.errors import EngineDiedError, EngineError, UnstableStreamError
from unstable_stream.inference.base_model import model_on_this_machine
from unstable_stream.inference.engine import (
    Adapter,
    AdapterResult,
    Completion,
    Engine,
    EngineStats,
    GenerationRequest,
    ScoresCompletions,
    Tokens,
)
from unstable_stream.runs.code import find_code
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.placement import Share
from unstable_stream.services.launch.ray.cluster import Whereabouts, whereabouts
from unstable_stream.services.launch.ray.nodes import Equipment, require
from unstable_stream.services.launch.ray.part_output import (
    PartDiedError,
    printing_errors,
    reason_of,
    starting,
)
from unstable_stream.services.streams.costs import ActorCosts, CostMeter
from unstable_stream.services.workers.engine import build_engine, build_opponent, take_adapter_results

Answer: TypeAlias = tuple[int, Completion | UnstableStreamError]
"""The caller's number for a request, and what came of it."""
_Task: TypeAlias = "asyncio.Task[Completion]"
_MOST_WAITING: Final = 2
"""So that answers that follow each other need not be fetched with a call without requests."""


class Exchange:
    """Serves many callers of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running: set[_Task] = set()
        self._answers: defaultdict[str, _Answers] = defaultdict(_Answers)
        """By caller. One that is lost leaves the answers to its games in flight."""
        self.failure = ""
        """The reason for which the engine can answer no more; empty: it can."""

    @property
    def running(self) -> int:
        """Requests that are not answered."""
        return len(self._running)

    async def call(self, caller: str, requests: Mapping[int, GenerationRequest]) -> list[Answer]:
        """Take requests by the caller's numbers for them; return what is answered of these and earlier ones.

        Returns as soon as something is answered, or with nothing when newer calls of the caller wait. Raises
        what the engine raises beside :class:`UnstableStreamError`: a bug.
        """
        answers = self._answers[caller]
        for number, request in requests.items():
            task = asyncio.create_task(self._engine.generate(request))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            task.add_done_callback(partial(answers.add, number))
        return [(number, self._result_of(task)) for number, task in await answers.take()]

    def _result_of(self, task: _Task) -> Completion | UnstableStreamError:
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, EngineDiedError):
            self.failure = f"{type(error).__name__}: {error}"
        if isinstance(error, UnstableStreamError):
            return error
        raise error


class _Answers:
    """The answers to one caller that are not yet brought to it."""

    def __init__(self) -> None:
        self._done: list[tuple[int, _Task]] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Of the calls that wait, the oldest first."""

    def add(self, number: int, task: _Task) -> None:
        self._done.append((number, task))
        if len(self._done) == 1:  # else the call that was let go takes it, too
            self._let_go()

    async def take(self) -> list[tuple[int, _Task]]:
        """Return all as soon as there is one; nothing if more calls come to wait than may."""
        if not self._done:
            if len(self._waiting) == _MOST_WAITING:
                self._let_go()
            let_go: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(let_go)
            await let_go
        done, self._done = self._done, []
        return done

    def _let_go(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)


_TRIES: Final = 3
"""Engines that a request is passed to, if they are lost one after another: it may be what they die of."""
_FETCH_AFTER_S: Final = 0.005
"""After an answer the games usually ask for their next turns in this time; that call also brings the rest."""


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """The answer of an engine's actor, which also shows that it has loaded its model."""

    at: Whereabouts
    running: int
    """Requests that it has not answered."""
    failure: str = ""
    """The reason for which the engine can answer no more, though its process lives; empty: it can."""


class EngineActor:
    """The Ray actor: constructs the engine in its own process and serves many callers at once."""

    def __init__(
        self,
        run: RunContext,
        output: Path,
        model_path: str,
        share: Share,
        *,
        opponent: bool = False,
        expected: Equipment | None = None,
    ) -> None:
        """Load the model.

        Args:
            run: its run.
            output: the file that gets what it prints.
            model_path: the directory of the model at the launcher's.
            share: the part of the machine that it computes on.
            opponent: the model is another one than the run's.
            expected: the launcher's software, if this machine was not asked for its own before the run began.
        """
        config = run.config
        with starting(output, run.run_id):
            if expected is not None:
                require(config, model_path, expected)
            find_code(config)
            if not opponent:
                model_path = model_on_this_machine(config.model, model_path)
            self._costs = ActorCosts(run, CostMeter(run.run_id, output.stem, gpus=share.num_gpus))
            build = build_opponent if opponent else build_engine
            self._engine = build(config, model_path, share)
        self._exchange = Exchange(self._engine)

    async def exchange(self, caller: str, requests: Mapping[int, GenerationRequest]) -> list[Answer]:
        """See :meth:`Exchange.call`."""
        self._costs.begin()
        with printing_errors():
            return await self._exchange.call(caller, requests)

    async def health(self) -> EngineHealth:
        """Return where it is and how it is."""
        return EngineHealth(whereabouts(), self._exchange.running, self._exchange.failure)

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
        await self._costs.close()


@dataclass(slots=True)
class _Asked:
    """A request on its way, and how many engines were lost with it."""

    request: GenerationRequest
    answer: "asyncio.Future[Completion]"
    lost: int = 0


@dataclass(slots=True)
class _Remote:
    """One engine, as its callers see it."""

    part: str
    """Its name in messages."""
    actor: Any
    asked: dict[int, _Asked] = field(default_factory=dict)
    """The requests that it has not answered, by number."""
    calls: int = 0
    """On their way."""
    caller: str = field(default_factory=lambda: secrets.token_hex(8))
    """Brings home its own answers only: an engine that left and came back may owe answers to both."""

    def died(self, reason: str) -> PartDiedError:
        return PartDiedError(self.part, reason)


class RemoteEngine:
    """An :class:`~unstable_stream.inference.engine.Engine` over several engine actors, which come and go.

    What an engine was asked when it was lost is asked of another one, so a game goes on.
    """

    def __init__(self, actors: Mapping[int, Any], *, part: str = "engine") -> None:
        """``actors``: by their numbers; ``part``: what they are called in messages, before the number."""
        self._part = part
        self._engines: dict[int, _Remote] = {}
        self.use(actors)
        self._sent = 0
        self._queue: list[_Asked] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._completions = 0
        self._tokens = 0

    def use(self, actors: Mapping[int, Any]) -> None:
        """Ask these from now on; what others were asked they still answer."""
        known = self._engines
        self._engines = {
            number: known[number]
            # Handles of one actor that came with different calls are equal, and not the same.
            if number in known and known[number].actor == actor
            else _Remote(f"{self._part}-{number}", actor)
            for number, actor in actors.items()
        }

    async def generate(self, request: GenerationRequest) -> Completion:
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._enqueue([_Asked(request, future)])
        completion = await future
        self._completions += 1
        self._tokens += len(completion.token_ids)
        return completion

    def _enqueue(self, asked: Sequence[_Asked]) -> None:
        if not self._queue:
            # Runs after the callbacks that are ready now, so requests of this turn of the loop are sent
            # together.
            asyncio.get_running_loop().call_soon(self._send)
        self._queue.extend(asked)

    async def score(self, sequences: Sequence[Tokens], adapter: Adapter | None = None) -> list[list[float]]:
        """Return the log-probability of each token of each completion, by the engine with the least to do."""
        engine = self._idlest()
        try:
            found: list[list[float]] | UnstableStreamError = await engine.actor.score.remote(
                sequences, adapter
            )
        except ray.exceptions.RayError as error:
            raise engine.died(reason_of(error)) from error
        if isinstance(found, EngineDiedError):
            raise engine.died(f"{type(found).__name__}: {found}")
        if isinstance(found, UnstableStreamError):
            raise found
        return found

    def _idlest(self) -> _Remote:
        return min(self._engines.values(), key=lambda engine: len(engine.asked))

    def _send(self) -> None:
        batch, self._queue = self._queue, []
        engine = self._idlest()
        numbered = dict(enumerate(batch, self._sent))
        self._sent += len(batch)
        engine.asked |= numbered
        engine.calls += 1
        task = asyncio.ensure_future(
            self._ask(engine, {number: asked.request for number, asked in numbered.items()})
        )
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _ask(self, engine: _Remote, requests: Mapping[int, GenerationRequest]) -> None:
        await self._call(engine, requests)
        while engine.asked and not engine.calls:
            await asyncio.sleep(_FETCH_AFTER_S)
            if engine.asked and not engine.calls:
                engine.calls += 1
                await self._call(engine, {})

    async def _call(self, engine: _Remote, requests: Mapping[int, GenerationRequest]) -> None:
        try:
            answers: list[Answer] = await engine.actor.exchange.remote(engine.caller, requests)
        except ray.exceptions.RayError as error:
            asked, engine.asked = list(engine.asked.values()), {}
            # Not an EngineError: no game caused this.
            self._ask_another(engine, asked, engine.died(reason_of(error)))
            return
        finally:
            engine.calls -= 1
        for number, result in answers:
            asked_for = engine.asked.pop(number, None)
            if asked_for is None:
                continue  # asked of another engine since
            if isinstance(result, EngineDiedError):
                failure = engine.died(f"{type(result).__name__}: {result}")
                self._ask_another(engine, [asked_for], failure)
            else:
                _settle(asked_for.answer, result)

    def _ask_another(self, lost: _Remote, unanswered: Sequence[_Asked], failure: PartDiedError) -> None:
        """Pass on what a lost engine has not answered; where no other is left, no game can be played."""
        others = {number: engine for number, engine in self._engines.items() if engine is not lost}
        if others:
            self._engines = others
        again = []
        for asked in unanswered:
            if asked.answer.done():
                continue
            asked.lost += 1
            if others and asked.lost < _TRIES:
                again.append(asked)
            else:
                _settle(asked.answer, failure)
        if again:
            self._enqueue(again)

    def stats(self) -> EngineStats:
        running = sum(len(engine.asked) for engine in self._engines.values())
        return EngineStats(
            queued=len(self._queue),
            running=running,
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
