"""Policy-gradient algorithms: each computes the gradient of one micro-batch of recorded turns.

To use your own, write a subclass of :class:`~unstable_stream.algorithms.base.BaseAlgo` in any file and name
it in the configuration, ``algorithm = "path/to/file.py:Vanilla"``. Only ``update`` is required: score the
batch, form the loss, call ``backward``, return sums::

    class Vanilla(BaseAlgo):
        def update(self, batch, *, scale, update):
            logprobs, _ = self.score(batch)
            loss = -(batch.advantages * logprobs).sum() * scale / self.max_generation_len
            loss.backward()
            return {"loss": loss.detach()}

Override ``prepare_batch`` for other tensors (returns, a frozen reference), ``initialize`` for other
networks and ``networks`` to have them trained and saved (:mod:`unstable_stream.algorithms.a2c` has a critic),
``admit`` to leave turns out, ``summarize`` to turn the sums into metrics. A built-in algorithm has its
settings in :mod:`unstable_stream.algorithms.settings`, and needs nothing else.
"""

import importlib
from typing import TYPE_CHECKING, Any

from unstable_stream.algorithms.settings import IMPLEMENTATIONS

if TYPE_CHECKING:
    from unstable_stream.algorithms.a2c import A2C
    from unstable_stream.algorithms.base import (
        Admission,
        BaseAlgo,
        OwnNetwork,
        TokenBatch,
        TrainingSample,
        build_algorithm,
    )
    from unstable_stream.algorithms.ppo import PPO
    from unstable_stream.algorithms.reinforce import Reinforce

__all__ = [
    "A2C",
    "PPO",
    "Admission",
    "BaseAlgo",
    "OwnNetwork",
    "Reinforce",
    "TokenBatch",
    "TrainingSample",
    "build_algorithm",
]


def __getattr__(
    name: str,
) -> Any:  # a configuration is checked by the settings in this package, without torch
    homes = {home.partition(":")[2]: home.partition(":")[0] for home in IMPLEMENTATIONS.values()}
    if name in homes or name in __all__:
        return getattr(importlib.import_module(homes.get(name, f"{__name__}.base")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
