"""CPU time and memory of all processes of a side (Linux).

Ray's processes are nobody's children, so those of a side are known by a variable of their environment. A
process that ends keeps what it had spent when it was last looked at.
"""

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.step_cost import process_name

MARK: Final = "UNSTABLE_STREAM_WHOLE_RUN"
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_END_S: Final = 20.0
"""Seconds that processes have to end after their side has: Ray's take some on a busy machine."""


@dataclass(slots=True)
class _Process:
    name: str
    cpu_s: float


class Processes:
    """The processes whose environment holds ``{MARK}={mark}``."""

    def __init__(self, mark: str) -> None:
        self._entry = f"{MARK}={mark}".encode()
        # By number and start: a number is used again.
        self._ours: dict[tuple[int, str], _Process] = {}
        self._others: set[tuple[int, str]] = set()

    def look(self) -> Counter[str]:
        """Return the CPU seconds so far by kind of process, those of ended ones included."""
        self._alive()
        seconds: Counter[str] = Counter()
        for process in self._ours.values():
            seconds[process.name] += process.cpu_s  # type: ignore[assignment]  # typeshed counts in whole numbers
        return seconds

    def memory_mb(self) -> float:
        """Return the memory of those that live, MiB; what several share counts once (PSS)."""
        kilobytes = 0
        for number, _ in self._alive():
            try:
                text = Path(f"/proc/{number}/smaps_rollup").read_text(encoding="utf-8")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has ended
            kilobytes += next(
                (int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0
            )
        return kilobytes / 1024

    def end(self, wait_s: float = _END_S) -> list[str]:
        """Wait until none lives; kill those that stay, and return their names."""
        deadline = time.monotonic() + wait_s
        while (alive := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.2)
        for number, _ in alive:
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return [self._ours[key].name for key in alive]

    def _alive(self) -> list[tuple[int, str]]:
        """Look at all processes; return those of the side that live."""
        found = []
        for place in Path("/proc").iterdir():
            if not place.name.isdecimal():
                continue
            try:
                # After the name in brackets, which may hold blanks.
                fields = (place / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                key = (int(place.name), fields[19])
                # Of the kernel's threads there are a hundred, which are the children of the second process.
                if key in self._others or fields[1] == "2" or not self._is_ours(key, place):
                    continue
                name = _name(place)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has ended
            cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND
            known = self._ours.get(key)
            # What has ended and is not waited for yet has no name any more, and Ray renames an idle worker.
            if known is not None and name in ("", "IDLE"):
                name = known.name
            self._ours[key] = _Process(name or "others", cpu_s)
            if fields[0] != "Z":
                found.append(key)
        return found

    def _is_ours(self, key: tuple[int, str], place: Path) -> bool:
        if key in self._ours:
            return True
        entries = (place / "environ").read_bytes().split(b"\0")
        if self._entry in entries:
            return True
        # While a process is being replaced by another program its environment is empty for a moment.
        if entries != [b""]:
            self._others.add(key)
        return False


def _name(place: Path) -> str:
    command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    if "benchmarks.peers.whole_run." in command:
        return "driver"
    return process_name(command, int(place.name)) if command else ""
