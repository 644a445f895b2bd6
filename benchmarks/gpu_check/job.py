"""The order for one part of the check, and what it needs of the device: memory, clocks, out-of-memory."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

Row = dict[str, Any]
"""One line of the result: numbers by name, or ``skipped`` with the reason."""

GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Job:
    """What one process has to measure."""

    part: str
    shape: str
    model: str
    """Directory of the model."""
    device: str
    work: str
    """Directory for what parts leave for others: models, checkpoints, data of runs."""
    lengths: tuple[int, ...]
    """Tokens of prompt and completion together."""
    rounds: int
    batch_tokens: int
    """Tokens of a learner update."""
    micro_batch_tokens: int | None
    """Most tokens of a micro-batch; ``None``: what a run takes."""
    requests: int
    """Most requests at once."""
    max_tokens: int
    """Longest completion."""

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def completion_tokens(self, length: int) -> int:
        """Tokens of a completion in ``length``: a quarter, but no more than asked for."""
        return min(self.max_tokens, length // 4)

    def requests_of(self, length: int) -> int:
        """Requests at once: fewer of the long ones, so that keys and values fit beside the model."""
        return max(1, min(self.requests, 131_072 // length))


def random_prompts(vocabulary: int, count: int, length: int) -> list[NDArray[np.int32]]:
    """Return the same random prompts each time; text would be no likelier to a random model."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocabulary, length).astype(np.int32) for _ in range(count)]


def seconds_of(action: Callable[[], object], device: str) -> float:
    """Run ``action`` and return its seconds, the device's queue included."""
    began = time.perf_counter()
    action()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - began


def reset_peak(device: str) -> None:
    """Begin a new measurement of peak memory."""
    if device.startswith("cuda"):
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM (proc(5))


def peak_gib(device: str) -> float:
    """Return the peak since then in GiB: of tensors on a GPU, of this process without one."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / GIB
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 2**20
    raise KeyError("VmHWM")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device's memory ran out, also in an engine's own thread."""
    return isinstance(error, torch.OutOfMemoryError) or "OutOfMemoryError" in str(error)


def free() -> None:
    """Return memory that no tensor uses to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
