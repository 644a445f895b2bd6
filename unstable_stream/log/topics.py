"""Read the topics' declarations in ``topics/*.toml``, and write the JSON Schemas of their events."""

import functools
import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from unstable_stream.errors import EventLogError
from unstable_stream.events import EVENT_TYPES, event_schemas
from unstable_stream.log.port import TopicSpec
from unstable_stream.log.records import schema_uri

_PACKAGE = Path(__file__).resolve().parents[1]
# In a checkout the files lie at the top level, where people look for them; a wheel contains a copy.
TOPICS_DIR = _PACKAGE / "_topics" if (_PACKAGE / "_topics").is_dir() else _PACKAGE.parent / "topics"


@functools.cache
def load_topics(directory: Path = TOPICS_DIR) -> Mapping[str, TopicSpec]:
    """Return every declared topic by name.

    Raises:
        EventLogError: a file is malformed; the message names the file and the field.
    """
    specs: dict[str, TopicSpec] = {}
    for path in sorted(directory.glob("*.toml")):
        try:
            spec = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), TopicSpec)
        except (ValueError, RecursionError) as error:  # also of a field of the wrong type
            raise EventLogError(f"{path}: {error}") from error
        if spec.name != path.stem:
            raise EventLogError(f"{path}: name = {spec.name!r} must equal the file name")
        events = tuple(name for name, event in EVENT_TYPES.items() if spec.name == event.TOPIC)
        specs[spec.name] = replace(spec, events=events)
    if not specs:
        raise EventLogError(f"no topic files in {directory}: the installation is incomplete, reinstall it")
    return specs


def schema_file_name(event_type: str) -> str:
    """Return the file name of an event's schema, e.g. ``trajectory.v1.json``."""
    return f"{event_type}.v{EVENT_TYPES[event_type].SCHEMA_VERSION}.json"


def event_schema(event_type: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of an event's body."""
    (head,), named = event_schemas([EVENT_TYPES[event_type]])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": schema_uri(event_type, EVENT_TYPES[event_type].SCHEMA_VERSION),
        **head,
        "$defs": named,
    }


def schema_text(event_type: str) -> str:
    """Return the schema as it is stored in ``topics/schemas/``."""
    return json.dumps(event_schema(event_type), indent=2, sort_keys=True) + "\n"
