"""The ancestor's learner in float32. Beside the engine's only its process imports PyTorch."""

import contextlib
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.peers.unstable_baselines import make_float32
from benchmarks.peers.whole_run.ancestor_port import marks, plain, put_back
from benchmarks.peers.whole_run.work import tell

_LEARNERS = put_back("unstable.learners")


class MarkedLearner(plain(_LEARNERS.REINFORCELearner)):  # type: ignore[misc]  # Ray's decorator hides the class
    """Tells of each update.

    An exception ends the run: the ancestor logs it and tries again for ever. Its autocast to bfloat16 does
    nothing.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        make_float32(self)

    def _update(self, batch: list[Any]) -> dict[str, float]:
        try:
            with patch.object(torch, "autocast", lambda **_: contextlib.nullcontext()):
                metrics: dict[str, float] = super()._update(batch)
        except Exception as error:
            tell(marks(), "failed", reason=f"{type(error).__name__}: {error}")
            raise
        tell(marks(), "update", steps=len(batch))
        return metrics
