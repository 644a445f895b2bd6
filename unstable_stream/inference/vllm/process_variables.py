"""Set the environment variables that make vLLM quiet, private and quick to start."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Final

from unstable_stream.inference.cores import available_cores

DEFAULTS: Final[Mapping[str, str]] = {
    # Nothing is reported to anyone.
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Talk goes to stderr, and only what is wrong.
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    # On a CPU: compute in the engine process itself, not in a child of it that is pinned to cores. Starts in
    # two thirds of the time, takes 0.9 GB less, and several engines on a host do not fight for one core.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""Variables that are set before vLLM is imported."""

OFFLINE: Final[Mapping[str, str]] = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Variables that are set too if the model is a local directory: vLLM then asks no hub."""

OWNER_VARIABLE: Final = "UNSTABLE_STREAM_ENGINE_OWNER_PID"
"""The variable that tells vLLM's processes which process owns the engine; see :mod:`.worker_extension`."""


def set_defaults(*, offline: bool) -> None:
    """Set the variables above that the user has not set."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    if offline:
        for name, value in OFFLINE.items():
            os.environ.setdefault(name, value)


@contextlib.contextmanager
def child_environment(*, on_cpu: bool, compiled: bool, num_threads: int | None = None) -> Iterator[None]:
    """Variables for vLLM's processes alone, which inherit them when they are started in this context.

    Args:
        on_cpu: Whether the model runs on the CPU.
        compiled: Whether ``torch.compile`` may run in them.
        num_threads: Compute threads on the CPU. By default those that the user has set, else all cores but
            one. (Ray sets 1 in an actor that asks for no core, and it cannot be told from the user's.)
    """
    wanted = {
        # vLLM's deprecations, and torch's remark on memory nodes.
        "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore"),
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        # Never the user's to set: inherited from an outer engine it would name the wrong process.
        OWNER_VARIABLE: str(os.getpid()),
    }
    if on_cpu:
        # One core is left to those who play and learn: a compute thread that waits for a core stops all
        # others at every layer. Measured on 2 busy cores: 27 s instead of 0.25 s for 64 short completions.
        default = os.environ.get("OMP_NUM_THREADS", str(max(1, available_cores() - 1)))
        wanted["OMP_NUM_THREADS"] = default if num_threads is None else str(num_threads)
    if not compiled:
        wanted["TORCH_COMPILE_DISABLE"] = os.environ.get("TORCH_COMPILE_DISABLE", "1")
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
