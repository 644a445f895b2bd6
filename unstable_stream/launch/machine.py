"""Look at this machine: GPUs and their memory, cores, free host memory. Loads no library."""

import os
import shutil
import subprocess
from pathlib import Path

from unstable_stream.runs.placement import Machine

__all__ = ["this_machine"]

_ANSWER_S = 20.0
"""Seconds for the driver's answer: the first one after a start can take several."""


def this_machine() -> Machine:
    """Return what is here; GPUs are those that CUDA shows this process (``CUDA_VISIBLE_DEVICES``)."""
    gpus = _gpu_bytes()
    return Machine(
        gpus=len(gpus),
        gpu_bytes=min(gpus, default=None),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=_free_memory(),
    )


def _gpu_bytes() -> list[int]:
    """Memory of each visible GPU. A driver that does not answer has no GPU that could be used."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_ANSWER_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(",") for line in answer.splitlines() if line.strip()]
    found = [(uuid.strip(), int(mib) * 2**20) for uuid, mib in rows]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [size for _, size in found]
    wanted = [name.strip() for name in visible.split(",") if name.strip()]
    by_name = {str(number): size for number, (_, size) in enumerate(found)} | dict(found)
    return [by_name[name] for name in wanted if name in by_name]


def _free_memory() -> int | None:
    """Bytes that processes can take: of the machine, or of the control group that holds this one."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return free
    if limit == "max":
        return free
    left = int(limit) - int(used)
    return left if free is None else min(free, left)
