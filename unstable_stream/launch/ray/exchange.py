"""The engine's side of the remote calls: requests come in, and answers of earlier calls go out with them.

A remote call takes 2 ms of CPU time in all, as much as ten turns of a tiny model. So a call takes along all
requests of one turn of the caller's event loop, and brings back all answers to this caller that are there,
whichever call asked for them, as soon as there is one. Of a caller at most one call waits: a newer one sends
the older home. So a long completion does not delay a short one, and turns that are answered together are also
asked for together the next time.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import TypeAlias

from unstable_stream.errors import EngineDiedError, UnstableStreamError
from unstable_stream.inference.engine import Completion, Engine, GenerationRequest

__all__ = ["Answer", "Exchange"]

Answer: TypeAlias = tuple[int, Completion | UnstableStreamError]
"""The caller's number for a request, and what came of it."""
_Task: TypeAlias = "asyncio.Task[Completion]"


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

        Returns as soon as something is answered, or with nothing when the caller's next call is there. Raises
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
    """What is answered to one caller and not yet brought to it."""

    def __init__(self) -> None:
        self._done: list[tuple[int, _Task]] = []
        self._waiting: asyncio.Future[None] | None = None
        """Of the newest call, if it waits."""

    def add(self, number: int, task: _Task) -> None:
        self._done.append((number, task))
        self._wake()

    async def take(self) -> list[tuple[int, _Task]]:
        """Return all as soon as there is one; nothing if another call comes to wait."""
        self._wake()
        if not self._done:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        done, self._done = self._done, []
        return done

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
