"""A2C: an advantage actor-critic. A critic learns the value of a position; turns are judged against it.

The critic is a linear function of the policy's last hidden state before the first token of the answer: the
state that has read the whole prompt. Its gradient does not flow into the policy, so an untrained critic does
not disturb the policy's features. It minimises, over the ``n`` samples of an optimizer step::

    critic_loss = 1/(2n) sum_i (V(s_i) - R_i)^2

``R`` is the sample's reward after all transformations: the return of its turn. The advantage of a turn is the
generalised advantage estimate (Schulman et al., "High-Dimensional Continuous Control Using Generalized
Advantage Estimation", arXiv:1506.02438) over the turns of its trajectory that are in the batch; see
:func:`generalised_advantages`. The policy's loss is that of :class:`~unstable_stream.algorithms.Reinforce`
with these advantages. So the importance weights are truncated there, as in "IMPALA" (arXiv:1802.01561); the
synchronous actor-critic itself is that of Mnih et al., arXiv:1602.01783.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unstable_stream.algorithms.base import BaseAlgo, OwnNetwork, TokenBatch, TrainingSample
from unstable_stream.algorithms.reinforce import Reinforce
from unstable_stream.algorithms.settings import A2CConfig, CriticConfig


class A2C(Reinforce):
    """Policy gradient with a critic as the baseline.

    Its settings are the keys of ``[algorithm]`` with ``type = "a2c"`` in docs/reference/configuration.md.
    """

    settings_type: ClassVar[type[CriticConfig]] = A2CConfig
    settings: CriticConfig

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._advantages: dict[str, float] = {}

    def initialize(self, model: nn.Module, *, device: torch.device, **limits: Any) -> None:
        """Bind the algorithm to a policy; the critic begins at zero everywhere."""
        super().initialize(model, device=device, **limits)
        self.critic = nn.Linear(self.hidden_size, 1, device=device)
        nn.init.zeros_(self.critic.weight)
        nn.init.zeros_(self.critic.bias)

    def networks(self) -> Mapping[str, OwnNetwork]:
        """Return the critic."""
        return {"critic": OwnNetwork(self.critic, self.settings.critic_learning_rate)}

    def begin_update(self, samples: Sequence[TrainingSample], micro_batches: Sequence[Sequence[int]]) -> None:
        """Value all positions of the batch and estimate the advantages, before any weight changes."""
        super().begin_update(samples, micro_batches)
        values = [0.0] * len(samples)
        with torch.no_grad():
            for indices in micro_batches:
                batch = BaseAlgo.prepare_batch(self, [samples[index] for index in indices])
                found = self._values(batch, self.states(batch)).tolist()
                for index, value in zip(indices, found, strict=True):
                    values[index] = value
        advantages = generalised_advantages(
            samples, values, discount=self.settings.discount, gae_lambda=self.settings.gae_lambda
        )
        if self.settings.normalize_advantages:
            mean = math.fsum(advantages) / max(1, len(advantages))
            deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in advantages) / max(1, len(samples)))
            advantages = [each / (deviation + 1e-8) for each in advantages]
        self._advantages = {
            sample.step_id: advantage for sample, advantage in zip(samples, advantages, strict=True)
        }

    def prepare_batch(
        self, samples: Sequence[TrainingSample], advantages: Sequence[float] | None = None
    ) -> TokenBatch:
        """Turn samples into tensors with the advantages of :meth:`begin_update`."""
        if advantages is None:
            advantages = [self._advantages[sample.step_id] for sample in samples]
        return super().prepare_batch(samples, advantages)

    def other_loss(
        self, batch: TokenBatch, states: Tensor, *, scale: float
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the critic's squared error."""
        values = self._values(batch, states)
        errors = values - batch.row_rewards
        with torch.no_grad():
            sums = {
                "value": values.sum(),
                "value_error_square": errors.square().sum(),
                "reward": batch.row_rewards.sum(),
                "reward_square": batch.row_rewards.square().sum(),
            }
        return errors.square().sum() * (scale / 2), sums

    def summarize(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Add the critic's metrics; the explained variance is 1 for a perfect critic and 0 for a constant
        one.
        """
        metrics = super().summarize(totals)
        rows = totals.get("rows", 0.0)
        if rows == 0:
            return metrics
        error = totals["value_error_square"] / rows
        variance = totals["reward_square"] / rows - (totals["reward"] / rows) ** 2
        metrics["value_loss"] = error / 2
        metrics["value_mean"] = totals["value"] / rows
        if variance > 1e-12:
            metrics["value_explained_variance"] = 1.0 - error / variance
        return metrics

    def _values(self, batch: TokenBatch, states: Tensor) -> Tensor:
        """Return the critic's value of each row's position, float32[B]."""
        first = states.detach()[batch.first_tokens].float()
        with torch.autocast(first.device.type, enabled=False):
            values: Tensor = self.critic(first).squeeze(-1)
        return values


def generalised_advantages(
    samples: Sequence[TrainingSample], values: Sequence[float], *, discount: float, gae_lambda: float
) -> list[float]:
    """Return each sample's generalised advantage estimate, in the order of ``samples``.

    With ``e_t = R_t - V_t``, the error of the critic at turn ``t``, and the next turn of the same trajectory
    in the batch ``d`` turns later::

        A_t = e_t - discount^d * e_(t+d) + (discount * gae_lambda)^d * A_(t+d)

    and ``A_t = e_t`` for the last one. For neighbours, ``d = 1``, this is the estimate of the paper:
    ``R_t - discount * R_(t+1)`` is the reward between the two turns. A batch is a random draw, so turns may
    be missing; then the critic is asked at the turns that are there. With ``gae_lambda = 1`` it is always
    ``R_t - V_t``.

    Args:
        samples: their advantage is the return of the turn, ``R``.
        values: the critic's value of each sample's position, ``V``.
    """
    errors = [sample.advantage - value for sample, value in zip(samples, values, strict=True)]
    trajectories: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        trajectories.setdefault(sample.trajectory_id, []).append(index)
    advantages = list(errors)
    for turns in trajectories.values():
        turns.sort(key=lambda index: samples[index].turn_index, reverse=True)
        for later, index in itertools.pairwise(turns):
            distance = samples[later].turn_index - samples[index].turn_index
            advantages[index] += (discount * gae_lambda) ** distance * advantages[
                later
            ] - discount**distance * errors[later]
    return advantages
