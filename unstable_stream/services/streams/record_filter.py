"""Filter the records of a history by run, by time and by the fields of the event."""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unstable_stream.errors import ConfigError
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.records import json_object, source_header

_ALIASES: Final = {
    "run": ("run_id",),
    "env": ("env_id",),
    "game": ("game_id",),
    "model": ("model_uid", "seats.model_uid"),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One field compared with a pattern."""

    paths: tuple[str, ...]
    """Dotted paths; a path through a list means any item of the list."""
    pattern: str
    """A shell pattern with ``*`` and ``?``."""
    negated: bool = False

    def holds(self, body: Mapping[str, Any]) -> bool:
        """Return whether a value at any of the paths matches; with ``negated``, whether none does."""
        values = (value for path in self.paths for value in _values(body, path.split(".")))
        return any(fnmatch.fnmatchcase(_text(value), self.pattern) for value in values) != self.negated


def parse_condition(text: str) -> Condition:
    """Return the condition ``KEY=PATTERN`` or ``KEY!=PATTERN``; raises :class:`ConfigError`."""
    key, separator, pattern = text.partition("=")
    negated = key.endswith("!")
    key = key.removesuffix("!").strip()
    if not separator or not key:
        raise ConfigError(
            f"--where {text!r}: expected KEY=VALUE or KEY!=VALUE, e.g. env=TicTacToe-v0-train or type=step"
        )
    return Condition(_ALIASES.get(key, (key,)), pattern.strip(), negated)


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Accepts a record that fulfils all of its fields."""

    run_id: str | None = None
    from_ms: int | None = None
    """The earliest time accepted, Unix milliseconds."""
    to_ms: int | None = None
    """The earliest time after the accepted ones, Unix milliseconds."""
    conditions: Sequence[Condition] = ()

    def accepts(self, record: StoredRecord) -> bool:
        """Return whether the record is wanted. A record that is no JSON object has no run and fulfils no
        condition.
        """
        if self.from_ms is not None and record.timestamp_ms < self.from_ms:
            return False
        if self.to_ms is not None and record.timestamp_ms >= self.to_ms:
            return False
        body: Any = None
        if self.run_id is not None:
            source = record.headers.get("ce_source")
            if source is not None:
                if source != source_header(self.run_id):
                    return False
            else:
                body = json_object(record.value) or {}
                if body.get("run_id") != self.run_id:
                    return False
        if not self.conditions:
            return True
        body = (json_object(record.value) or {}) if body is None else body
        return bool(body) and all(condition.holds(body) for condition in self.conditions)


def _values(value: Any, path: Sequence[str]) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _values(item, path)
    elif not path:
        yield value
    elif isinstance(value, dict) and path[0] in value:
        yield from _values(value[path[0]], path[1:])


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
