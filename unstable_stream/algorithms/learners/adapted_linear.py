"""A linear layer with a low-rank adapter as one operation of autograd.

PEFT's layer casts its input to the adapter's float32, adds the two products as further tensors, and keeps
what each of these steps needs for the backward pass: many small operations, which cost more to start than to
compute where a model is small or a GPU fast. Here a layer takes three products forward and five backward, and
keeps its input once, however many layers share it. "Liger Kernel" (arXiv:2410.10989) fuses other layers so.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _AdaptedLinear(torch.autograd.Function):
    """``states @ weight.T + bias + scale * states @ down.T @ up.T``, in the numbers of the weight."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, scale: float
    ) -> Tensor:
        rows = states.reshape(-1, states.shape[-1]).to(weight.dtype)
        down, up = down.to(weight.dtype), up.to(weight.dtype)
        inner = rows @ down.T
        found = F.linear(rows, weight, bias).addmm_(inner, up.T, alpha=scale)
        ctx.save_for_backward(rows, inner, weight, down, up)
        ctx.scale, ctx.shape, ctx.dtype = scale, states.shape, states.dtype
        return found.view(*states.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, Tensor, Tensor, None]:
        rows, inner, weight, down, up = ctx.saved_tensors
        gradient = gradient.reshape(-1, gradient.shape[-1]).to(weight.dtype)
        by_inner = (gradient @ up).mul_(ctx.scale)
        by_down, by_up = by_inner.T @ rows, (gradient.T @ inner).mul_(ctx.scale)
        by_states = None
        if ctx.needs_input_grad[0]:
            by_states = (gradient @ weight).addmm_(by_inner, down).view(ctx.shape).to(ctx.dtype)
        # The adapter's own numbers are float32.
        return by_states, None, None, by_down.float(), by_up.float(), None


def fuse_adapters(model: nn.Module) -> None:
    """Compute each plain linear layer that has an adapter in one operation.

    Others stay PEFT's: GPT-2's transposed layers, and all with dropout, which acts between the two products.
    """
    for module in model.modules():
        layer: Any = module  # PEFT's layer, which publishes no types
        if hasattr(layer, "adapter_layer_names") and type(layer.base_layer) is nn.Linear:
            (name,) = layer.lora_A
            if isinstance(layer.lora_dropout[name], nn.Identity):
                _fuse(layer, layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name])


def _fuse(layer: Any, down: nn.Parameter, up: nn.Parameter, scale: float) -> None:
    base = layer.base_layer

    def forward(states: Tensor) -> Tensor:
        if layer.disable_adapters:
            plain: Tensor = base(states)
            return plain
        # The parameters are asked for anew: they may have been moved, or replaced by another learner's.
        found: Tensor = _AdaptedLinear.apply(states, base.weight, base.bias, down, up, scale)  # type: ignore[no-untyped-call]
        return found

    layer.forward = forward
