"""LoRA products of vLLM's linear layers on a CPU: ours against vLLM's own, on the shapes of SmolLM2-135M.

One layer's projections (query, key and value; output; gate and up; down) in bfloat16, rank 16, for a batch of
tokens of one adapter, and of three. One compute thread.
"""

import time
from collections.abc import Callable

import torch
from vllm.lora.layers import LoRAMapping
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from benchmarks.harness import compare, parser, report
from unstable_stream.inference.vllm.batched_lora import BatchedLoraCpu

_HIDDEN, _MIDDLE, _KEYS, _RANK, _SLOTS = 576, 1536, 192, 16, 4
_MODULES = (
    (_HIDDEN, (_HIDDEN, _KEYS, _KEYS)),
    (_HIDDEN, (_HIDDEN,)),
    (_HIDDEN, (_MIDDLE, _MIDDLE)),
    (_MIDDLE, (_HIDDEN,)),
)
"""Inputs, and the outputs of each slice."""


def _rate(wrapper_class: type[PunicaWrapperCPU], tokens: int, adapters: int) -> Callable[[], float]:
    """Tokens per second through all modules of a layer."""
    wrapper = wrapper_class(tokens, tokens, "cpu")
    of_tokens = tuple(1 + token * adapters // tokens for token in range(tokens))
    wrapper.update_metadata(LoRAMapping(of_tokens, of_tokens, True), list(range(1, _SLOTS + 1)), _SLOTS, 100)
    layer = [
        (
            torch.zeros(tokens, sum(widths), dtype=torch.bfloat16),
            torch.randn(tokens, inputs).bfloat16(),
            tuple(torch.randn(_SLOTS, 1, _RANK, inputs).bfloat16() for _ in widths),
            tuple(torch.randn(_SLOTS, 1, width, _RANK).bfloat16() for width in widths),
            widths,
        )
        for inputs, widths in _MODULES
    ]

    def measure() -> float:
        start = time.perf_counter()
        rounds = 0
        while time.perf_counter() - start < 0.5:
            for y, x, a, b, widths in layer:
                wrapper.add_lora_linear(y, x, a, b, 1.0, widths)
            rounds += 1
        return tokens * rounds / (time.perf_counter() - start)

    return measure


def main() -> None:
    """Compare decoding (one token a request) and prompts, with one adapter and with three."""
    arguments = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        comparisons = [
            compare(
                f"{tokens} tokens, adapters: {adapters}",
                _rate(BatchedLoraCpu, tokens, adapters),
                _rate(PunicaWrapperCPU, tokens, adapters),
                unit="tokens/s",
                rounds=arguments.rounds,
            )
            for tokens in (16, 512)
            for adapters in (1, 3)
        ]
    report("LoRA on a CPU against vLLM's own", comparisons, arguments.json)


if __name__ == "__main__":
    main()
