"""Engines that keep a diary; one has a fault, and is right from its third start on."""

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


class Noting(TransformersEngine):
    """The transformers engine with a diary."""

    def __init__(self, model_path: str, notes: str) -> None:
        """``notes``: the file to write to."""
        self._notes = Path(notes)
        self._note("started")
        super().__init__(model_path, device="cpu", num_threads=1, dtype="float32")

    async def close(self) -> None:
        await super().close()
        self._note("closed")

    def _note(self, line: str) -> None:
        with self._notes.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


class Faulty(Noting):
    """Loads adapters without a word of complaint, and what answers is something else."""

    def __init__(self, model_path: str, notes: str) -> None:
        super().__init__(model_path, notes)
        starts = self._notes.read_text(encoding="utf-8").count("started")
        if starts <= len(_FAULTS):
            AdaptedLinear.forward = _FAULTS[starts - 1]  # type: ignore[method-assign, assignment]
