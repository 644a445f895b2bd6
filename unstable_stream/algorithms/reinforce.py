"""REINFORCE on recorded tokens, with a constant length normaliser and truncated importance sampling.

For ``n`` samples in an optimizer step, with completion ``y`` of sample ``i``, advantage ``A`` and limit
``L``::

    loss = -1/n sum_i 1/L sum_t [ w_it * A_i * log pi(y_it) + c * H_it ]
    w_it = min(pi(y_it) / mu(y_it), is_clip), without gradient

- The loss is divided by the constant ``L = max_generation_len`` and not by each completion's length.
  Otherwise long wrong answers would be punished less per token: Liu et al., "Understanding R1-Zero-Like
  Training" (Dr. GRPO), arXiv:2503.20783.
- ``mu`` is the probability that the engine recorded when it sampled. Engine and learner compute it
  differently, and the policy has changed since; the truncated ratio corrects for both. Truncation as in
  V-trace's rho-bar: Espeholt et al., "IMPALA", arXiv:1802.01561; per token against the engine's own numbers:
  Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025.
- The entropy bonus ``c`` falls linearly to zero over ``entropy_decay_updates``.
"""

import math
from collections.abc import Mapping
from typing import Final, Literal

import torch
from torch import Tensor

from unstable_stream.algorithms.base import BaseAlgo, TokenBatch
from unstable_stream.errors import LearnerError
from unstable_stream.update_decisions import Admission, TrainingSample, admission

__all__ = ["Reinforce"]

_MAX_LOG_RATIO: Final = 20.0
"""Keeps the reported ratio finite (e^20 = 5e8). It is far above any useful ``is_clip``."""


class Reinforce(BaseAlgo):
    """Policy gradient on the sampled tokens.

    Args:
        is_clip: upper bound of the importance ratio per token; ``None``: no correction (ratio 1).
        entropy_coef: weight of the entropy bonus at update 1.
        entropy_decay_updates: the bonus reaches zero after this many updates; ``None``: it stays.
        truncated_turns: the treatment of turns cut at the token limit. ``train``: like any other turn.
            ``mask``: they count in the batch mean but contribute nothing. ``drop``: they are left out and
            recorded as ``truncated``.

    Advantages of zero give a gradient of exactly zero. A row with advantage zero still contributes its
    entropy.
    """

    def __init__(
        self,
        *,
        is_clip: float | None = 2.0,
        entropy_coef: float = 0.0,
        entropy_decay_updates: int | None = None,
        truncated_turns: Literal["train", "mask", "drop"] = "train",
    ) -> None:
        if is_clip is not None and not is_clip > 0:
            raise LearnerError(f"is_clip is {is_clip}; expected a positive number, or None for no correction")
        if not entropy_coef >= 0:
            raise LearnerError(f"entropy_coef is {entropy_coef}; expected 0 or more")
        if entropy_decay_updates is not None and entropy_decay_updates < 1:
            raise LearnerError(
                f"entropy_decay_updates is {entropy_decay_updates}; expected at least 1, or None"
            )
        if truncated_turns not in ("train", "mask", "drop"):
            raise LearnerError(f"truncated_turns is {truncated_turns!r}; expected 'train', 'mask' or 'drop'")
        self.is_clip = is_clip
        self.entropy_coef = entropy_coef
        self.entropy_decay_updates = entropy_decay_updates
        self.truncated_turns = truncated_turns

    def admit(self, sample: TrainingSample) -> Admission:
        """Decide about one sample: by ``truncated_turns`` at the token limit, else by the base rule."""
        return admission(sample, max_train_len=self.max_train_len, truncated_turns=self.truncated_turns)

    def entropy_weight(self, update: int) -> float:
        """Return the weight of the entropy bonus in ``update`` (counted from 1)."""
        if self.entropy_decay_updates is None:
            return self.entropy_coef
        return self.entropy_coef * max(0.0, 1.0 - (update - 1) / self.entropy_decay_updates)

    def update(self, batch: TokenBatch, *, scale: float, update: int) -> Mapping[str, Tensor]:
        """Accumulate the gradient of the loss above; see :meth:`BaseAlgo.update`."""
        entropy_weight = self.entropy_weight(update)
        logprobs, entropy = self.score(batch, entropy_grad=entropy_weight > 0)
        with torch.no_grad():
            log_ratio = (logprobs - batch.behaviour_logprobs).clamp(max=_MAX_LOG_RATIO)
            ratio = log_ratio.exp()
            weight = ratio.clamp(max=self.is_clip) if self.is_clip is not None else torch.ones_like(ratio)
            clipped = ratio > (self.is_clip if self.is_clip is not None else math.inf)
        objective = (weight * batch.advantages * logprobs).sum()
        if entropy_weight > 0:
            objective = objective + entropy_weight * entropy.sum()
        loss = objective * (-scale / self.max_generation_len)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        with torch.no_grad():
            return {
                "loss": loss.detach(),
                "tokens": ratio.new_tensor(len(ratio)),
                "rows": ratio.new_tensor(len(batch.row_advantages)),
                "entropy": entropy.detach().sum(),
                "ratio": ratio.sum(),
                "max_ratio": ratio.max(),
                "clipped": clipped.float().sum(),
                # Schulman's k3 estimator of KL(behaviour || policy): never negative, zero when equal.
                "kl": (ratio - 1.0 - log_ratio).sum(),
                "advantage": batch.row_advantages.sum(),
                "advantage_square": batch.row_advantages.square().sum(),
            }

    def summarize(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Return means per token, or per sample for advantages and lengths; without tokens only their number,
        0.
        """
        tokens = totals.get("tokens", 0.0)
        if tokens == 0:
            return {"completion_tokens": 0.0}
        rows = totals["rows"]
        mean = totals["advantage"] / rows
        return {
            "completion_tokens": tokens,
            "completion_length": tokens / rows,
            "entropy": totals["entropy"] / tokens,
            "is_ratio_mean": totals["ratio"] / tokens,
            "is_ratio_max": totals["max_ratio"],
            "is_clipped_fraction": totals["clipped"] / tokens,
            "approx_kl": totals["kl"] / tokens,
            "advantage_mean": mean,
            "advantage_std": math.sqrt(max(0.0, totals["advantage_square"] / rows - mean * mean)),
        }
