"""The engine's side of the remote calls: requests come in, and answers of earlier calls go out with them.

A remote call takes 2 ms of CPU time in all, as much as ten turns of a tiny model. So a call takes along all
requests of one turn of the caller's event loop, and brings back all answers to this caller that are there,
whichever call asked for them, as soon as there is one. Of a caller at most two calls wait: another one sends
the oldest home. So a long completion does not delay a short one, and turns that are answered together are
also asked for together the next time.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping
from functools import partial
from typing import Final, TypeAlias

from unstable_stream.errors import EngineDiedError, UnstableStreamError
from unstable_stream.inference.engine import Completion, Engine, GenerationRequest

__all__ = ["Answer", "Exchange"]

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
