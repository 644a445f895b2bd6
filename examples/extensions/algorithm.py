"""An algorithm of your own: the plain policy gradient, without importance ratios.

algorithm = "examples/extensions/algorithm.py:Vanilla"
"""

from collections.abc import Mapping

from torch import Tensor

from unstable_stream.algorithms import BaseAlgo, TokenBatch


class Vanilla(BaseAlgo):
    """``loss = -mean(advantage * log-probability)``, divided by the constant length limit."""

    def __init__(self, *, weight: float = 1.0) -> None:
        self.weight = weight

    def update(self, batch: TokenBatch, *, scale: float, update: int) -> Mapping[str, Tensor]:
        logprobs, _ = self.score(batch)
        objective = self.weight * (batch.advantages * logprobs).sum()
        loss = -objective * scale / self.max_generation_len
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return {"loss": loss.detach()}
