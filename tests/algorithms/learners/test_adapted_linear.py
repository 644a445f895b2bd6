"""An adapted layer in one operation computes what PEFT's layer computes, forward and backward."""

import copy
from typing import Any

import peft
import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from unstable_stream.algorithms.learners.adapted_linear import fuse_adapters


class Two(nn.Module):
    """Two layers, with and without a bias; the first has another input than the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(7, 3, bias=False)

    def forward(self, states: torch.Tensor) -> Any:
        return self.second(torch.tanh(self.first(states)))


def adapted(model: nn.Module, **settings: Any) -> Any:
    torch.manual_seed(3)
    lora = peft.LoraConfig(r=2, lora_alpha=6, init_lora_weights=False, **settings)
    return peft.inject_adapter_in_model(lora, model.requires_grad_(False))


def results(model: nn.Module, states: torch.Tensor, lower: bool) -> list[torch.Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=lower):
        found = model(states)
    (found.float() * torch.arange(3)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    assert all(gradient is not None and gradient.dtype == torch.float32 for gradient in gradients)
    return [found, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize(
    ("lower", "tolerance"), [(False, 1e-5), (True, 0.05)], ids=["float32", "bfloat16 and autocast"]
)
def test_values_and_gradients_are_those_of_peft(lower: bool, tolerance: float) -> None:
    plain = adapted(Two(), target_modules=["first", "second"])
    if lower:
        for name, parameter in plain.named_parameters():
            if "lora_" not in name:
                parameter.data = parameter.data.bfloat16()
    fused = copy.deepcopy(plain)
    fuse_adapters(fused)
    assert "forward" in vars(fused.first)
    assert "forward" in vars(fused.second)
    dtype = torch.bfloat16 if lower else torch.float32
    states = torch.randn(2, 4, 5, dtype=dtype, requires_grad=True)
    same = states.detach().clone().requires_grad_()
    for ours, theirs in zip(results(fused, states, lower), results(plain, same, lower), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    assert states.grad is not None
    assert same.grad is not None
    torch.testing.assert_close(states.grad, same.grad, rtol=tolerance, atol=tolerance)


def test_without_its_adapter_a_layer_is_the_base_model() -> None:
    model = adapted(Two(), target_modules=["first"])
    fuse_adapters(model)
    states = torch.randn(1, 5)
    with_adapter = model.first(states)
    model.first.enable_adapters(False)
    assert torch.equal(model.first(states), model.first.base_layer(states))
    model.first.enable_adapters(True)
    assert torch.equal(model.first(states), with_adapter)


def test_dropout_and_transposed_layers_stay_with_peft() -> None:
    dropping = adapted(Two(), target_modules=["first"], lora_dropout=0.5)
    transposed = adapted(nn.Sequential(Conv1D(3, 5)), target_modules=["0"], fan_in_fan_out=True)
    for model in (dropping, transposed):
        fuse_adapters(model)
    assert "forward" not in vars(dropping.first)
    assert "forward" not in vars(transposed[0])
