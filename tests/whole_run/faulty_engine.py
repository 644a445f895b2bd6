"""An engine with a fault: it is right from its third start on."""

from pathlib import Path
from typing import Final

from torch import Tensor

from unstable_stream.inference.transformers.engine import TransformersEngine
from unstable_stream.inference.transformers.lora import AdaptedLinear

_adapted: Final = AdaptedLinear.forward


def _without_adapter(layer: AdaptedLinear, x: Tensor) -> Tensor:
    base: Tensor = layer.base(x)
    return base


def _with_another_adapter(layer: AdaptedLinear, x: Tensor) -> Tensor:
    """What the adapter adds is taken away: the adapter with the opposite effect."""
    base: Tensor = layer.base(x)
    return 2 * base - _adapted(layer, x)


_FAULTS: Final = (_without_adapter, _with_another_adapter)


class Faulty(TransformersEngine):
    """Loads adapters without a word of complaint, and what answers is something else."""

    def __init__(self, model_path: str, starts: str) -> None:
        """``starts``: a file with a line for each time that it was started, and ``closed`` beside it."""
        self._closed = Path(starts).with_name("closed")
        with Path(starts).open("a+", encoding="utf-8") as file:
            file.seek(0)
            earlier = len(file.readlines())
            file.write("started\n")
        if earlier < len(_FAULTS):
            AdaptedLinear.forward = _FAULTS[earlier]  # type: ignore[method-assign, assignment]
        super().__init__(model_path, device="cpu", num_threads=1, dtype="float32")

    async def close(self) -> None:
        await super().close()
        self._closed.touch()
