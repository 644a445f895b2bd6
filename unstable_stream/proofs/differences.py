"""A difference between what is recorded and what follows from its causes; how two JSON bodies differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

__all__ = ["Difference", "differing_fields"]

_LONGEST_VALUE: Final = 200
_SHOWN_BEFORE: Final = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between a record and its causes."""

    where: str
    """``topic[partition]@offset`` of the record, or of its cause if there is no record."""
    event_id: str
    what: str
    """The difference in words."""
    field: str | None = None
    """Path of the first field that differs, e.g. ``$.turns[3].observation``."""
    recorded: str | None = None
    """The recorded value as JSON, shortened."""
    recomputed: str | None = None
    """The recomputed value as JSON, shortened."""

    def __str__(self) -> str:
        text = f"{self.where} (event {self.event_id}): {self.what}"
        if self.field is None:
            return text
        return f"{text}: {self.field} is {self.recorded}, recomputed {self.recomputed}"


def differing_fields(recorded: bytes, recomputed: bytes) -> list[tuple[str, str, str]]:
    """Return the path, the recorded and the recomputed value of each difference of two JSON bodies.

    The result is empty if the values are equal and only their spelling differs.
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
            # Two long texts are shown from shortly before their first difference.
            pairs = zip(recorded, recomputed, strict=False)
            same = next((place for place, (one, other) in enumerate(pairs) if one != other), 0)
        found.append((path, _shown(recorded, same), _shown(recomputed, same)))


def _shown(value: Any, same: int) -> str:
    if isinstance(value, str) and same > _LONGEST_VALUE // 2:
        value = "…" + value[same - _SHOWN_BEFORE :]
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
