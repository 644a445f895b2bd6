"""REINFORCE on recorded tokens, with a constant length normaliser and truncated importance sampling.

For ``n`` samples in an optimizer step, with completion ``y`` of sample ``i``, advantage ``A`` and limit
``L``::

    loss = -1/n sum_i 1/L sum_t [ w_it * A_i * log pi(y_it) + c * H_it ]
    w_it = min(pi(y_it) / mu(y_it), is_clip), without gradient

- The loss is divided by the constant ``L = max_generation_len`` and not by each completion's length.
  Otherwise long wrong answers would be punished less per token: Liu et al., "Understanding R1-Zero-Like
  Training" (Dr. GRPO), arXiv:2503.20783.
- ``mu`` is the probability that the engine recorded when it sampled. Engine and learner compute it
  differently, and the policy has changed since; the truncated ratio corrects for both: Yao et al., "Your
  Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025. Other ratios, bounds and a trust
  region are in :mod:`unstable_stream.algorithms.importance`.
- The entropy bonus ``c`` falls linearly to zero over ``entropy_decay_updates``. ``H_it`` is the entropy of
  the distribution that the token was drawn from, as in Mnih et al., arXiv:1602.01783. Its gradient makes each
  of these distributions wider. It is not the gradient of the entropy of whole answers: it does not count that
  a token leads to more or less certain places, and it has no importance weight.

Four options keep a policy from collapsing. All are off by default, and they can be combined:

- ``kl_coef`` adds the divergence of the whole answer from a reference to the loss, divided by ``L`` as all
  else. Before each token it is computed exactly, over the vocabulary: ``d_it = KL(pi || reference)``. The
  gradient of ``E sum_t d_it`` is ``E sum_t [grad d_it + (d_i(t+1) + ... + d_iT) grad log pi(y_it)]``: a token
  pays for the divergence that follows it too. So the term is ``d_it + w_it * (sum of the later d) * log
  pi(y_it)``, the sum without gradient. GRPO (arXiv:2402.03300, equation 4) differentiates an estimate of each
  token's divergence, whose expected gradient is not that of KL(pi || reference): Tang and Munos, "On a Few
  Pitfalls in KL Divergence Gradient Estimation for RL", arXiv:2506.09477. The expectation is exact for turns
  that the present policy played; for older ones each token has the weight ``w`` of its own ratio only, as its
  advantage has. ``d_it`` needs none: it does not depend on the token that was sampled there. What an answer
  does to the prompts of later turns is not counted. The base model is that without ``initial_lora_path``; of
  the others says :mod:`unstable_stream.algorithms.reference`.
- ``clip_low`` and ``clip_high`` take the gradient from tokens that have moved too far
  (:mod:`unstable_stream.algorithms.importance`).
- ``clip_cov_ratio`` and ``kl_cov_ratio`` choose the tokens that lower the entropy most, Clip-Cov and KL-Cov:
  Cui et al., "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models",
  arXiv:2505.22617.
  A policy-gradient step changes the entropy by about minus the covariance of log-probability and advantage. A
  few tokens carry most of it: likely ones that were rewarded, and unlikely ones that were punished. Both
  methods take the centred product of each token (the paper's equation 10), and treat the extreme ones:
  Clip-Cov leaves some of them out of the gradient (equation 11), KL-Cov adds a penalty to them (equation 13).
  ``N`` is the number of tokens of an optimizer step, over which the means are taken too: how it is divided
  into micro-batches, and among learners, changes nothing. Of ``N`` tokens ``floor(ratio * N)`` are chosen, as
  the paper has it, so none where that is below one; the authors' code takes at least one.
- ``target_entropy`` adapts the entropy bonus as Skywork-OR1 does (He et al., arXiv:2505.22312): the
  coefficient rises by ``entropy_coef_step`` after an update whose entropy was below the target, falls by it
  after one above, and acts only below the target.

An entropy bonus pulls towards the uniform distribution over the *whole vocabulary*. In a game whose answer is
one token of a few legal ones among 49,152, most of what it adds are answers that mean nothing. Keep it small,
and prefer ``kl_coef``, which pulls towards a policy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from unstable_stream.algorithms.base import BaseAlgo, TokenBatch
from unstable_stream.algorithms.importance import importance
from unstable_stream.algorithms.reference import ReferencePolicy
from unstable_stream.algorithms.settings import PolicyGradientConfig, ReinforceConfig
from unstable_stream.algorithms.update_decisions import Admission, TrainingSample, admission
from unstable_stream.errors import LearnerError

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


_OPTIONAL: Final = {
    "clipped": "clip_fraction",
    "masked": "mask_fraction",
    "left_out": "clip_cov_fraction",
    "penalised": "kl_cov_fraction",
    "reference_kl": "reference_kl",
}
"""Sum over tokens and the metric of its mean, each there only if the option is on."""


class Reinforce(BaseAlgo):
    """Policy gradient on the sampled tokens.

    Args:
        entropy_decay_updates: the entropy bonus reaches zero after this many updates; ``None``: it stays.
        settings: keys of ``[algorithm]`` with ``type = "reinforce"`` in docs/reference/configuration.md.

    Raises:
        LearnerError: there is no such setting, or it does not take this value.

    Advantages of zero give a gradient of exactly zero. A row with advantage zero still contributes its
    entropy.
    """

    settings_type: ClassVar[type[PolicyGradientConfig]] = ReinforceConfig
    settings: PolicyGradientConfig

    def __init__(self, *, entropy_decay_updates: int | None = None, **settings: Any) -> None:
        try:
            self.settings = self.settings_type(**settings)
        except ValidationError as error:
            raise LearnerError("; ".join(map(_explained, error.errors()))) from error
        if entropy_decay_updates is not None and entropy_decay_updates < 1:
            raise LearnerError(
                f"entropy_decay_updates is {entropy_decay_updates}; expected at least 1, or None"
            )
        self.entropy_decay_updates = entropy_decay_updates
        self.epochs = self.settings.epochs
        self._adapted_coef = self.settings.entropy_coef
        self._last_entropy: float | None = None
        self._at_update: dict[str, Tensor] = {}
        """By step id, float32[tokens]: the log-probabilities as the update began."""
        self._chosen: dict[str, NDArray[np.bool_]] = {}
        """By step id, bool[2, tokens]: which tokens of the optimizer step are left out, and penalised."""

    def initialize(self, model: nn.Module, *, device: torch.device, **limits: Any) -> None:
        """Bind the algorithm to a policy; a reference that is not the base model begins as it.

        Raises:
            LearnerError: the reference is the base model, and the policy has no adapter to switch off.
        """
        super().initialize(model, device=device, **limits)
        settings = self.settings
        if settings.reference != "base":
            average = settings.reference == "average"
            self.reference = ReferencePolicy(model, every=settings.reference_every, average=average)
        elif settings.kl_coef > 0 and not self.has_base:
            raise LearnerError(
                "the policy has no adapter to switch off, so there is no base model to compare it with: "
                'train a LoRA adapter, or set kl_coef = 0, or reference = "past" with reference_every = 0'
            )

    def admit(self, sample: TrainingSample) -> Admission:
        """Decide about one sample: by ``truncated_turns`` if it is truncated, else by the base rule."""
        return admission(
            sample, max_train_len=self.max_train_len, truncated_turns=self.settings.truncated_turns
        )

    def entropy_weight(self, update: int) -> float:
        """Return the weight of the entropy bonus in ``update`` (counted from 1).

        With a target it is a function of the updates before, and ``update`` must be the next one.
        """
        if self.settings.target_entropy is not None:
            above = self._last_entropy is not None and self._last_entropy > self.settings.target_entropy
            return 0.0 if above else self._adapted_coef
        if self.entropy_decay_updates is None:
            return self.settings.entropy_coef
        return self.settings.entropy_coef * max(0.0, 1.0 - (update - 1) / self.entropy_decay_updates)

    def begin_update(self, samples: Sequence[TrainingSample], micro_batches: Sequence[Sequence[int]]) -> None:
        """Score the update's tokens under the policy as it is, if the trust region lies around it."""
        self._at_update = {}
        if self.settings.trust_region == "update":
            for indices in micro_batches:
                batch = BaseAlgo.prepare_batch(self, [samples[index] for index in indices])
                with torch.no_grad():
                    parts = torch.split(self.score(batch)[0], batch.lengths().tolist())
                ids = [samples[index].step_id for index in indices]
                self._at_update |= zip(ids, parts, strict=True)

    @property
    def measures(self) -> bool:
        """Whether Clip-Cov or KL-Cov is on."""
        return self._covaries

    @property
    def _covaries(self) -> bool:
        return self.settings.clip_cov_ratio > 0 or self.settings.kl_cov_ratio > 0

    def measure(self, samples: Sequence[TrainingSample]) -> list[NDArray[np.float32]]:
        """Return log-probability and advantage of each sample's tokens, and whether they are beyond the
        trust region, float32[3, tokens].
        """
        batch = self.prepare_batch(samples)
        logprobs = self.score(batch)[0].float()
        clipped = importance(self.settings, logprobs, batch).clipped.float()
        table = torch.stack([logprobs, batch.advantages, clipped]).cpu().numpy()
        return np.split(table, batch.first_tokens[1:].tolist(), axis=1)

    def begin_step(
        self,
        samples: Sequence[TrainingSample],
        measured: Sequence[NDArray[np.float32]],
        generator: np.random.Generator,
    ) -> None:
        """Choose the tokens of Clip-Cov and KL-Cov among all of the optimizer step."""
        logprobs, advantages, clipped = np.concatenate(measured, axis=1).astype(np.float64)
        # Where equal tokens were in different micro-batches, their last digits must not decide between them.
        logprobs = logprobs.round(4)
        lengths = [values.shape[1] for values in measured]
        covariances = token_covariances(advantages, logprobs)
        left_out = np.zeros(len(covariances), dtype=np.bool_)
        penalised = np.zeros(len(covariances), dtype=np.bool_)
        if self.settings.clip_cov_ratio > 0:
            left_out = clip_cov_tokens(
                covariances,
                clipped == 0,
                generator,
                ratio=self.settings.clip_cov_ratio,
                low=self.settings.clip_cov_lb,
                high=self.settings.clip_cov_ub,
            )
        if self.settings.kl_cov_ratio > 0:
            penalised = kl_cov_tokens(covariances, ratio=self.settings.kl_cov_ratio)
        flags = np.split(np.stack([left_out, penalised]), np.cumsum(lengths)[:-1], axis=1)
        self._chosen = {sample.step_id: part for sample, part in zip(samples, flags, strict=True)}

    def prepare_batch(
        self, samples: Sequence[TrainingSample], advantages: Sequence[float] | None = None
    ) -> TokenBatch:
        """Turn samples into tensors, with what :meth:`begin_update` and :meth:`begin_step` found."""
        batch = super().prepare_batch(samples, advantages)
        if self._at_update:
            found = torch.cat([self._at_update[sample.step_id] for sample in samples])
            batch = replace(batch, update_logprobs=found)
        chosen = [self._chosen.get(sample.step_id) for sample in samples] if self._covaries else []
        flags = [part for part in chosen if part is not None]
        if not flags or len(flags) < len(samples):
            return batch
        left_out, penalised = torch.from_numpy(np.concatenate(flags, axis=1)).to(self.device)
        return replace(batch, left_out=left_out, penalised=penalised)

    def update(self, batch: TokenBatch, *, scale: float, update: int) -> Mapping[str, Tensor]:
        """Accumulate the gradient of the loss above; see :meth:`BaseAlgo.update`.

        Raises:
            LearnerError: with Clip-Cov or KL-Cov, :meth:`begin_step` did not see the batch.
        """
        if self._covaries and (batch.left_out is None or batch.penalised is None):
            raise LearnerError(
                "clip_cov_ratio and kl_cov_ratio choose among all tokens of an optimizer step: call "
                "measure and begin_step with its samples before prepare_batch"
            )
        entropy_weight = self.entropy_weight(update)
        reference = self.states_of(batch, self.reference) if self.settings.kl_coef > 0 else None
        states = self.states(batch)
        logprobs, entropy, *divergence = self.scorer.score(
            states,
            batch.targets,
            batch.temperatures,
            entropy_grad=entropy_weight > 0,
            reference=reference,
        )
        found = importance(self.settings, logprobs, batch)
        trained = ~found.clipped if batch.left_out is None else ~(found.clipped | batch.left_out)
        by_answer = self.settings.loss_average == "answer"
        share = 1.0 / batch.lengths()[batch.rows] if by_answer else torch.ones_like(logprobs)
        objective = (share * found.weight * trained * batch.advantages * logprobs).sum()
        if entropy_weight > 0:
            objective = objective + entropy_weight * (share * entropy).sum()
        for own in divergence:
            later = found.weight * batch.later_sums(own.detach())
            # The second term has the value 0, so that the loss stays that of the tokens themselves.
            penalty = own + later * (logprobs - logprobs.detach())
            objective = objective - self.settings.kl_coef * (share * penalty).sum()
        if batch.penalised is not None:
            moved = (logprobs - batch.behaviour_logprobs).abs()
            objective = objective - self.settings.kl_cov_coef * (share * batch.penalised * moved).sum()
        loss = objective * (-scale / self._divisor())
        other_loss, other_sums = self.other_loss(batch, states, scale=scale)
        (loss + other_loss).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        with torch.no_grad():
            ratio = found.log_ratio.exp()
            sums = {
                **other_sums,
                "loss": loss.detach(),
                "tokens": ratio.new_tensor(len(ratio)),
                "rows": ratio.new_tensor(len(batch.row_advantages)),
                "entropy": entropy.detach().sum(),
                "entropy_coef": ratio.new_tensor(entropy_weight * len(ratio)),
                "ratio": ratio.sum(),
                "max_ratio": ratio.max(),
                "truncated": found.truncated.float().sum(),
                # Schulman's k3 estimator of KL(behaviour || policy): never negative, zero when equal.
                "kl": (ratio - 1.0 - found.log_ratio).sum(),
                "advantage": batch.row_advantages.sum(),
                "advantage_square": batch.row_advantages.square().sum(),
            }
            if self.settings.clips:
                sums["clipped"] = found.clipped.float().sum()
            if self.settings.mask_below is not None or self.settings.mask_above is not None:
                sums["masked"] = found.masked.float().sum()
            if batch.left_out is not None and self.settings.clip_cov_ratio > 0:
                sums["left_out"] = batch.left_out.float().sum()
            if batch.penalised is not None and self.settings.kl_cov_ratio > 0:
                sums["penalised"] = batch.penalised.float().sum()
            for own in divergence:
                sums["reference_kl"] = own.sum()
            return sums

    def other_loss(
        self, batch: TokenBatch, states: Tensor, *, scale: float
    ) -> tuple[Tensor | float, Mapping[str, Tensor]]:
        """Return a loss to minimise beside that of the policy, and sums to report; by default there is none.

        Args:
            states: the policy's hidden states before the trained tokens, [N, hidden].
            scale: one over the number of samples in the optimizer step.
        """
        return 0.0, {}

    def _divisor(self) -> float:
        """Return what the sum over a sample's tokens is divided by, in the mean of the optimizer step."""
        divisors = {"constant": self.max_generation_len, "answer": 1.0, "token": self.mean_length}
        return divisors[self.settings.loss_average]

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
            "entropy_coef": totals["entropy_coef"] / tokens,
            "is_ratio_mean": totals["ratio"] / tokens,
            "is_ratio_max": totals["max_ratio"],
            "is_clipped_fraction": totals["truncated"] / tokens,
            "approx_kl": totals["kl"] / tokens,
            "advantage_mean": mean,
            "advantage_std": math.sqrt(max(0.0, totals["advantage_square"] / rows - mean * mean)),
            **{name: totals[key] / tokens for key, name in _OPTIONAL.items() if key in totals},
        }

    def finish_update(self, metrics: Mapping[str, float]) -> None:
        """Move the adaptive entropy bonus by the update's entropy."""
        if self.settings.target_entropy is None or "entropy" not in metrics:
            return
        self._last_entropy = metrics["entropy"]
        step = (
            self.settings.entropy_coef_step
            if self._last_entropy < self.settings.target_entropy
            else -self.settings.entropy_coef_step
        )
        self._adapted_coef = max(0.0, self._adapted_coef + step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the adaptive entropy bonus; empty without a target."""
        if self.settings.target_entropy is None:
            return {}
        return {"entropy_coef": self._adapted_coef, "entropy": self._last_entropy}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the adaptive entropy bonus; a checkpoint without its state begins at ``entropy_coef``."""
        self._adapted_coef = state.get("entropy_coef", self.settings.entropy_coef)
        self._last_entropy = state.get("entropy")


def _explained(problem: Any) -> str:  # one of pydantic's error details
    message = problem["msg"].removeprefix("Value error, ")
    return f"{problem['loc'][0]} is {problem['input']!r}: {message}" if problem["loc"] else message
