"""The weight of a token that an older policy sampled: its importance ratio, and the bounds of it.

With ``pi`` the policy that is trained, ``mu`` the one that played (the probability that the engine recorded)
and ``old`` the policy as the update began, per token of answer ``y``::

    ratio_of = "token"          r_t = pi(y_t) / mu(y_t)
    ratio_of = "answer"         r   = prod_t pi(y_t) / mu(y_t)             for all tokens of the answer
    ratio_of = "answer_mean"    r   = the same to the power 1 / |y|

- A token's weight is ``min(r, is_clip)``, without gradient, and zero outside ``mask_below`` to
  ``mask_above``. Truncation as in V-trace's rho-bar (Espeholt et al., "IMPALA", arXiv:1802.01561). Bounds on
  both sides, for a learner that computes other probabilities than its engine: IcePop, in Ling Team, "Every
  Step Evolves", arXiv:2510.18855. The ratio of whole answers is unbiased where that of tokens is not, and
  has much more variance; ``is_clip`` trades the one for the other.
- ``clip_low`` and ``clip_high`` bound the trust region as PPO does (Schulman et al., arXiv:1707.06347,
  equation 7): a token beyond the bound that its advantage pushes it over has no gradient. With the mean ratio
  of an answer this is GSPO (Zheng et al., arXiv:2507.18071, equation 5).
- ``trust_region = "behaviour"`` has the region around the policy that played, so that staleness uses it up.
  ``"update"`` has it around ``old``: the clipped ratio is ``pi / old``, and ``old / mu``, bounded as above,
  is a constant factor (Hilton et al., "Batch size-invariance for policy optimization", arXiv:2110.00641;
  for language models Fu et al., "AReaL", arXiv:2505.24298). As in both, it only matters after an update's
  first optimizer step.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

from unstable_stream.algorithms.base import TokenBatch
from unstable_stream.algorithms.settings import ImportanceConfig
from unstable_stream.errors import LearnerError

_MAX_LOG_RATIO: Final = 20.0
"""Keeps a ratio finite (e^20 = 5e8). It is far above any useful ``is_clip``."""


class Importance(NamedTuple):
    """The weights of tokens, without gradient."""

    log_ratio: Tensor
    """float32[N]: log of ``pi / mu``, of the token or of its answer."""
    weight: Tensor
    """float32[N]: the factor of the token's advantage and log-probability."""
    truncated: Tensor
    """bool[N]: ``is_clip`` made the weight smaller."""
    masked: Tensor
    """bool[N]: the ratio is outside ``mask_below`` to ``mask_above``; the weight is zero."""
    clipped: Tensor
    """bool[N]: the advantage pushes the token out of the trust region; it gives no gradient."""


@torch.no_grad()
def importance(settings: ImportanceConfig, logprobs: Tensor, batch: TokenBatch) -> Importance:
    """Weigh the tokens of a micro-batch.

    Args:
        logprobs: float32[N], under the policy that is trained.
        batch: with ``update_logprobs``, if the trust region lies around the policy of the update's start.

    Raises:
        LearnerError: it is without.
    """
    if settings.trust_region == "update" and batch.update_logprobs is None:
        raise LearnerError("trust_region = 'update': call begin_update before prepare_batch")
    old = logprobs if batch.update_logprobs is None else batch.update_logprobs
    log_ratio = _of_answers(settings, logprobs - batch.behaviour_logprobs, batch)
    if batch.update_logprobs is None:
        correction = moved = log_ratio.exp()
    else:
        correction = _of_answers(settings, old - batch.behaviour_logprobs, batch).exp()
        moved = _of_answers(settings, logprobs - old, batch).exp()
    clipped = _beyond_clip(settings, moved, batch.advantages)
    low = 0.0 if settings.mask_below is None else settings.mask_below
    high = torch.inf if settings.mask_above is None else settings.mask_above
    masked = (correction < low) | (correction > high)
    bound = torch.inf if settings.is_clip is None else settings.is_clip
    # PPO's clipped objective is one of the ratio itself.
    weight = correction.clamp(max=bound)
    if not (settings.is_clip or settings.clips):
        weight = torch.ones_like(correction)
    truncated = correction > bound
    if batch.update_logprobs is not None:
        weight = (weight * moved).clamp(max=bound)
    return Importance(log_ratio, weight * ~masked, truncated, masked, clipped)


def _beyond_clip(settings: ImportanceConfig, ratio: Tensor, advantages: Tensor) -> Tensor:
    """Return which tokens their advantages push out of the trust region, bool[N].

    Args:
        ratio: float32[N], one in the middle of the region.
        advantages: float32[N].
    """
    above = ratio > (torch.inf if settings.clip_high is None else 1.0 + settings.clip_high)
    below = ratio < (-torch.inf if settings.clip_low is None else 1.0 - settings.clip_low)
    return torch.where(advantages > 0, above, below & (advantages < 0))


def _of_answers(settings: ImportanceConfig, log_ratio: Tensor, batch: TokenBatch) -> Tensor:
    """Return the logs of the ratios, float32[N], of what ``ratio_of`` names."""
    if settings.ratio_of != "token":
        log_ratio = batch.row_sums(log_ratio)[batch.rows]
        if settings.ratio_of == "answer_mean":
            log_ratio = log_ratio / batch.lengths()[batch.rows]
    return log_ratio.clamp(max=_MAX_LOG_RATIO)
