"""Judge how the present JSON Schemas of events get on with those of the last release.

``make compatibility`` prints a verdict for each event that has changed and fails unless all are ``FULL``:

- ``BACKWARD``: what is recorded can be read by the new schema;
- ``FORWARD``: what is recorded from now on can be read by the old one;
- ``FULL``: both; ``NONE``: neither.

A reader passes over fields that it does not know and takes the default of one that is missing. An event of
which ``SCHEMA_VERSION`` was raised is another event here, since an upcast reads the old one. ``--release``
takes the present schemas as those of a release: their fields are in ``topics/released.json``.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from tools.pages.asyncapi import event_schema, schema_file_name
from unstable_stream.events import EVENT_TYPES

RELEASED: Final = Path(__file__).parent.parent / "topics" / "released.json"
_WORDS: Final = frozenset({"description", "title", "default"})
_NUMBERS: Final = ('{"type": "integer"}', '{"type": "number"}')


class Field(NamedTuple):
    """A field of an event, or of a struct in it."""

    types: tuple[str, ...]
    """Schemas of which a value fits one."""
    required: bool


Fields: TypeAlias = dict[str, Field]
"""By ``Struct.field``; of a struct that is written as an array, ``Struct.0``."""


class Verdict(NamedTuple):
    """What a change does."""

    backward: bool
    forward: bool
    reasons: list[str]

    @property
    def name(self) -> str:
        """The word for both."""
        return ("NONE", "FORWARD", "BACKWARD", "FULL")[2 * self.backward + self.forward]


# ``Any``: JSON Schema nests freely.
def fields_of(schema: Mapping[str, Any]) -> Fields:
    """Return the fields of an event's schema."""
    return dict(_fields(schema["$defs"]))


def _fields(structs: Mapping[str, Any]) -> Iterator[tuple[str, Field]]:
    for struct, schema in structs.items():
        if "prefixItems" in schema:
            for place, inner in enumerate(schema["prefixItems"]):
                yield f"{struct}.{place}", Field(_types(inner), place < schema.get("minItems", 0))
        for name, inner in schema.get("properties", {}).items():
            yield f"{struct}.{name}", Field(_types(inner), name in schema.get("required", ()))


def _types(schema: Any) -> tuple[str, ...]:
    options = schema.get("anyOf", [schema])
    return tuple(sorted(json.dumps(_without_words(option), sort_keys=True) for option in options))


def _without_words(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_words(value) for key, value in schema.items() if key not in _WORDS}
    return [_without_words(item) for item in schema] if isinstance(schema, list) else schema


def judge(old: Fields, new: Fields) -> Verdict:
    """Compare the fields of one event."""
    backward = forward = True
    reasons = []
    for name in sorted(old.keys() | new.keys()):
        reads_old, reads_new, reason = _judge_field(old.get(name), new.get(name))
        backward, forward = backward and reads_old, forward and reads_new
        if reason:
            reasons.append(f"{name} {reason}")
    return Verdict(backward, forward, reasons)


def _judge_field(old: Field | None, new: Field | None) -> tuple[bool, bool, str]:
    """Return whether the new reader reads the old field, whether the old one the new, and what changed."""
    if old is None or new is None:
        field, done = (new, "added") if old is None else (old, "removed")
        assert field is not None
        reads = not field.required
        kind = "required" if field.required else "optional"
        return (reads, True, f"{done}, {kind}") if old is None else (True, reads, f"{done}, {kind}")
    backward = _takes(new.types, old.types) and (old.required or not new.required)
    forward = _takes(old.types, new.types) and (new.required or not old.required)
    reasons = []
    if old.types != new.types:
        reasons.append(f"changed its type from {' or '.join(old.types)} to {' or '.join(new.types)}")
    if old.required != new.required:
        reasons.append(f"became {'required' if new.required else 'optional'}")
    return backward, forward, " and ".join(reasons)


def _takes(reader: tuple[str, ...], written: tuple[str, ...]) -> bool:
    integer, number = _NUMBERS
    return all(each in reader or (each == integer and number in reader) for each in written)


def present() -> dict[str, Fields]:
    """Return the fields of each event as they are, by event and version: ``step.v1``."""
    return {
        schema_file_name(name).removesuffix(".json"): fields_of(event_schema(name)) for name in EVENT_TYPES
    }


def released() -> dict[str, Fields]:
    """Return the same as of the last release."""
    stored = json.loads(RELEASED.read_text(encoding="utf-8"))
    return {
        event: {name: Field(tuple(types), required) for name, (types, required) in fields.items()}
        for event, fields in stored.items()
    }


def verdicts(old: Mapping[str, Fields], new: Mapping[str, Fields]) -> dict[str, Verdict]:
    """Return the verdict of each released event; one that is gone was removed, unless its version rose."""
    raised = {event.rpartition(".v")[0] for event in new.keys() - old.keys()}
    return {
        event: judge(fields, new[event]) if event in new else Verdict(False, False, ["removed"])
        for event, fields in old.items()
        if event in new or event.rpartition(".v")[0] not in raised
    }


def main() -> None:
    """Print verdicts; status 1 where one is not ``FULL``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--release", action="store_true", help="take the present schemas as released")
    if parser.parse_args().release:
        lines = [f'"{event}": {json.dumps(fields)}' for event, fields in sorted(present().items())]
        RELEASED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    found = verdicts(released(), present())
    for event, verdict in found.items():
        if verdict.reasons:
            print(f"{event}: {verdict.name}: {'; '.join(verdict.reasons)}")
    broken = [event for event, verdict in found.items() if verdict.name != "FULL"]
    print(f"{len(found)} events, {len(found) - len(broken)} FULL")
    if broken:
        sys.exit(
            f"not FULL: {', '.join(broken)}. Give new fields defaults, or raise SCHEMA_VERSION with an upcast"
        )


if __name__ == "__main__":
    main()
