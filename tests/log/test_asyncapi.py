"""The AsyncAPI document is the stored one, holds together, and describes the records we really write."""

import functools
import json
import operator
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest

from tools.pages.asyncapi import document, event_schema
from unstable_stream.events import EVENT_TYPES, decode_event
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import TOPICS_DIR, load_topics

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
    if isinstance(node, dict) and isinstance(node.get("$ref"), str):
        yield node["$ref"]
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from references(inner)


def resolve(reference: str) -> Any:
    assert reference.startswith("#/")
    return functools.reduce(operator.getitem, reference[2:].split("/"), DOCUMENT)


def test_every_reference_leads_somewhere() -> None:
    found = list(references(DOCUMENT))
    assert len(found) > 100
    assert all(isinstance(resolve(reference), dict) for reference in found)


def test_objects_have_the_fields_the_specification_gives_them() -> None:
    assert re.fullmatch(r"3\.0\.\d+", DOCUMENT["asyncapi"])
    assert {"title", "version"} <= DOCUMENT["info"].keys()
    assert DOCUMENT.keys() == FIELDS["root"]
    for kind, objects in (
        ("server", DOCUMENT["servers"]),
        ("channel", DOCUMENT["channels"]),
        ("operation", DOCUMENT["operations"]),
        ("message", DOCUMENT["components"]["messages"]),
    ):
        for name, value in objects.items():
            assert re.fullmatch(r"[A-Za-z0-9_.\-]+", name)
            assert value.keys() == FIELDS[kind], name
            if "bindings" in value:
                assert value["bindings"]["kafka"].keys() == FIELDS[f"{kind} binding"]


def test_channels_and_operations_are_the_declared_topics() -> None:
    topics = load_topics()
    assert list(DOCUMENT["channels"]) == list(topics)
    parties = set()
    for each in DOCUMENT["operations"].values():
        channel, party = each["channel"]["$ref"], each["summary"].split(":")[0]
        parties.add((each["action"], channel.split("/")[-1], party))
        # An operation may name only messages of its own channel, and through it.
        assert all(message["$ref"].startswith(f"{channel}/messages/") for message in each["messages"])
    assert parties == {
        (action, topic.name, party)
        for topic in topics.values()
        for action, members in (("send", topic.writers), ("receive", topic.readers))
        for party in members
    }
    for name, topic in topics.items():
        channel = DOCUMENT["channels"][name]
        bindings = channel["bindings"]["kafka"]
        assert (channel["address"], tuple(channel["messages"])) == (name, topic.events)
        assert (bindings["partitions"], bindings["topicConfiguration"]) == (
            topic.partitions,
            {
                "cleanup.policy": [topic.cleanup_policy],
                "retention.ms": topic.retention_ms or -1,
                "max.message.bytes": topic.max_message_bytes,
            },
        )


def validator(reference: str) -> jsonschema.Draft7Validator:
    """Of a schema that stands alone: the document's schemas beside the one that is meant."""
    schema = {"$ref": reference, "components": DOCUMENT["components"]}
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


@pytest.mark.parametrize("event", sorted(EVENT_TYPES))
def test_recorded_events_and_the_headers_we_write_fit_their_message(event: str) -> None:
    message = DOCUMENT["components"]["messages"][event]
    payload = validator(message["payload"]["$ref"])
    path = TOPICS_DIR / "golden" / f"{event}.v{EVENT_TYPES[event].SCHEMA_VERSION}.json"
    body = json.loads(path.read_bytes())
    payload.validate(body)
    for broken in ({**body, "event_id": 3}, {k: v for k, v in body.items() if k != "run_id"}):
        assert not payload.is_valid(broken)
    recorded = msgspec.structs.replace(decode_event(path.read_bytes()), occurred_at_ms=1_700_000_000_000)
    headers = {name: value.decode() for name, value in record_from_event(recorded).headers.items()}
    jsonschema.Draft7Validator(message["headers"]).validate(headers)
    assert set(message["headers"]["required"]) == headers.keys()
    assert headers["ce_dataschema"] == event_schema(event)["$id"]


def test_arrays_of_fixed_positions_are_held_to_them() -> None:
    action = validator("#/components/schemas/Action")
    assert action.is_valid([0, "[3]", True])
    assert not action.is_valid(["[3]", 0])
