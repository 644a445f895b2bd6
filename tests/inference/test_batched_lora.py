"""LoRA products on a CPU, for a batch at once, against the product of each token by itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.inference.vllm_modules import NEEDS_VLLM

pytestmark = [
    pytest.mark.slow,  # imports vLLM
    *NEEDS_VLLM,
]

INPUTS, RANK, WIDTHS, SLOTS = 12, 4, (6, 3), 3


def weights(seed: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A and B of two slices in three slots; the second slot adapts the first slice only."""
    generator = torch.Generator().manual_seed(seed)
    a = tuple(torch.randn(SLOTS, 1, RANK, INPUTS, generator=generator) for _ in WIDTHS)
    b = tuple(torch.randn(SLOTS, 1, width, RANK, generator=generator) for width in WIDTHS)
    a[1][1] = 0
    b[1][1] = 0
    return a, b


def applied(slots: list[int], x: Tensor, y: Tensor, *, is_prefill: bool) -> Tensor:
    """What our class makes of ``y``; ``slots``: of each token, -1 for the base model."""
    from vllm.lora.layers import LoRAMapping

    from unstable_stream.inference.vllm.batched_lora import BatchedLoraCpu

    wrapper = BatchedLoraCpu(64, 64, "cpu")
    numbers = [11, 12, 13]  # of the adapters in the slots
    of_tokens = tuple(0 if slot < 0 else numbers[slot] for slot in slots)
    wrapper.update_metadata(LoRAMapping(of_tokens, of_tokens, is_prefill), list(numbers), SLOTS, 100)
    a, b = weights(0)
    result = y.clone()
    wrapper.add_lora_linear(result, x, a, b, 0.5, WIDTHS)
    return result


@settings(max_examples=40, deadline=None)
@given(slots=st.lists(st.integers(-1, SLOTS - 1), min_size=1, max_size=12), is_prefill=st.booleans())
def test_each_token_gets_its_own_adapter(slots: list[int], is_prefill: bool) -> None:
    generator = torch.Generator().manual_seed(len(slots))
    x = torch.randn(len(slots), INPUTS, generator=generator)
    y = torch.randn(len(slots), sum(WIDTHS), generator=generator)
    a, b = weights(0)
    expected = y.clone()
    for token, slot in enumerate(slots):
        if slot >= 0:
            delta = [0.5 * b[part][slot, 0] @ (a[part][slot, 0] @ x[token]) for part in range(len(WIDTHS))]
            expected[token] += torch.cat(delta)
    torch.testing.assert_close(applied(slots, x, y, is_prefill=is_prefill), expected)


def test_the_sum_is_in_the_models_number_format() -> None:
    x = torch.randn(5, INPUTS, generator=torch.Generator().manual_seed(1)).bfloat16()
    y = torch.zeros(5, sum(WIDTHS), dtype=torch.bfloat16)
    result = applied([0, 2, 0, -1, 1], x, y, is_prefill=True)
    exact = applied([0, 2, 0, -1, 1], x.float(), y.float(), is_prefill=True)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), exact, rtol=2e-2, atol=2e-2)
