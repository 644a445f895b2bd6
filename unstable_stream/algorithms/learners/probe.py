"""Measure the probe of a checkpoint: a few sequences as the policy scores them, with and without adapter.

Engines reproduce it when they load the adapter (:mod:`unstable_stream.inference.adapter_proof`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unstable_stream.algorithms.scoring import CompletionScorer
from unstable_stream.events import AdapterProbe, ProbeSequence, pack_floats, pack_tokens

_SEQUENCES: Final = 4
_TOKENS: Final = 32
_SCORED_TOKENS: Final = 8
"""vLLM computes what is before a scored token once for each of them: at most 1,000 tokens in all."""
_FIRST_TOKEN: Final = 1

Tokens: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of a prompt and of its completion."""


class _Sample(Protocol):
    @property
    def prompt_token_ids(self) -> NDArray[np.int32]: ...
    @property
    def completion_token_ids(self) -> NDArray[np.int32]: ...


def choose_tokens(samples: Sequence[_Sample]) -> list[Tokens]:
    """Take a few of a batch's samples: the end of each prompt and the beginning of its completion.

    Where completions are short, the last tokens of the prompt are scored like the completion's. Four tokens
    alone would say little: in a run with one-token answers bfloat16 moved one of them by a nat.
    """
    whole = [sample for sample in samples if len(sample.completion_token_ids)]
    return [_end_of(sample) for sample in whole[:: max(1, len(whole) // _SEQUENCES)][:_SEQUENCES]]


def _end_of(sample: _Sample) -> Tokens:
    completion = sample.completion_token_ids[:_SCORED_TOKENS].tolist()
    tokens = (*sample.prompt_token_ids[len(completion) - _TOKENS :].tolist(), *completion)
    scored = min(_SCORED_TOKENS, len(tokens) - 1)
    return tokens[:-scored], tokens[-scored:]


class AdapterProber:
    """Scores sequences with a policy as it is, and with its adapter switched off."""

    def __init__(self, model: nn.Module) -> None:
        """``model`` is a Hugging Face model; without layers of PEFT in it, it is its own base model."""
        self._model: Any = model  # transformers publishes no types
        self._layers: list[Any] = [m for m in model.modules() if hasattr(m, "adapter_layer_names")]
        self._scorer = CompletionScorer(model)

    @torch.no_grad()
    def measure(self, sequences: Sequence[Tokens]) -> AdapterProbe:
        """Return the probe of the present weights; without sequences, of the policy's own most probable one.

        Dropout does not act, and no random number is taken. Call it in the autocast of training.
        """
        with self._evaluating():
            sequences = sequences or [self._greedy()]
            logprobs = self._score(sequences)
            with self._without_adapter():
                base_logprobs = self._score(sequences)
        device = self._model.device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        ends = np.cumsum([len(completion) for _, completion in sequences])
        return AdapterProbe(
            dtype=str(autocast or self._model.dtype).removeprefix("torch."),
            sequences=tuple(
                ProbeSequence(
                    prompt_token_ids=pack_tokens(prompt),
                    completion_token_ids=pack_tokens(completion),
                    logprobs=pack_floats(logprobs[end - len(completion) : end]),
                    base_logprobs=pack_floats(base_logprobs[end - len(completion) : end]),
                )
                for (prompt, completion), end in zip(sequences, ends, strict=True)
            ),
        )

    def _score(self, sequences: Sequence[Tokens]) -> list[float]:
        width = max(len(prompt) + len(completion) for prompt, completion in sequences) - 1
        rows = [[*prompt, *completion[:-1]] for prompt, completion in sequences]
        positions = [
            row * width + len(prompt) - 1 + place
            for row, (prompt, completion) in enumerate(sequences)
            for place in range(len(completion))
        ]
        targets = [token for _, completion in sequences for token in completion]
        scores, _ = self._scorer(
            self._tensor([row + [0] * (width - len(row)) for row in rows]),
            self._tensor(positions),
            self._tensor(targets),
            torch.ones(len(targets), device=self._model.device),
        )
        return scores.tolist()

    def _greedy(self) -> Tokens:
        """Return what the policy says after one token: probable tokens have little rounding noise."""
        tokens = [_FIRST_TOKEN]
        for _ in range(_SCORED_TOKENS):
            logits = self._model(input_ids=self._tensor([tokens]), use_cache=False).logits
            tokens.append(int(logits[0, -1].argmax()))
        return tuple(tokens[:1]), tuple(tokens[1:])

    def _tensor(self, values: object) -> Tensor:
        return torch.tensor(values, device=self._model.device)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        training = self._model.training
        self._model.eval()
        try:
            yield
        finally:
            self._model.train(training)

    @contextmanager
    def _without_adapter(self) -> Iterator[None]:
        try:
            for layer in self._layers:
                layer.enable_adapters(False)
            yield
        finally:
            for layer in self._layers:
                layer.enable_adapters(True)
