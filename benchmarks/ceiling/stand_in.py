"""What stands in for GPUs: an engine that answers after a while, and an algorithm that computes nothing."""

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from unstable_stream.algorithms import BaseAlgo, TokenBatch
from unstable_stream.inference.engine import Completion, EngineStats, GenerationRequest

ENGINE: Final = "benchmarks/ceiling/stand_in.py:StandIn"
NO_UPDATE: Final = "benchmarks/ceiling/stand_in.py:NoUpdate"
_LOGPROB: Final = -1.25


class StandIn:
    """Answers with lengths and after latencies that were recorded, or with none of the model's work."""

    def __init__(self, model_path: str, answers: str, moves: Sequence[int] = (), faster: float = 1.0) -> None:
        """Read the answers to give.

        Args:
            model_path: names the model, as for every engine.
            answers: a file of JSON: pairs of a number of tokens and seconds, used in turn.
            moves: answer with one of these tokens, moves that are always legal; none: with any text.
            faster: latencies are divided by it.
        """
        self._answers: list[tuple[int, float]] = [
            (tokens, seconds / faster) for tokens, seconds in json.loads(Path(answers).read_text())
        ]
        self._moves = list(moves)
        self._draw = random.Random(0)
        self._asked = self._tokens = self._running = 0

    async def generate(self, request: GenerationRequest) -> Completion:
        """Wait as long as the model did; return as many tokens."""
        length, seconds = self._answers[self._asked % len(self._answers)]
        self._asked += 1
        self._running += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._running -= 1
        # Letters and pieces of words: the text is as long as a model's, and says nothing.
        tokens = self._draw.choices(
            self._moves or range(1000, 7000), k=min(length, request.sampling.max_tokens)
        )
        self._tokens += len(tokens)
        return Completion(tokens, [_LOGPROB] * len(tokens), "stop")

    def stats(self) -> EngineStats:
        """Return what it has answered."""
        return EngineStats(
            queued=0,
            running=self._running,
            tokens_per_s=0.0,
            completions=self._asked,
            completion_tokens=self._tokens,
        )

    async def close(self) -> None:
        """Nothing is held."""


class NoUpdate(BaseAlgo):
    """Takes batches as they come, and leaves the weights alone."""

    def update(self, batch: TokenBatch, *, scale: float, update: int) -> Mapping[str, Tensor]:
        """Compute nothing."""
        return {"loss": torch.zeros(())}
