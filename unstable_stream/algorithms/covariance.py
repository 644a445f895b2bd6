"""Choose the tokens that lower the entropy most: Clip-Cov and KL-Cov.

Cui et al., "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv:2505.22617.
A policy-gradient step changes the entropy by about minus the covariance of log-probability and advantage. A
few tokens carry most of it: likely ones that were rewarded, and unlikely ones that were punished. Both
methods take the centred product of each token, and treat the extreme ones: Clip-Cov leaves some of them out
of the gradient, KL-Cov adds a penalty to them.

The means are those of the tokens passed, here a micro-batch, as in the authors' code. At least one token is
chosen whatever the ratio, also as there. ``N`` is the number of tokens.
"""

import torch
from torch import Tensor

__all__ = ["clip_cov_tokens", "kl_cov_tokens", "token_covariances"]


def token_covariances(advantages: Tensor, logprobs: Tensor) -> Tensor:
    """Return each token's part of the covariance of advantage and log-probability, float32[N]."""
    return (advantages - advantages.mean()) * (logprobs - logprobs.mean())


def clip_cov_tokens(
    covariances: Tensor, eligible: Tensor, *, ratio: float, low: float, high: float
) -> Tensor:
    """Return the tokens that Clip-Cov leaves out of the gradient, bool[N].

    They are drawn by PyTorch's global generator from the eligible tokens whose part of the covariance lies
    between ``low`` and ``high``: ``ratio`` times ``N`` of them, at least one, fewer if there are fewer.
    """
    chosen = torch.zeros_like(eligible)
    candidates = (eligible & (covariances > low) & (covariances < high)).nonzero().flatten()
    count = max(1, int(ratio * len(covariances)))
    chosen[candidates[torch.randperm(len(candidates)).to(candidates.device)[:count]]] = True
    return chosen


def kl_cov_tokens(covariances: Tensor, *, ratio: float) -> Tensor:
    """Return the tokens that KL-Cov penalises, bool[N]: those with the largest parts of the covariance,
    ``ratio`` times ``N`` of them, at least one.
    """
    chosen = torch.zeros_like(covariances, dtype=torch.bool)
    count = min(len(covariances), max(1, int(ratio * len(covariances))))
    chosen[covariances.topk(count).indices] = True
    return chosen
