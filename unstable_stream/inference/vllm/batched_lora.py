"""Apply LoRA adapters on a CPU with one matrix product for a batch, not one copy of the adapter per token.

Without a GPU, vLLM 0.32 gathers an adapter's matrices once for each token (``bgmv_shrink``,
``bgmv_expand_slice``): ``rank * (inputs + outputs)`` numbers are copied per token and module, and most of the
engine's time goes there. Here all tokens are multiplied with all adapters of the batch side by side, and what
is not a token's own is set to zero before the second product. That is a few times the arithmetic needed when
several adapters are in a batch, and still little beside the base model's: ``benchmarks/vllm_lora.py`` has the
figures. The products are made in the model's number format, as the learner makes them.

Imported in vLLM's processes only; :func:`install` is called there before a model is loaded.
"""

from typing import Any

import torch
from torch import Tensor
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms.cpu import CpuPlatform


class BatchedLoraCpu(PunicaWrapperCPU):  # type: ignore[misc]  # vLLM is not typed for mypy
    """vLLM's LoRA products of linear layers on a CPU; all else is its own."""

    def update_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Take the adapter slot of each token of the next batch, -1 for the base model's."""
        super().update_metadata(*args, **kwargs)
        slots = self.token_lora_indices
        present = slots.unique()
        self._slots = [int(slot) for slot in present if slot >= 0]
        self._own: Tensor | None = None
        """[tokens, adapters in the batch]: 1 where the token is the adapter's; ``None``: there is one."""
        if len(present) > 1:
            self._own = (slots.unsqueeze(1) == slots.new_tensor(self._slots)).float()

    def add_lora_linear(
        self,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: tuple[Tensor, ...],
        lora_b_stacked: tuple[Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **_: Any,
    ) -> None:
        """Add each token's ``x @ A^T * scale @ B^T`` to ``y``, in place.

        Args:
            y: [tokens, outputs]; the outputs are those of all slices, side by side.
            x: [tokens, inputs].
            lora_a_stacked: A of each slice, [slots, 1, rank, inputs].
            lora_b_stacked: B of each slice, [slots, 1, outputs of the slice, rank]; alpha / rank is in it.
            scale: a factor.
            output_slices: number of outputs of each slice.
        """
        if not self._slots:
            return
        start = 0
        for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            part, start = slice(start, start + width), start + width
            chosen_a = a[self._slots, 0]
            if not chosen_a.any():
                continue  # a layer that the adapters leave as it is: vLLM sets it to zero
            # Every token with every adapter, side by side; what is not its own becomes zero.
            low = torch.mm(x, chosen_a.flatten(0, 1).to(x.dtype).t()).mul_(scale)
            if self._own is not None:
                low.view(len(low), len(self._slots), -1).mul_(self._own.unsqueeze(2))
            chosen_b = b[self._slots, 0].transpose(0, 1).flatten(1)
            y[:, part] += torch.mm(low.to(y.dtype), chosen_b.to(y.dtype).t())


def install() -> None:
    """Let vLLM apply adapters with :class:`BatchedLoraCpu` when it runs on a CPU."""
    name = f"{BatchedLoraCpu.__module__}.{BatchedLoraCpu.__qualname__}"
    CpuPlatform.get_punica_wrapper = classmethod(lambda _: name)
