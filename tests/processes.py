"""What a test asks of processes that are not its own, and that may end while it asks."""

import os
import signal

import psutil

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
