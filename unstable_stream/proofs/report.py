"""What a verification found, and how two records differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

__all__ = ["SHOWN", "Check", "Difference", "VerifyReport", "differing_fields"]

SHOWN: Final = 10
"""Differences of a kind that are shown; all are counted."""
_LONGEST_VALUE: Final = 200
_SHOWN_BEFORE: Final = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not what its causes make it."""

    where: str
    """``topic[partition]@offset`` of the record, or of its cause if there is no record."""
    event_id: str
    what: str
    """In words."""
    field: str | None = None
    """Path of the first field that differs, e.g. ``$.turns[3].observation``."""
    recorded: str | None = None
    """What the log says, as JSON, shortened."""
    recomputed: str | None = None
    """What follows from the causes, as JSON, shortened."""

    def __str__(self) -> str:
        text = f"{self.where} (event {self.event_id}): {self.what}"
        if self.field is None:
            return text
        return f"{text}: {self.field} is {self.recorded}, recomputed {self.recomputed}"


@dataclass(slots=True)
class Check:
    """The result for one kind of derived event."""

    name: str
    compared: int = 0
    """Recomputed and found the same or different."""
    differing: int = 0
    pending: int = 0
    """Their causes are in the log, but nobody has processed these yet."""
    gone: int = 0
    """Not in the log any more, by the topic's retention or compaction, so not compared."""
    skipped: str | None = None
    """Why nothing was compared."""
    first: list[Difference] = field(default_factory=list)
    """The first few differences."""

    @property
    def wants_more(self) -> bool:
        """Whether a further difference would still be shown."""
        return len(self.first) < SHOWN

    def differs(self, difference: Difference) -> None:
        """Count a difference; keep it if it is one of the first."""
        self.differing += 1
        if self.wants_more:
            self.first.append(difference)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification found."""

    run_id: str
    state: str
    """``running`` (or killed), ``completed``, ``stopped`` or ``failed``."""
    checks: Sequence[Check]
    notes: Sequence[str] = ()
    """What is no difference of records but may explain one: code that is another here."""

    @property
    def clean(self) -> bool:
        """Whether everything that could be compared is the same."""
        return not any(check.differing for check in self.checks)

    def to_json(self) -> bytes:
        """Return the report as one JSON object."""
        return msgspec.json.encode(
            {
                "run_id": self.run_id,
                "state": self.state,
                "clean": self.clean,
                "checks": self.checks,
                "notes": self.notes,
            }
        )


def differing_fields(recorded: bytes, recomputed: bytes) -> list[tuple[str, str, str]]:
    """Return path, recorded and recomputed value of each place where two JSON bodies differ.

    Empty if the values are equal and only their spelling differs.
    """
    found: list[tuple[str, str, str]] = []
    _walk("$", msgspec.json.decode(recorded), msgspec.json.decode(recomputed), found)
    return found


def _walk(path: str, recorded: Any, recomputed: Any, found: list[tuple[str, str, str]]) -> None:
    if isinstance(recorded, Mapping) and isinstance(recomputed, Mapping):
        for name in [*recorded, *(name for name in recomputed if name not in recorded)]:
            _walk(f"{path}.{name}", recorded.get(name), recomputed.get(name), found)
    elif (
        isinstance(recorded, list)
        and isinstance(recomputed, list)
        and len(recorded) == len(recomputed)
        and len(recorded) > 0
    ):
        for index, (one, other) in enumerate(zip(recorded, recomputed, strict=True)):
            _walk(f"{path}[{index}]", one, other, found)
    elif recorded != recomputed:
        same = 0
        if isinstance(recorded, str) and isinstance(recomputed, str):
            # Two long texts are shown from shortly before the place where they part.
            pairs = zip(recorded, recomputed, strict=False)
            same = next((place for place, (one, other) in enumerate(pairs) if one != other), 0)
        found.append((path, _shown(recorded, same), _shown(recomputed, same)))


def _shown(value: Any, same: int) -> str:
    if isinstance(value, str) and same > _LONGEST_VALUE // 2:
        value = "…" + value[same - _SHOWN_BEFORE :]
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
