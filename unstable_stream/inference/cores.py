"""The cores of this machine that a process may compute on."""

import os


def available_cores() -> int:
    """Return their number, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
