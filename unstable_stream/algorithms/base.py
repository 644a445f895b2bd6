"""What every algorithm shares: the micro-batch of tokens and the interface.

Shape letters: ``B`` rows of a micro-batch, ``T`` its longest input, ``N`` trained tokens of all rows
together.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unstable_stream.algorithms.scoring import CompletionScorer
from unstable_stream.extensions import RemembersArguments
from unstable_stream.update_decisions import Admission, TrainingSample, admission

__all__ = ["Admission", "BaseAlgo", "TokenBatch", "TrainingSample"]


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A micro-batch: padded inputs, and the trained tokens of all rows end to end.

    Prompt and padding never reach a loss: only trained tokens have entries in the ``[N]`` tensors. Rows
    are padded on the right, after all that a causal model looks at, so no attention mask is needed.
    """

    input_ids: Tensor
    """int64[B, T]: prompt and completion without its last token, then padding."""
    positions: Tensor
    """int64[N]: where in the flattened ``[B * T]`` the state lies that predicts the token."""
    targets: Tensor
    """int64[N]: the token that was sampled there."""
    behaviour_logprobs: Tensor
    """float32[N]"""
    temperatures: Tensor
    """float32[N]"""
    advantages: Tensor
    """float32[N]: each row's advantage, once per trained token."""
    rows: Tensor
    """int64[N]: which row a token belongs to."""
    row_advantages: Tensor
    """float32[B]"""


class BaseAlgo(RemembersArguments, ABC):
    """One algorithm's share of the learner: from a micro-batch to accumulated gradients.

    The learner sorts the batch into micro-batches, sets ``scale`` so that their gradients add up to the
    mean over the optimizer step's samples, clips and steps. It calls, in this order: :meth:`initialize`
    once; for every update :meth:`admit` for each sample, then :meth:`prepare_batch` and :meth:`update`
    for each micro-batch, and :meth:`summarize` once.
    """

    model: nn.Module
    device: torch.device
    max_generation_len: int
    max_train_len: int | None

    def initialize(
        self,
        model: nn.Module,
        *,
        device: torch.device,
        max_generation_len: int,
        max_train_len: int | None,
        recompute_logits: bool = False,
    ) -> None:
        """Bind the algorithm to a policy (a Hugging Face causal language model).

        Args:
            model: its trainable parameters are the adapter's.
            max_generation_len: the rollout's token limit: the constant that token sums are divided by.
            max_train_len: prompt and completion tokens looked at; ``None``: all.
            recompute_logits: score in chunks and recompute their logits in the backward pass.
        """
        self.model = model
        self.device = device
        self.max_generation_len = max_generation_len
        self.max_train_len = max_train_len
        self._scorer = CompletionScorer(model, always_recompute=recompute_logits)

    def admit(self, sample: TrainingSample) -> Admission:
        """Decide about one sample: a prompt that fills ``max_train_len`` leaves nothing to train on.

        A completion without tokens is masked: its token sum is zero.
        """
        return admission(sample, max_train_len=self.max_train_len)

    def prepare_batch(self, samples: Sequence[TrainingSample]) -> TokenBatch:
        """Lay admitted samples out as tensors on the policy's device; tokens are the recorded ones."""
        limit = self.max_train_len
        prompts = np.array([len(sample.prompt_token_ids) for sample in samples])
        lengths = prompts + np.array([len(sample.completion_token_ids) for sample in samples])
        if limit is not None:
            lengths = np.minimum(lengths, limit)
        trained = lengths - prompts
        width = int(lengths.max()) - 1  # the last token is only ever a target
        input_ids = np.zeros((len(samples), width), dtype=np.int64)
        for row, sample, prompt, length in zip(input_ids, samples, prompts, lengths, strict=True):
            row[:prompt] = sample.prompt_token_ids
            row[prompt : length - 1] = sample.completion_token_ids[: length - 1 - prompt]
        rows = np.repeat(np.arange(len(samples)), trained)
        first = np.concatenate([[0], np.cumsum(trained)[:-1]])
        within = np.arange(len(rows)) - first[rows]
        positions = rows * width + prompts[rows] - 1 + within
        pairs = list(zip(samples, trained, strict=True))
        targets = np.concatenate([sample.completion_token_ids[:count] for sample, count in pairs])
        behaviour = np.concatenate([sample.logprobs[:count] for sample, count in pairs])
        row_advantages = np.array([sample.advantage for sample in samples], dtype=np.float32)
        temperatures = np.array([sample.temperature for sample in samples], dtype=np.float32)
        return TokenBatch(
            input_ids=self._tensor(input_ids),
            positions=self._tensor(positions),
            targets=self._tensor(targets.astype(np.int64)),
            behaviour_logprobs=self._tensor(behaviour.astype(np.float32)),
            temperatures=self._tensor(temperatures[rows]),
            advantages=self._tensor(row_advantages[rows]),
            rows=self._tensor(rows),
            row_advantages=self._tensor(row_advantages),
        )

    def score(self, batch: TokenBatch, *, entropy_grad: bool = False) -> tuple[Tensor, Tensor]:
        """Return the policy's log-probability and entropy at each trained token, float32[N] both.

        Both are of the distribution at the recorded temperature. The entropy carries gradients only if
        asked to: it costs another pass over the vocabulary.
        """
        return self._scorer(
            batch.input_ids, batch.positions, batch.targets, batch.temperatures, entropy_grad=entropy_grad
        )

    @abstractmethod
    def update(self, batch: TokenBatch, *, scale: float, update: int) -> Mapping[str, Tensor]:
        """Add this micro-batch's gradient to the policy's parameters.

        Args:
            scale: one over the number of samples in the optimizer step.
            update: number of the learner update, from 1.

        Returns:
            Scalars on the device, ``loss`` among them: sums over the micro-batch, which the learner adds
            up over an update; names starting with ``max_`` are combined by maximum.
        """

    def summarize(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Turn an update's totals into metrics; without an override they are reported as they are."""
        return dict(totals)

    def _tensor(self, array: NDArray[np.int64] | NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)
