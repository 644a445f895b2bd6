"""An engine that does as it is told."""

import asyncio

from unstable_stream.inference.engine import Completion, EngineStats, GenerationRequest


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
