"""Define the engine port: token ids go in, token ids and log-probabilities come out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from unstable_stream.events import AdapterProbe

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
