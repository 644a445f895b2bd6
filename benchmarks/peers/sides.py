"""The two sides as processes that take turns, one update each."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.environment import ensure
from benchmarks.peers.measuring import MARK

PEERS: Final = {"trl": "trl_learner", "unstable-rl": "unstable_baselines"}
"""Package and our module that runs it."""

_ROOT: Final = Path(__file__).parents[2]
_QUIET: Final = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}


class Side:
    """A running side; see :func:`side`."""

    def __init__(self, process: "subprocess.Popen[str]", errors: Path) -> None:
        self._process = process
        self._errors = errors

    def update(self) -> dict[str, Any]:
        """Let it do one update; return its time, the memory of all so far, and the versions of packages."""
        self._next()
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._next())
        return found

    def _next(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return line.removeprefix(MARK).strip()
        raise SystemExit(f"a side failed:\n{self._errors.read_text()[-3000:]}")


@contextlib.contextmanager
def side(
    peer: str | None,
    directory: Path,
    *,
    rows: int,
    updates: int,
    dtype: str,
    gradient: Path | None = None,
) -> Iterator[Side]:
    """Start a side, which does one update for itself; it ends with the context.

    Args:
        peer: the peer's package; ``None``: our side.
        directory: holds ``model``, ``adapter`` and ``batch.npz``.
        rows: of a micro-batch.
        updates: the number of updates that it will be asked for.
        dtype: of the model, ``float32`` or ``bfloat16``.
        gradient: where the gradient of its first update goes.
    """
    python, module = (sys.executable, "ours") if peer is None else (str(ensure()), PEERS[peer])
    command = [python, "-m", f"benchmarks.peers.{module}", "--directory", str(directory)]
    command += ["--rows", str(rows), "--updates", str(updates), "--dtype", dtype]
    command += [] if gradient is None else ["--gradient", str(gradient)]
    with tempfile.NamedTemporaryFile(suffix=".txt") as errors:
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **_QUIET},
        )
        with process:
            try:
                yield Side(process, Path(errors.name))
            finally:
                process.kill()
