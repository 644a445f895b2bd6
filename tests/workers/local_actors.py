"""Actors without Ray: handles whose methods run in this event loop, and engines that do as they are told."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from unstable_stream.inference.engine import Completion, EngineStats, GenerationRequest

__all__ = ["Handle", "PretendEngine"]


class Handle:
    """``handle.method.remote(...)`` calls the target's method as a task."""

    def __init__(self, target: object) -> None:
        self._target = target

    def __getattr__(self, name: str) -> "_RemoteMethod":
        return _RemoteMethod(getattr(self._target, name))


class _RemoteMethod:
    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def remote(self, *arguments: Any) -> "asyncio.Future[Any]":
        async def call() -> Any:
            result = self._method(*arguments)
            return await result if inspect.isawaitable(result) else result

        return asyncio.ensure_future(call())


class PretendEngine:
    """Answers every prompt with token 5; waits for ``open`` first, and fails with ``error`` if it is set."""

    def __init__(self, *, is_open: bool = True, error: Exception | None = None) -> None:
        self.open = asyncio.Event()
        if is_open:
            self.open.set()
        self.error = error
        self.asked = 0

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return one token."""
        self.asked += 1
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return Completion([5], [-1.0], "stop")

    def stats(self) -> EngineStats:
        """Return nothing of interest."""
        return EngineStats(queued=0, running=0, tokens_per_s=0.0, completions=self.asked, completion_tokens=0)

    async def close(self) -> None:
        """Nothing to close."""
