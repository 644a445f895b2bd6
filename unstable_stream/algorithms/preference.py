"""Preferences: of two answers at one position the chosen one becomes likelier than the rejected one.

With ``D = log pi(c)/ref(c) - log pi(r)/ref(r)`` of a chosen answer ``c`` and a rejected one ``r``, the loss
of a pair is

- DPO: ``-log sigmoid(beta D)``, Rafailov et al., "Direct Preference Optimization", arXiv:2305.18290, equation
  7, with the gradient ``-beta sigmoid(-beta D)`` at ``log pi(c)`` and the opposite at ``log pi(r)``;
- IPO: ``(D - 1 / (2 beta))**2``, Azar et al., "A General Theoretical Paradigm to Understand Learning from
  Human Preferences", arXiv:2310.12036, equation 17, with ``2 (D - 1 / (2 beta))`` and the opposite. It ends
  at a margin, where DPO goes on for ever if one answer is always chosen.

So each answer's log-probability has a factor that depends on the pair alone, and is trained as REINFORCE
trains one with that advantage. The factors are computed over all samples of an optimizer step, so the answers
of a pair need not share a micro-batch. An answer whose partner is not in the step has none.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from unstable_stream.algorithms.base import TokenBatch
from unstable_stream.algorithms.reinforce import Reinforce
from unstable_stream.algorithms.settings import PolicyGradientConfig, PreferenceConfig
from unstable_stream.algorithms.update_decisions import TrainingSample


def pair_loss(margin: float, beta: float, *, ipo: bool) -> tuple[float, float]:
    """Return the loss of a pair with ``D = margin``, and its negative derivative."""
    if ipo:
        distance = margin - 1 / (2 * beta)
        return distance**2, -2 * distance
    scaled = -beta * margin
    loss = max(scaled, 0.0) + math.log1p(math.exp(-abs(scaled)))  # of exp alone, a large one is no number
    return loss, beta * (1.0 - math.exp(-loss))


class Preference(Reinforce):
    """DPO and IPO; the arguments are those of :class:`Reinforce`, with ``beta`` and ``loss``."""

    settings_type: ClassVar[type[PolicyGradientConfig]] = PreferenceConfig

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._factors: dict[str, float] = {}
        """By step id, of the present optimizer step."""
        self._pairs: list[tuple[float, float]] = []
        """Loss and margin of each pair of the update."""

    @property
    def measures(self) -> bool:
        """It compares the answers of a pair."""
        return True

    def measure(self, samples: Sequence[TrainingSample]) -> list[NDArray[np.float32]]:
        """Return the logarithm of each answer's ratio to the reference, float32[1]."""
        own = self.answer_logprobs(samples)
        with torch.no_grad(), self.reference.in_place() if self.reference else self.without_adapter():
            ratios = own - self.answer_logprobs(samples)
        return [np.array([ratio], dtype=np.float32) for ratio in ratios.tolist()]

    def begin_step(
        self,
        samples: Sequence[TrainingSample],
        measured: Sequence[NDArray[np.float32]],
        generator: np.random.Generator,
    ) -> None:
        """Compute the factor of each answer from its pair."""
        settings = self.settings
        assert isinstance(settings, PreferenceConfig)
        self._factors = {}
        pairs: dict[str, dict[bool, tuple[TrainingSample, float]]] = {}
        for sample, ratio in zip(samples, measured, strict=True):
            if sample.pair is not None:
                pairs.setdefault(sample.pair, {})[sample.advantage > 0] = (sample, float(ratio[0]))
        for pair in pairs.values():
            if len(pair) == 2:
                (chosen, own), (rejected, other) = pair[True], pair[False]
                loss, factor = pair_loss(own - other, settings.beta, ipo=settings.loss == "ipo")
                self._factors |= {chosen.step_id: factor, rejected.step_id: -factor}
                self._pairs.append((loss, own - other))

    def prepare_batch(
        self, samples: Sequence[TrainingSample], advantages: Sequence[float] | None = None
    ) -> TokenBatch:
        """Turn samples into tensors, with the factors as their advantages."""
        factors = [self._factors.get(sample.step_id, 0.0) for sample in samples]
        return super().prepare_batch(samples, factors if advantages is None else advantages)

    def summarize(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Return what :class:`Reinforce` does, and of the pairs the means of loss and margin, and the share
        in which the chosen answer has become the likelier one.
        """
        metrics = super().summarize(totals)
        pairs, self._pairs = self._pairs, []
        if pairs:
            losses, margins = zip(*pairs, strict=True)
            metrics |= {
                "pair_loss": sum(losses) / len(pairs),
                "pair_margin": sum(margins) / len(pairs),
                "pair_accuracy": sum(margin > 0 for margin in margins) / len(pairs),
            }
        return metrics
