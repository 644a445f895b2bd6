"""One side's run in a process of its own, and what was measured of it."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.whole_run.package import ancestor_path
from benchmarks.peers.whole_run.processes import MARK, Processes

SIDES: Final = {
    "ancestor, vllm": ("ancestor", "vllm"),
    "ours, transformers": ("ours", "transformers"),
    "ours, vllm": ("ours", "vllm"),
}
"""Module and engine."""

_ROOT: Final = Path(__file__).parents[3]
_POLL_S: Final = 0.1
_LOOK_S: Final = 1.0
"""A process that lives and ends between two looks is missed."""
_MEMORY_S: Final = 5.0
_STOP_S: Final = 30.0
_SETTINGS: Final = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # By default Ray gives its workers a lower priority than everything else on the machine has.
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # The engine computes in the process that has it. The ancestor needs that: it asks its engine for a step
    # also when there is nothing to compute, and an engine in another process would never answer.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Our engine does so by itself: with adapters nothing but a helper would be compiled on a CPU.
    "TORCH_COMPILE_DISABLE": "1",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a side had told and spent at a moment."""

    at: float
    """Seconds since the epoch, as the side told."""
    cpu_s: Mapping[str, float]
    """CPU seconds so far by kind of process."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    first_game_s: float
    """From the command to the first game that is recorded."""
    first_game_cpu_s: float
    """CPU seconds of all processes until then."""
    steps: int
    """Trained between the ends of the first and the last update; so do the three below."""
    seconds: float
    cpu_s: dict[str, float]
    """By kind of process."""
    played: float
    """Steps played for each one trained."""
    memory_mb: float
    """The most of all processes together, over the whole run."""
    left: list[str]
    """Processes that had to be killed after the end."""


def measured_of(
    began: float,
    game: Snapshot,
    updates: Sequence[tuple[Snapshot, int]],
    played: Sequence[int],
    memory_mb: float,
    left: Sequence[str],
) -> Measured:
    """Return what a run took.

    Args:
        began: when the process was started.
        game: when the first game was recorded.
        updates: at the end of each, with the steps it was trained on; at least two.
        played: steps so far, at each update.
        memory_mb: the most.
        left: processes that were killed.
    """
    (first, _), (last, _) = updates[0], updates[-1]
    steps = sum(number for _, number in updates[1:])
    spent = {name: cpu_s - first.cpu_s.get(name, 0.0) for name, cpu_s in last.cpu_s.items()}
    return Measured(
        first_game_s=game.at - began,
        first_game_cpu_s=sum(game.cpu_s.values()),
        steps=steps,
        seconds=last.at - first.at,
        cpu_s={name: cpu_s for name, cpu_s in spent.items() if cpu_s != 0.0},
        played=(played[-1] - played[0]) / steps,
        memory_mb=memory_mb,
        left=list(left),
    )


def run_side(name: str, *, rows: int, updates: int, limit_s: float) -> Measured:
    """Run a side until it ends.

    Raises:
        SystemExit: it failed, or took longer than the limit.
    """
    module, engine = SIDES[name]
    mark = secrets.token_hex(8)
    processes = Processes(mark)
    with tempfile.TemporaryDirectory() as directory:
        marks, output = Path(directory, "marks.jsonl"), Path(directory, "output.txt")
        marks.touch()
        command = [sys.executable, "-m", f"benchmarks.peers.whole_run.{module}", "--marks", str(marks)]
        command += ["--rows", str(rows), "--updates", str(updates), "--engine", engine]
        path = [str(_ROOT), *([ancestor_path()] if module == "ancestor" else [])]
        environment = {**os.environ, **_SETTINGS, MARK: mark, "PYTHONPATH": os.pathsep.join(path)}
        # It would keep each of its processes from loading compiled files.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment.pop("RAY_ADDRESS", None)
        began = time.time()
        with (
            output.open("wb") as out,
            subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            ) as process,
        ):
            try:
                watch = _Watch(marks, processes)
                watch.follow(process, began + limit_s)
            finally:
                _stop(process)
                left = processes.end()
        if watch.failure or process.returncode:
            reason = watch.failure or f"status {process.returncode}"
            text = output.read_text(encoding="utf-8", errors="replace")
            raise SystemExit(f"{name}, micro-batch {rows}: {reason}\n{text[-4000:]}")
        return measured_of(
            began, watch.snapshots("game")[0], watch.updates(), watch.played(), watch.memory_mb, left
        )


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()


class _Watch:
    """Reads what a side tells, and looks at its processes at those moments and in between."""

    def __init__(self, marks: Path, processes: Processes) -> None:
        self._marks = marks
        self._processes = processes
        self._told: list[tuple[dict[str, Any], Counter[str]]] = []
        self._position = 0
        self.memory_mb = 0.0
        self.failure = ""

    def follow(self, process: "subprocess.Popen[bytes]", deadline: float) -> None:
        look_at = memory_at = 0.0
        while process.poll() is None and not self.failure:
            now = time.time()
            if now > deadline:
                self.failure = "it took longer than --limit-s"
            if now >= memory_at:
                self.memory_mb = max(self.memory_mb, self._processes.memory_mb())
                memory_at = time.time() + _MEMORY_S
            if self._read() or now >= look_at:
                look_at = time.time() + _LOOK_S
                self._processes.look()
            time.sleep(_POLL_S)
        self._read()

    def snapshots(self, what: str) -> list[Snapshot]:
        return [Snapshot(told["at"], cpu_s) for told, cpu_s in self._told if told["what"] == what]

    def updates(self) -> list[tuple[Snapshot, int]]:
        steps = [told["steps"] for told, _ in self._told if told["what"] == "update"]
        return list(zip(self.snapshots("update"), steps, strict=True))

    def played(self) -> list[int]:
        return [told["played"] for told, _ in self._told if told["what"] == "batch"]

    def _read(self) -> bool:
        with self._marks.open(encoding="utf-8") as file:
            file.seek(self._position)
            lines = file.readlines()
            self._position = file.tell()
        for line in lines:
            told = json.loads(line)
            self._told.append((told, self._processes.look()))
            if told["what"] == "failed":
                self.failure = told["reason"]
        return bool(lines)
