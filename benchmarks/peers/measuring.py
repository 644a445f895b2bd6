"""What each side measures, in its own process: time and memory of the updates.

Only the standard library, NumPy and PyTorch are needed here: the peers' environment has these too.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

MARK: Final = "@peers"
"""Begins every line that is for whoever measures; libraries print others."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a side is asked for."""

    directory: Path
    """Holds ``model``, ``adapter`` and ``batch.npz``."""
    rows: int
    """Rows of a micro-batch; our side cuts by tokens and takes it as an upper bound."""
    updates: int
    """Measured ones; one more comes before them, so 0 is enough for a gradient."""
    dtype: str
    """``float32`` or ``bfloat16``."""
    gradient: Path | None
    """Where the gradient of the first update goes; ``None``: nowhere."""


class Peak:
    """The most memory that the process takes from here on (Linux)."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak (proc(5))
        self._before = _status_mb("VmHWM")

    def beyond(self) -> float:
        """Return how far memory has grown since, at most, MiB."""
        return _status_mb("VmHWM") - self._before

    def process(self) -> float:
        """Return the most of the process since, MiB. What loading the model took for a moment is left out."""
        return _status_mb("VmHWM")


class Clock:
    """Times updates one by one, each when the other side has done its own.

    A line ``{MARK} ready`` asks for the word to begin, which is a line of standard input. Another tells what
    the update took.
    """

    def __init__(self, peak: Peak, *packages: str) -> None:
        self.peak = peak
        self._versions = _versions(*packages)
        self._running = False
        self._since = (0.0, 0.0)
        self._spent = [0.0, 0.0]

    def start(self) -> None:
        """Wait for the word, then begin to count.

        Raises:
            SystemExit: there will be none: whoever measures is gone.
        """
        print(f"{MARK} ready", flush=True)
        if not sys.stdin.readline():
            raise SystemExit("nobody measures any more")
        self._spent = [0.0, 0.0]
        self._go_on()

    def stop(self) -> None:
        """Tell what the update took; nothing happens if the clock does not run."""
        if self._running:
            self._halt()
            found = {
                "seconds": self._spent[0],
                "cpu_seconds": self._spent[1],
                "peak_mb": self.peak.beyond(),
                "process_mb": self.peak.process(),
                "versions": self._versions,
            }
            print(MARK, json.dumps(found), flush=True)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what happens inside, if the clock runs."""
        running = self._running
        if running:
            self._halt()
        try:
            yield
        finally:
            if running:
                self._go_on()

    def _go_on(self) -> None:
        self._running = True
        self._since = (time.perf_counter(), time.process_time())

    def _halt(self) -> None:
        self._running = False
        self._spent[0] += time.perf_counter() - self._since[0]
        self._spent[1] += time.process_time() - self._since[1]


def _status_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def read_task() -> Task:
    """Read the command line of a side, and compute with one thread from here on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--gradient", type=Path, default=None)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return Task(**vars(parser.parse_args()))


def gradients_of(model: torch.nn.Module) -> dict[str, Any]:
    """Return the gradient of every trained parameter, by a name that is the same on all sides.

    ``Any``: arrays of float32. NumPy's types take no mapping of these for ``savez``.
    """
    return {
        # PEFT's wrapper, which our learner does without, adds a prefix.
        name.replace(".default", "").removeprefix("base_model.model."): parameter.grad.float().numpy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _versions(*packages: str) -> dict[str, str]:
    """Return the versions of installed packages."""
    return {name: importlib.metadata.version(name) for name in packages}
