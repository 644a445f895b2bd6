"""Define the engine port: token ids go in, token ids and log-probabilities come out.

And what the engines of this machine share: which requests they refuse, random numbers, and throughput.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from unstable_stream.errors import EngineError
from unstable_stream.events import AdapterProbe
from unstable_stream.events.seeds import SPLIT_MIX_GAMMA, split_mix_array

_RATE_WINDOW_S: Final = 5.0

Tokens: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt, and of its completion."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """The weights of a checkpoint. Name, id and path are unique to it: one is never reloaded in place."""

    uid: str
    """The model uid, e.g. ``ckpt-000012``."""
    path: str
    """Directory of a LoRA adapter in PEFT's format (``adapter_config.json``, ``adapter_model.safetensors``);
    if all parameters are trained, of a whole model in Hugging Face's (``config.json``,
    ``model.safetensors``)."""
    sha256: str | None = None
    """Recorded digest of the weight file; ``None``: none was recorded."""
    probe: AdapterProbe | None = None
    """Sequences to score as the learner did, before the adapter plays; ``None``: none was recorded."""


@dataclass(frozen=True, slots=True)
class AdapterResult:
    """The result of loading an adapter; :class:`~unstable_stream.events.AdapterProof` says more of each."""

    model_uid: str
    result: str
    sha256: str | None
    at_ms: int
    """Moment of the load, milliseconds since the epoch."""
    difference: float | None = None
    largest_difference: float | None = None
    tolerance: float | None = None
    base_difference: float | None = None
    duration_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Settings of the sampling. Greedy decoding is ``temperature=0``."""

    max_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the completion, beside the model's own (``end_token_ids`` of
    :mod:`unstable_stream.inference.tokenizer`); the completion keeps the token."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt for one adapter."""

    prompt_token_ids: Sequence[int]
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    adapter: Adapter | None = None
    """``None``: the base model."""
    seed: int | None = None
    """A wish: the samples should depend on this seed and not on the rest of the batch. vLLM cannot do that.
    Nothing may rely on it: the samples themselves are recorded."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The sampled text and tokens. ``token_ids`` and ``logprobs`` have the same length."""

    token_ids: list[int]
    """The end or stop token is included if it was sampled."""
    logprobs: list[float]
    """Natural log-probabilities under exactly the distribution sampled from (temperature, top-p applied)."""
    finish_reason: str
    """``stop`` or ``length``."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for metrics and the live view."""

    queued: int
    running: int
    tokens_per_s: float
    """Completion tokens over the last few seconds."""
    completions: int
    """Since start."""
    completion_tokens: int
    """Since start."""
    idle_s: float | None = None
    """Seconds since start in which it had nothing to do; ``None``: it does not know."""
    store_wait_s: float = 0.0
    """Seconds for which it has waited for a store with adapters; 0: it does not wait."""


class Engine(Protocol):
    """Generates for many concurrent callers, several adapters at once; gathers them into batches."""

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return one completion. Cancelling the caller cancels the request.

        Raises :class:`~unstable_stream.errors.EngineError`: prompt longer than the context, adapter
        missing or of the wrong shape.
        """

    def stats(self) -> EngineStats: ...

    async def close(self) -> None: ...


@runtime_checkable
class ProvesAdapters(Protocol):
    """An engine that checks adapters when it loads them. One that does not plays them unproven."""

    def take_adapter_results(self) -> list[AdapterResult]:
        """Return what came of loading adapters since the last call, in order."""


@runtime_checkable
class ScoresCompletions(Protocol):
    """An engine that tells how probable given completions are."""

    async def score(self, sequences: Sequence[Tokens], adapter: Adapter | None = None) -> list[list[float]]:
        """Return the natural log-probability of each token of each completion, at temperature 1.

        Raises what :meth:`Engine.generate` raises.
        """


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A chat endpoint's answer."""

    text: str
    """Never blank, nor a thought alone: that is no answer."""
    finish_reason: str
    """``stop``, ``length``, or what the endpoint calls it."""
    no_answers: int = 0
    """Requests before it that the endpoint gave no answer to."""


class ChatEngine(Protocol):
    """A fixed opponent behind a chat endpoint: text in, text out, no tokens recorded."""

    async def reply(self, prompt: str, sampling: SamplingSettings) -> ChatReply:
        """Answer one user message.

        Raises :class:`~unstable_stream.errors.EngineOverloadedError` when retries ran out, also on no answer,
        :class:`~unstable_stream.errors.EngineError` for a refused key, unknown model or bad request.
        """

    async def close(self) -> None: ...


# -- shared by the engines of this machine -------------------------------------------------------------


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


class IdleTime:
    """Counts the seconds in which an engine has nothing to do. One thread counts; any thread may ask."""

    def __init__(self) -> None:
        self._before_s = 0.0
        self._since: float | None = None
        """Moment at which it ran out of work; ``None``: it has some."""

    def begin(self) -> None:
        """There is nothing to do from now on."""
        self._since = time.monotonic()

    def end(self) -> None:
        """There is something to do again."""
        self._before_s, self._since = self.seconds(), None

    def seconds(self) -> float:
        """Return all of them so far."""
        since = self._since
        return self._before_s + (0.0 if since is None else time.monotonic() - since)
