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
    from unstable_stream.algorithms.a2c import A2C as A2C
    from unstable_stream.algorithms.base import Admission as Admission
    from unstable_stream.algorithms.base import BaseAlgo as BaseAlgo
    from unstable_stream.algorithms.base import OwnNetwork as OwnNetwork
    from unstable_stream.algorithms.base import TokenBatch as TokenBatch
    from unstable_stream.algorithms.base import TrainingSample as TrainingSample
    from unstable_stream.algorithms.base import build_algorithm as build_algorithm
    from unstable_stream.algorithms.ppo import PPO as PPO
    from unstable_stream.algorithms.reinforce import Reinforce as Reinforce

_HOMES = {
    **dict.fromkeys(
        ("Admission", "BaseAlgo", "OwnNetwork", "TokenBatch", "TrainingSample", "build_algorithm"),
        f"{__name__}.base",
    ),
    **{name: home for home, _, name in (each.partition(":") for each in IMPLEMENTATIONS.values())},
}


def __getattr__(
    name: str,
) -> Any:  # a configuration is checked by the settings in this package, without torch
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
