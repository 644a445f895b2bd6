"""The micro-batch of tokens and the interface that all algorithms share.

Shape letters: ``B`` is the rows of a micro-batch, ``T`` its longest input, ``N`` the trained tokens of all
rows.
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
    """A micro-batch: padded inputs, and the trained tokens of all rows in one sequence.

    Prompt and padding never enter a loss: only trained tokens have entries in the ``[N]`` tensors. Rows are
    padded on the right. A causal model does not look to the right, so no attention mask is needed.
    """

    input_ids: Tensor
    """int64[B, T]: prompt and completion without its last token, then padding."""
    positions: Tensor
    """int64[N]: the index, in the flattened ``[B * T]``, of the state that predicts the token."""
    targets: Tensor
    """int64[N]: the sampled token."""
    behaviour_logprobs: Tensor
    """float32[N]"""
    temperatures: Tensor
    """float32[N]"""
    advantages: Tensor
    """float32[N]: each row's advantage, once per trained token."""
    rows: Tensor
    """int64[N]: the row of the token."""
    row_advantages: Tensor
    """float32[B]"""


class BaseAlgo(RemembersArguments, ABC):
    """Base class of the algorithms: one turns micro-batches into accumulated gradients.

    The learner divides the batch into micro-batches, clips and steps. It sets ``scale`` so that the gradients
    add up to the mean over the optimizer step's samples. It calls, in this order: :meth:`initialize` once;
    for every update :meth:`admit` for each sample, then :meth:`prepare_batch` and :meth:`update` for each
    micro-batch, and :meth:`summarize` once.
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
            model: the policy; its trainable parameters are the adapter's.
            max_generation_len: the rollout's token limit; token sums are divided by this constant.
            max_train_len: the most tokens of prompt and completion together; ``None``: no limit.
            recompute_logits: score in chunks, and recompute the logits of each chunk in the backward pass.
        """
        self.model = model
        self.device = device
        self.max_generation_len = max_generation_len
        self.max_train_len = max_train_len
        self._scorer = CompletionScorer(model, always_recompute=recompute_logits)

    def admit(self, sample: TrainingSample) -> Admission:
        """Decide about one sample; drop it if its prompt fills ``max_train_len``: no token to train on is
        left.

        A completion without tokens is masked: its token sum is zero.
        """
        return admission(sample, max_train_len=self.max_train_len)

    def prepare_batch(self, samples: Sequence[TrainingSample]) -> TokenBatch:
        """Turn admitted samples into tensors on the policy's device, with the recorded tokens."""
        limit = self.max_train_len
        prompts = np.array([len(sample.prompt_token_ids) for sample in samples])
        lengths = prompts + np.array([len(sample.completion_token_ids) for sample in samples])
        if limit is not None:
            lengths = np.minimum(lengths, limit)
        trained = lengths - prompts
        width = int(lengths.max()) - 1  # the last token is only a target, never an input
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

        Both belong to the distribution at the recorded temperature. The entropy carries gradients only on
        request, because that costs another pass over the vocabulary.
        """
        return self._scorer(
            batch.input_ids, batch.positions, batch.targets, batch.temperatures, entropy_grad=entropy_grad
        )

    @abstractmethod
    def update(self, batch: TokenBatch, *, scale: float, update: int) -> Mapping[str, Tensor]:
        """Add this micro-batch's gradient to the policy's parameters.

        Args:
            scale: one over the number of samples in the optimizer step.
            update: number of the learner update, counted from 1.

        Returns:
            Scalars on the device, including ``loss``: sums over the micro-batch. The learner adds them up
            over an update, but takes the maximum of names that begin with ``max_``.
        """

    def summarize(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Turn an update's totals into metrics; by default they are reported unchanged."""
        return dict(totals)

    def _tensor(self, array: NDArray[np.int64] | NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)
