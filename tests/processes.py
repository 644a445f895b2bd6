"""Processes that tests start, and what they ask of those that are not their own and may end meanwhile."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import psutil

ROOT = Path(__file__).parents[1]
DEADLINE_S = 100.0

_GONE = (psutil.Error, OSError)
"""``NoSuchProcess``, ``ZombieProcess``, ``AccessDenied`` of one that changes its user, and what /proc raises
of one that ends while it is read."""


def command_of(process: psutil.Process) -> str:
    """Return the command line; empty if the process has ended."""
    try:
        return " ".join(process.cmdline())
    except _GONE:
        return ""


def children_of(process: psutil.Process) -> list[psutil.Process]:
    """Return all processes below one; none if it has ended."""
    try:
        found: list[psutil.Process] = process.children(recursive=True)
    except _GONE:
        return []
    return found


def still_runs(process: psutil.Process | int) -> bool:
    """Return whether a process, or the one of a pid, has not ended; a zombie has."""
    try:
        known = psutil.Process(process) if isinstance(process, int) else process
        return bool(known.is_running() and known.status() != psutil.STATUS_ZOMBIE)
    except _GONE:
        return False


def send(process: psutil.Process | int, number: int = signal.SIGKILL) -> bool:
    """Send a signal; return false if the process has ended."""
    try:
        if isinstance(process, int):
            os.kill(process, number)
        else:
            process.send_signal(number)
    except _GONE:
        return False
    return True


def end_together(processes: list[psutil.Process], *, within_s: float) -> list[psutil.Process]:
    """Wait for the ends of processes; return those that still run."""
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return [process for process in alive if still_runs(process)]


def completed(*command: object, timeout: float = 300, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end, which may be any; return that, and what it printed."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, **options)


def python(program: str, *arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a program in Python, with further variables, to its end."""
    return completed(sys.executable, "-c", program, *arguments, cwd=ROOT, env={**os.environ, **environment})


class Service:
    """A command in a process of its own, which is killed on leaving ``with``; what it prints is in a file."""

    def __init__(self, output: Path, *command: str, **environment: str) -> None:
        output.parent.mkdir(parents=True, exist_ok=True)
        self._output = output
        with output.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    @property
    def printed(self) -> str:
        """What it has printed so far."""
        return self._output.read_text(errors="replace")

    async def end(self, number: int | None = signal.SIGTERM, within_s: float = DEADLINE_S) -> int:
        """Send a signal, if one is given; return the status that it ends with."""
        if number is not None:
            self.process.send_signal(number)
        try:
            return await asyncio.to_thread(self.process.wait, within_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"it did not end, and said:\n{self.printed}") from error


async def until(holds: Callable[[], bool | Awaitable[bool]], *needed: Service) -> None:
    """Wait for a condition; fails at the deadline, or if a service that is needed for it ends before."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found if isinstance(found := holds(), bool) else await found):
        assert all(each.process.poll() is None for each in needed), [each.printed for each in needed]
        assert time.monotonic() < deadline, [each.printed for each in needed]
        await asyncio.sleep(0.02)
