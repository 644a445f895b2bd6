"""Name what decides on the last bits of a computation: versions, hardware and threads."""

from importlib.metadata import version
from pathlib import Path

import torch

from unstable_stream.version import __version__


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
