"""Find the error that matters in what a process printed, and tell whether two errors are the same.

What a process printed last is often only an echo: vLLM's engine process prints the cause, and the process
that waited for it ends with ``Engine core initialization failed. See root cause above``.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

__all__ = ["ENDED_SILENTLY", "Output", "last_error", "same_error"]

ENDED_SILENTLY: Final = "its process ended without a word: killed, or out of memory"
"""The reason of a death that left none."""

_READ_BYTES: Final = 512 * 1024
_LONGEST: Final = 600
"""Characters of an error that are shown; the whole is in the log."""

# What vLLM and Ray put before the lines of their processes.
_PREFIX: Final = re.compile(
    r"^(?:\x1b\[[0-9;]*m)*(?:\([^()]*\bpid=\d+[^()]*\)(?:\x1b\[[0-9;]*m)* ?)?"
    r"(?:(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?"
)
# The last line of a traceback, or one of our own errors: a type that is named as an error, and its message.
_ERROR: Final = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?P<kind>[A-Z]\w*(?:Error|Exception|Exit|Interrupt))(?:: (?P<says>.*))?$"
)
# Any other type, where a traceback has prepared for it.
_ANY_ERROR: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?P<kind>[A-Za-z_]\w*)(?:: (?P<says>.*))?$")
_CRASH: Final = re.compile(r"^(?:Fatal Python error: |  what\(\):  )(?P<says>.+)$")
_ECHO: Final = re.compile(
    r"EngineDeadError|[Ss]ee (?:the )?(?:root cause|stack trace) \(?above|initialization failed due to|"
    r"EngineCore encountered an issue|engine process .* has died|^(?:CancelledError|KeyboardInterrupt)"
)
# "1 validation error for ModelConfig" is Pydantic's, which names the setting in the line below it.
_HEADING: Final = re.compile(r":$|^\d+ validation errors? for \w+$")
_VARYING: Final = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{16,}\b|\d+")
# What was wanted of a store that is away, how it failed, and who says so differs from time to time.
_STORE_AWAY: Final = re.compile(r"(?P<store>\w+://[^/\s]*)\S* could not be reached for \d+ s, to ")


class Output:
    """The output at the end of a file from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = path.stat().st_size if path.exists() else 0

    def text(self) -> str:
        """Return what was printed, of much only the end; empty if the file cannot be read from here."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, 2)
                file.seek(max(self._start, end - _READ_BYTES))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""


def last_error(text: str) -> str | None:
    """Return the last error in the output of processes that says what went wrong, as ``Type: message``.

    It is the last line of a traceback with its continuation, an error of one line, the ``error`` of a log
    line for machines, or the message of a crash. An error that only points at another one counts if there
    is no other. ``None``: there is no error.
    """
    found = list(_errors(text))
    causes = [error for error in found if not _ECHO.search(error)]
    return _shortened((causes or found)[-1]) if found else None


def same_error(one: str, other: str) -> bool:
    """Return true if two errors differ at most in numbers (process ids, addresses, times), or both tell that
    the same store was away.
    """
    return _lasting(one) == _lasting(other)


def _lasting(error: str) -> str:
    away = _STORE_AWAY.search(error)
    return _VARYING.sub("0", error if away is None else away["store"])


def _errors(text: str) -> Iterator[str]:
    expected = False  # within a traceback, whose last line follows
    lines = [_PREFIX.sub("", line, count=1).rstrip() for line in text.splitlines()]
    for number, line in enumerate(lines):
        if line.startswith("{"):
            yield from _of_json(line)
        elif line.startswith("Traceback (most recent call last):"):
            expected = True
        elif crash := _CRASH.match(line):
            yield crash["says"]
        elif match := (_ANY_ERROR if expected else _ERROR).match(line):
            expected = False
            yield _joined(match["kind"], match["says"] or "", lines[number + 1 :])
        elif line and not line.startswith(" "):
            expected = False


def _joined(kind: str, says: str, rest: list[str]) -> str:
    """Return one line of an error. A message that is only a heading goes on in the next lines."""
    if _HEADING.search(says):
        says = " ".join([says, *(line.strip() for line in rest[:2])])
    return f"{kind}: {says}" if says else kind


def _of_json(line: str) -> Iterator[str]:
    try:
        fields: Any = json.loads(line)
    except ValueError:
        return
    if isinstance(fields, dict) and fields.get("level") in ("error", "critical"):
        yield str(fields.get("error") or fields.get("event"))


def _shortened(error: str) -> str:
    line = " ".join(error.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
