"""Choose the tokens that lower the entropy most: Clip-Cov and KL-Cov.

Cui et al., "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv:2505.22617.
A policy-gradient step changes the entropy by about minus the covariance of log-probability and advantage. A
few tokens carry most of it: likely ones that were rewarded, and unlikely ones that were punished. Both
methods take the centred product of each token (the paper's equation 10), and treat the extreme ones: Clip-Cov
leaves some of them out of the gradient (equation 11), KL-Cov adds a penalty to them (equation 13).

``N`` is the number of tokens of an optimizer step, over which the means are taken too: how it is divided into
micro-batches, and among learners, changes nothing. Of ``N`` tokens ``floor(ratio * N)`` are chosen, as the
paper has it, so none where that is below one; the authors' code takes at least one.
"""

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]
_Flags = NDArray[np.bool_]


def token_covariances(advantages: _Floats, logprobs: _Floats) -> _Floats:
    """Return each token's part of the covariance of advantage and log-probability, float64[N]."""
    products: _Floats = (advantages - advantages.mean()) * (logprobs - logprobs.mean())
    return products


def clip_cov_tokens(
    covariances: _Floats,
    eligible: _Flags,
    generator: np.random.Generator,
    *,
    ratio: float,
    low: float,
    high: float,
) -> _Flags:
    """Return the tokens that Clip-Cov leaves out of the gradient, bool[N].

    They are drawn from the eligible tokens whose part of the covariance lies between ``low`` and ``high``:
    ``floor(ratio * N)`` of them, fewer if there are fewer.
    """
    chosen = np.zeros(len(covariances), dtype=np.bool_)
    candidates = np.flatnonzero(eligible & (covariances > low) & (covariances < high))
    chosen[generator.permutation(candidates)[: _count(ratio, len(covariances))]] = True
    return chosen


def kl_cov_tokens(covariances: _Floats, *, ratio: float) -> _Flags:
    """Return the tokens that KL-Cov penalises, bool[N]: the ``floor(ratio * N)`` with the largest parts of
    the covariance; of equal ones the first.
    """
    chosen = np.zeros(len(covariances), dtype=np.bool_)
    chosen[np.argsort(-covariances, kind="stable")[: _count(ratio, len(covariances))]] = True
    return chosen


def _count(ratio: float, tokens: int) -> int:
    return int(ratio * tokens + 1e-9)  # .29 * 100 is 28.999...
