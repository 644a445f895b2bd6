"""Name what decides on the last bits of a computation, and measure in which numbers this CPU is faster.

CPUs differ by a factor of four either way: with matrix or dot-product instructions for bfloat16 it is several
times as fast, without them float32 is. Matrix products are most of the work of a language model.
"""

import time
from importlib.metadata import version
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from unstable_stream.version import __version__

_ROUNDS: Final = 3
_WEIGHT_VALUES: Final = 2**23
"""Together larger than the caches, like a model's weights, and small enough for a second in all."""


def bfloat16_speed(
    hidden: int, intermediate: int, *, rows: int, num_threads: int | None = None, backward: bool = False
) -> float:
    """Return how many times as fast as float32 bfloat16 is for the feed-forward layers of a model.

    Args:
        hidden: width of the model.
        intermediate: width of its feed-forward layers.
        rows: tokens that are computed together.
        num_threads: threads to compute with; ``None``: as many as PyTorch is set to.
        backward: compute the gradient of the inputs too.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(num_threads or threads)
    try:
        # Not at one go for each: what else the machine does then falls on both alike.
        layers = max(1, _WEIGHT_VALUES // (2 * hidden * intermediate))
        with torch.random.fork_rng(devices=[]):
            stacks = [
                [
                    torch.randn(shape, dtype=dtype)
                    for _ in range(layers)
                    for shape in ((intermediate, hidden), (hidden, intermediate))
                ]
                for dtype in (torch.float32, torch.bfloat16)
            ]
        times = [[_seconds(stack, rows, backward) for stack in stacks] for _ in range(_ROUNDS + 1)]
    finally:
        torch.set_num_threads(threads)
    full, half = (min(column) for column in zip(*times[1:], strict=True))  # the first is the warm-up
    return float(full / half)


def _seconds(weights: list[Tensor], rows: int, backward: bool) -> float:
    inputs = torch.ones(rows, weights[0].shape[1], dtype=weights[0].dtype, requires_grad=backward)
    started = time.perf_counter()
    with torch.set_grad_enabled(backward):
        states = inputs
        for weight in weights:
            states = torch.nn.functional.linear(states, weight)
        if backward:
            torch.autograd.grad(states, inputs, torch.ones_like(states))
    return time.perf_counter() - started


def computed_with(device: torch.device, dtype: str) -> dict[str, str]:
    """Return the versions, the device and the threads that this thread computes with, by name.

    Two computations of the same on a CPU are equal bit by bit if all of these are equal. On a GPU they need
    not be: its sums have no fixed order.
    """
    gpu = device.type == "cuda"
    return {
        "unstable_stream": __version__,
        "torch": str(torch.__version__),
        "transformers": version("transformers"),
        "device": f"cuda {torch.cuda.get_device_name(device)}" if gpu else f"cpu {cpu_name()}",
        "threads": str(torch.get_num_threads()),
        "dtype": dtype,
    }


def cpu_name(described: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model of this machine's CPU and the instructions that torch uses of it."""
    model = "of unknown model"
    if described.is_file():
        for line in described.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                model = value.strip()
                break
    return f"{model} {torch.backends.cpu.get_cpu_capability()}"
