"""The AsyncAPI 3.0 document of the whole system, and the JSON Schema of each event, for other systems.

The document has every topic, its senders and receivers, its messages. msgspec derives the schemas from the
event classes. They use the dialect that every AsyncAPI tool must know (JSON Schema draft 7), so arrays of
fixed positions become ``items`` lists. ``topics/asyncapi.json`` and ``topics/schemas/`` hold both.

Sources: AsyncAPI specification 3.0.0; its Kafka bindings 0.5.0; CloudEvents Kafka protocol binding 1.0.
"""

import functools
import inspect
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from unstable_stream.events import EVENT_TYPES, Event, field_description
from unstable_stream.events.descriptions import plain_text
from unstable_stream.log.port import TopicSpec
from unstable_stream.log.records import schema_uri
from unstable_stream.log.topics import load_topics
from unstable_stream.version import __version__

_BINDING_VERSION: Final = "0.5.0"


@functools.cache
def recorded_structs() -> tuple[type[msgspec.Struct], ...]:
    """Return the event classes and the structs nested in them, in order of first appearance."""
    found: dict[type[msgspec.Struct], None] = {}

    def look(part: object) -> None:
        if isinstance(part, msgspec.inspect.StructType):
            found.setdefault(part.cls)
            for field in part.fields:
                look(field.type)
        elif isinstance(part, msgspec.inspect.Type):
            for name in part.__struct_fields__:
                inner = getattr(part, name)
                for child in inner if isinstance(inner, tuple) else (inner,):
                    look(child)

    for described in msgspec.inspect.multi_type_info(EVENT_TYPES.values()):
        look(described)
    return tuple(found)


def event_schemas(
    events: Iterable[type[Event]], ref_template: str = "#/$defs/{name}"
) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """Return the JSON Schema of each event class, and the schemas by name that they refer to, all described.

    Args:
        events: event classes.
        ref_template: the form of a reference to a named schema.
    """
    heads, components = msgspec.json.schema_components(events, ref_template=ref_template)
    for struct in recorded_structs():
        schema = components.get(struct.__name__)
        if schema is None:
            continue
        if struct.__doc__:
            schema["description"] = plain_text(inspect.cleandoc(struct.__doc__), null="null")
        # A struct that is written as an array has positions instead of names.
        fields = schema["properties"] if "properties" in schema else schema["prefixItems"]
        for place, name in enumerate(struct.__struct_fields__):
            key = name if isinstance(fields, dict) else place
            fields[key] = {
                **fields[key],
                "description": plain_text(field_description(struct, name), null="null"),
            }
    return heads, components


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


def document() -> dict[str, Any]:
    """Return the document as nested JSON values."""
    topics = load_topics().values()
    _, schemas = event_schemas(EVENT_TYPES.values(), "#/components/schemas/{name}")
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "unstable_stream",
            "version": __version__,
            "description": "Self-play reinforcement learning for language models on text games. "
            "Events are CloudEvents in the binary mode of the Kafka protocol binding.",
            "license": {"name": "MIT"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "kafka": {
                "host": "{bootstrap}",
                "protocol": "kafka",
                "description": 'The brokers of the run, as in log = "kafka://HOST:PORT".',
                "variables": {"bootstrap": {"default": "127.0.0.1:9092", "description": "host:port"}},
            }
        },
        "channels": {topic.name: _channel(topic) for topic in topics},
        "operations": dict(_operations(topics)),
        "components": {
            "messages": {event: _message(event, topic) for topic in topics for event in topic.events},
            "schemas": {name: _draft_7(schema) for name, schema in sorted(schemas.items())},
        },
    }


def _channel(topic: TopicSpec) -> dict[str, Any]:
    return {
        "address": topic.name,
        "description": topic.description,
        "servers": [{"$ref": "#/servers/kafka"}],
        "messages": {event: {"$ref": f"#/components/messages/{event}"} for event in topic.events},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": {
                    "cleanup.policy": [topic.cleanup_policy],
                    "retention.ms": -1 if topic.retention_ms is None else topic.retention_ms,
                    "max.message.bytes": topic.max_message_bytes,
                },
                "bindingVersion": _BINDING_VERSION,
            }
        },
    }


def _operations(topics: Iterable[TopicSpec]) -> Iterable[tuple[str, dict[str, Any]]]:
    for topic in topics:
        for action, verb, parties in (
            ("send", "sends", topic.writers),
            ("receive", "receives", topic.readers),
        ):
            for party in parties:
                name = f"{re.sub(r'[^a-z0-9]+', '-', party.lower()).strip('-')}-{verb}-{topic.name}"
                yield (
                    name,
                    {
                        "action": action,
                        "channel": {"$ref": f"#/channels/{topic.name}"},
                        "summary": f"{party}: {verb} {topic.name}.",
                        "messages": [
                            {"$ref": f"#/channels/{topic.name}/messages/{event}"} for event in topic.events
                        ],
                    },
                )


def _message(event: str, topic: TopicSpec) -> dict[str, Any]:
    event_class = EVENT_TYPES[event]
    summary = (event_class.__doc__ or "").strip().partition("\n")[0]
    return {
        "name": event,
        "title": event_class.__name__,
        "summary": summary,
        "contentType": "application/json",
        "headers": _headers(event),
        "payload": {"$ref": f"#/components/schemas/{event_class.__name__}"},
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": topic.key},
                "bindingVersion": _BINDING_VERSION,
            }
        },
    }


def _headers(event: str) -> dict[str, Any]:
    """The CloudEvents attributes, as :mod:`~unstable_stream.log.records` writes them."""
    name = f"unstable_stream.{event}.v{EVENT_TYPES[event].SCHEMA_VERSION}"
    return {
        "type": "object",
        "required": [
            "ce_specversion",
            "ce_id",
            "ce_type",
            "ce_source",
            "ce_time",
            "ce_dataschema",
            "content-type",
        ],
        "properties": {
            "ce_specversion": {"type": "string", "const": "1.0"},
            "ce_id": {"type": "string", "description": "The event id: the same cause gives the same id."},
            "ce_type": {"type": "string", "const": name},
            "ce_source": {"type": "string", "pattern": "^/unstable_stream/runs/", "description": "The run."},
            "ce_time": {"type": "string", "format": "date-time"},
            "ce_dataschema": {
                "type": "string",
                "const": schema_uri(event, EVENT_TYPES[event].SCHEMA_VERSION),
                "description": "The `$id` of the body's JSON Schema.",
            },
            "content-type": {"type": "string", "const": "application/json"},
        },
    }


# ``Any``: JSON Schema nests freely.
def _draft_7(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_draft_7(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    lifted = {key: _draft_7(value) for key, value in schema.items()}
    if "prefixItems" in lifted:
        rest = lifted.pop("items", None)
        lifted["items"] = lifted.pop("prefixItems")
        if rest is not None:
            lifted["additionalItems"] = rest
    return lifted
