"""Identify the process that owns a group membership, and tell whether it still runs.

A process is named by its pid and its start time, so that a reused pid is not mistaken for the old
process, within the boot and pid namespace (container) where that pid has a meaning.
"""

import os
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path


class Liveness(Enum):
    """The state of a process, as far as it can be seen from here."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """Another container, or a system without ``/proc``: only a timeout tells."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, for all who share its boot and pid namespace."""

    host: str
    """Boot id and pid namespace."""
    pid: int
    started: str
    """Start time in clock ticks since boot; empty where it cannot be read."""


@cache
def _host() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.uname().nodename


def _state_and_start(pid: int) -> tuple[str, str] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may itself hold spaces and parentheses.
    fields = stat[stat.rindex(")") + 2 :].split()
    return fields[0], fields[19]


def current_process() -> ProcessIdentity:
    """Return the identity of this process."""
    pid = os.getpid()
    found = _state_and_start(pid)
    return ProcessIdentity(host=_host(), pid=pid, started=found[1] if found else "")


def liveness(process: ProcessIdentity) -> Liveness:
    """Tell whether ``process`` still runs; a zombie is dead."""
    if process.host != _host():
        return Liveness.UNKNOWN
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return Liveness.DEAD
    except PermissionError:
        pass  # it exists, under another user
    found = _state_and_start(process.pid)
    if found is None or not process.started:
        return Liveness.UNKNOWN
    state, started = found
    if state in "ZX" or started != process.started:
        return Liveness.DEAD
    return Liveness.ALIVE
