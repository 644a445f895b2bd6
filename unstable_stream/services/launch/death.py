"""The error of which a process died: it writes the error to a file beside its output before it ends.

A process that could not (killed, crashed, out of memory, a full disk) leaves its last lines.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Final

import msgspec

_READ_BYTES: Final = 16 * 1024
_LINES: Final = 3
_LONGEST: Final = 600
"""Characters of an error that are shown; the whole is in the process's output."""


class Death(msgspec.Struct, frozen=True):
    """The error of which a process died."""

    type: str
    message: str = ""
    retriable: bool = False
    """Whether the next start may go well although nobody changes anything."""
    final: bool = False
    """Whether it must not start again before somebody has mended the cause."""
    pid: int = 0

    def __str__(self) -> str:
        return _shortened(": ".join(filter(None, (self.type, self.message))))

    def is_like(self, other: "Death | None") -> bool:
        """Return whether it is the same but for numbers and addresses in the message."""
        return other is not None and (self.type, _plain(self.message)) == (other.type, _plain(other.message))


def write_death(output: Path, error: BaseException) -> None:
    """Write the error of which this process dies; ``output`` is the file that it prints to."""
    death = Death(
        type(error).__name__,
        str(error).encode(errors="replace").decode(),  # JSON takes no halves of characters
        retriable=getattr(error, "retriable", False) is True,
        final=getattr(error, "final", False) is True,
        pid=os.getpid(),
    )
    with contextlib.suppress(OSError):  # it dies of something else, and its last lines are shown
        _beside(output).parent.mkdir(parents=True, exist_ok=True)
        _beside(output).write_bytes(msgspec.json.encode(death))


class Output:
    """The output of a process that is about to start, at the end of a file."""

    def __init__(self, path: Path) -> None:
        """``path``: the file; the death of the process before is forgotten."""
        self.path = path
        self._start = path.stat().st_size if path.exists() else 0
        with contextlib.suppress(OSError):  # that the directory is none is said by the start
            _beside(path).unlink(missing_ok=True)

    def death(self, pid: int | None = None) -> Death | None:
        """Return the error that the process has written; ``None``: none, or it cannot be read from here.

        ``pid`` passes over what another process has written there, as a launcher of the same run.
        """
        try:
            death = msgspec.json.decode(_beside(self.path).read_bytes(), type=Death)
        except (OSError, msgspec.DecodeError):
            return None
        return death if pid in (None, death.pid) else None

    def last_lines(self) -> str:
        """Return the last lines that it has printed, in one line; empty: none, or they are not here."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._start, end - _READ_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return _shortened(" | ".join([line.strip() for line in lines if line.strip()][-_LINES:]))


def _beside(output: Path) -> Path:
    return output.with_suffix(".error.json")


def _plain(message: str) -> str:
    return re.sub(r"0x[0-9a-f]+|[0-9]+", "#", message)


def _shortened(error: str) -> str:
    """Return an error without line breaks, and not longer than a person reads."""
    line = " ".join(error.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
