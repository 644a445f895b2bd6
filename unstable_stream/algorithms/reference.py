"""The reference: a policy that stands still, or follows the trained one at a distance, and pulls it back.

Self-play with a policy gradient alone goes round in circles where no answer is best against all. Pulled
towards a past policy, it converges to the answer that is best under that pull; then the past policy is
renewed, and the next answer is nearer to optimal play: regularised Nash dynamics, Perolat et al.,
arXiv:2206.15378, and magnetic mirror descent, Sokota et al., arXiv:2206.05825, with the pull there is here.

It costs no second model: the weights of the two are exchanged while the reference computes.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class ReferencePolicy:
    """A copy of the trained weights, as they were.

    Args:
        model: the policy.
        every: number of updates after which it is renewed; 0: never.
        average: in place of that, move it ``1 / every`` of the way to the policy after each update.
    """

    def __init__(self, model: nn.Module, *, every: int, average: bool) -> None:
        self._model = model
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._every = every
        self._average = average
        self.load_state_dict(None)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Compute with it: the policy has its weights, and no dropout. Gradients must be off."""
        policy, training = [parameter.data for parameter in self._trained], self._model.training
        cached = torch.is_autocast_cache_enabled()
        # Autocast knows a parameter by its identity, so it would keep these weights for the policy's.
        torch.set_autocast_cache_enabled(False)
        self._model.eval()
        try:
            self._exchange(self._weights)
            yield
        finally:
            self._exchange(policy)
            self._model.train(training)
            torch.set_autocast_cache_enabled(cached)

    def weights_of(self, module: nn.Module) -> dict[str, Tensor]:
        """Return its weights of those parameters of a module that are trained, by name."""
        weights = {id(mine): kept for mine, kept in zip(self._trained, self._weights, strict=True)}
        return {name: weights[id(own)] for name, own in module.named_parameters() if id(own) in weights}

    def follow(self) -> None:
        """Follow the policy, after each of its updates."""
        self._age += 1
        if self._average:
            for kept, parameter in zip(self._weights, self._trained, strict=True):
                kept.lerp_(parameter.detach(), 1 / self._every)
        elif 0 < self._every <= self._age:  # below it after a resumption with a smaller number
            self.load_state_dict(None)

    def state_dict(self) -> dict[str, Any]:
        """Return the weights, and the number of updates since they were renewed."""
        return {"age": self._age, "weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore it; ``None``: begin with the policy as it is."""
        self._age: int = state["age"] if state else 0
        saved = state["weights"] if state else [parameter.detach() for parameter in self._trained]
        self._weights = [
            weights.to(parameter.device, copy=True)
            for weights, parameter in zip(saved, self._trained, strict=True)
        ]

    def _exchange(self, weights: list[Tensor]) -> None:
        for parameter, own in zip(self._trained, weights, strict=True):
            parameter.data = own
