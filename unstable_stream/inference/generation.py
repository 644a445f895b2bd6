"""Shared by the engines of this machine: which requests they refuse, random numbers, and throughput."""

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from unstable_stream.errors import EngineError
from unstable_stream.events.seeds import SPLIT_MIX_GAMMA, split_mix_array
from unstable_stream.inference.engine import Adapter, EngineStats, GenerationRequest

_RATE_WINDOW_S: Final = 5.0


def uniforms(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) per row, a function of that row's seed and position alone.

    Counter based, so that a row's samples depend neither on its neighbours in the batch nor on the order of
    steps: output ``position`` of a SplitMix64 generator whose state is the mixed seed, so that neighbouring
    seeds give unrelated streams. Both arrays have shape (rows,), and so has the result.
    """
    outputs = split_mix_array(split_mix_array(seeds) + positions * np.uint64(SPLIT_MIX_GAMMA))
    # The upper 53 bits: every float64 multiple of 2^-53 in [0, 1) is equally likely.
    return (outputs >> np.uint64(11)).astype(np.float64) * 2.0**-53


def check_request(request: GenerationRequest, max_model_len: int, vocabulary: int) -> None:
    """Raise :class:`~unstable_stream.errors.EngineError` for a request that no model could answer."""
    sampling, prompt = request.sampling, request.prompt_token_ids
    if sampling.max_tokens < 1:
        raise EngineError(f"max_tokens is {sampling.max_tokens}; a completion needs at least 1 token")
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise EngineError(f"temperature is {sampling.temperature}; expected 0 (greedy) or a positive number")
    if not 0 < sampling.top_p <= 1:
        raise EngineError(f"top_p is {sampling.top_p}; expected a number above 0 and at most 1")
    if len(prompt) >= max_model_len:
        raise EngineError(
            f"the prompt has {len(prompt)} tokens and the context {max_model_len} (max_model_len); "
            "shorten the prompt so that at least 1 token is left for the completion"
        )
    if not prompt:
        raise EngineError("the prompt is empty; expected at least 1 token")
    check_tokens(prompt, vocabulary)


def check_tokens(token_ids: Sequence[int], vocabulary: int) -> None:
    """Raise :class:`~unstable_stream.errors.EngineError` for tokens that the model does not have."""
    if not 0 <= min(token_ids) <= max(token_ids) < vocabulary:
        raise EngineError(
            f"the prompt has token ids from {min(token_ids)} to {max(token_ids)}, the model's vocabulary "
            f"is 0 to {vocabulary - 1}; use the tokenizer saved with the model"
        )


def diverged(adapter: Adapter | None) -> EngineError:
    """Return the error of weights whose log-probabilities are not finite."""
    culprit = "the base model" if adapter is None else f"adapter {adapter.uid!r} at {adapter.path}"
    return EngineError(
        f"{culprit} gives logits that are not finite: its weights have diverged; use an earlier checkpoint"
    )


class Throughput:
    """Counts what an engine has generated. One thread counts; any thread may ask."""

    def __init__(self) -> None:
        self._completions = 0
        self._tokens = 0
        self._recent: deque[tuple[float, int]] = deque()

    def count(self, tokens: int, completions: int) -> None:
        """Count tokens and completions that were just made."""
        now = time.monotonic()
        self._completions += completions
        self._tokens += tokens
        self._recent.append((now, tokens))
        while self._recent[0][0] < now - _RATE_WINDOW_S:
            self._recent.popleft()

    def stats(self, queued: int, running: int) -> EngineStats:
        """Return a snapshot."""
        since = time.monotonic() - _RATE_WINDOW_S
        recent = sum(tokens for moment, tokens in tuple(self._recent) if moment >= since)
        return EngineStats(queued, running, recent / _RATE_WINDOW_S, self._completions, self._tokens)
