"""The AsyncAPI document is the stored one, holds together, and describes the records we really write."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest

from unstable_stream.events import EVENT_TYPES, decode_event
from unstable_stream.log.contracts.asyncapi import document
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import TOPICS_DIR, event_schema, load_topics

DOCUMENT = document()
# The fields the specification has for each object; a name outside is an error for any AsyncAPI tool.
FIELDS = {
    "root": {"asyncapi", "info", "defaultContentType", "servers", "channels", "operations", "components"},
    "server": {"host", "protocol", "description", "variables"},
    "channel": {"address", "description", "servers", "messages", "bindings"},
    "operation": {"action", "channel", "summary", "messages"},
    "message": {"name", "title", "summary", "contentType", "headers", "payload", "bindings"},
    "channel binding": {"topic", "partitions", "topicConfiguration", "bindingVersion"},
    "message binding": {"key", "bindingVersion"},
}


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def resolve(reference: str) -> Any:
    node: Any = DOCUMENT
    assert reference.startswith("#/")
    for part in reference[2:].split("/"):
        node = node[part]
    return node


def payload_schema(event: str) -> dict[str, Any]:
    """A schema that stands alone: the document's schemas beside the one of this event."""
    reference = DOCUMENT["components"]["messages"][event]["payload"]["$ref"]
    return {"$ref": reference, "components": {"schemas": DOCUMENT["components"]["schemas"]}}


def test_every_reference_leads_somewhere() -> None:
    found = list(references(DOCUMENT))
    assert len(found) > 100
    for reference in found:
        assert isinstance(resolve(reference), dict), reference


def test_objects_have_the_fields_the_specification_gives_them() -> None:
    assert re.fullmatch(r"3\.0\.\d+", DOCUMENT["asyncapi"])
    assert {"title", "version"} <= DOCUMENT["info"].keys()
    assert DOCUMENT.keys() == FIELDS["root"]
    messages = DOCUMENT["components"]["messages"]
    for kind, objects in (
        ("server", DOCUMENT["servers"]),
        ("channel", DOCUMENT["channels"]),
        ("operation", DOCUMENT["operations"]),
        ("message", messages),
        ("channel binding", {k: v["bindings"]["kafka"] for k, v in DOCUMENT["channels"].items()}),
        ("message binding", {k: v["bindings"]["kafka"] for k, v in messages.items()}),
    ):
        for name, value in objects.items():
            assert value.keys() == FIELDS[kind], name
            assert re.fullmatch(r"[A-Za-z0-9_.\-]+", name)


def test_channels_are_the_declared_topics() -> None:
    topics = load_topics()
    assert DOCUMENT["channels"].keys() == topics.keys()
    for name, topic in topics.items():
        channel = DOCUMENT["channels"][name]
        assert channel["address"] == name
        assert tuple(channel["messages"]) == topic.events
        assert channel["bindings"]["kafka"]["partitions"] == topic.partitions
        assert channel["bindings"]["kafka"]["topicConfiguration"] == {
            "cleanup.policy": [topic.cleanup_policy],
            "retention.ms": topic.retention_ms or -1,
            "max.message.bytes": topic.max_message_bytes,
        }


def test_writers_send_and_readers_receive() -> None:
    parties = {
        (action, each["channel"]["$ref"].split("/")[-1], each["summary"].split(":")[0])
        for each in DOCUMENT["operations"].values()
        for action in [each["action"]]
    }
    declared = {
        (action, topic.name, party)
        for topic in load_topics().values()
        for action, members in (("send", topic.writers), ("receive", topic.readers))
        for party in members
    }
    assert parties == declared
    for operation in DOCUMENT["operations"].values():
        channel = operation["channel"]["$ref"]
        # An operation may name only messages of its own channel, and through it.
        assert all(message["$ref"].startswith(f"{channel}/messages/") for message in operation["messages"])


@pytest.mark.parametrize("event", sorted(EVENT_TYPES))
def test_recorded_events_fit_their_message(event: str) -> None:
    schema = payload_schema(event)
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    path = TOPICS_DIR / "golden" / f"{event}.v{EVENT_TYPES[event].SCHEMA_VERSION}.json"
    body = json.loads(path.read_bytes())
    validator.validate(body)
    for broken in ({**body, "event_id": 3}, {k: v for k, v in body.items() if k != "run_id"}):
        assert not validator.is_valid(broken)


@pytest.mark.parametrize("event", sorted(EVENT_TYPES))
def test_the_headers_we_write_fit_their_message(event: str) -> None:
    path = TOPICS_DIR / "golden" / f"{event}.v{EVENT_TYPES[event].SCHEMA_VERSION}.json"
    recorded = msgspec.structs.replace(decode_event(path.read_bytes()), occurred_at_ms=1_700_000_000_000)
    headers = {name: value.decode() for name, value in record_from_event(recorded).headers.items()}
    schema = DOCUMENT["components"]["messages"][event]["headers"]
    jsonschema.Draft7Validator(schema).validate(headers)
    assert set(schema["required"]) == headers.keys()
    assert headers["ce_dataschema"] == event_schema(event)["$id"]


def test_arrays_of_fixed_positions_are_held_to_them() -> None:
    validator = jsonschema.Draft7Validator(
        {"$ref": "#/components/schemas/Action", "components": DOCUMENT["components"]}
    )
    assert validator.is_valid([0, "[3]", True])
    assert not validator.is_valid(["[3]", 0])
