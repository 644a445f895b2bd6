"""What we publish is read by tools that know nothing of us: librdkafka, the CloudEvents SDK, JSON Schema."""

import json
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka
import jsonschema
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event
from cloudevents.core.v1.event import CloudEvent
from msgspec.structs import replace

from tests.interoperability.conftest import MakeTopics, ReadMessages
from unstable_stream.events import EVENT_TYPES, Event, decode_event
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import TOPICS_DIR, load_topics

GOLDEN = {
    path.name.split(".")[0]: decode_event(path.read_bytes())
    for path in (TOPICS_DIR / "golden").glob("*.json")
}


def cloud_event(message: confluent_kafka.Message) -> CloudEvent:
    """The event of a message, by the CloudEvents SDK."""
    headers = message.headers()
    assert len(headers) == len(dict(headers)), "no header twice"
    parsed = from_kafka_event(KafkaMessage(headers=dict(headers), key=message.key(), value=message.value()))
    assert isinstance(parsed, CloudEvent)
    return parsed


def validator(name: str) -> jsonschema.Draft202012Validator:
    """From the file a reader in another language would use."""
    files: list[Path] = list((TOPICS_DIR / "schemas").glob(f"{name}.v*.json"))
    newest = max(files, key=lambda path: int(path.name.split(".v")[1].removesuffix(".json")))
    return jsonschema.Draft202012Validator(json.loads(newest.read_text(encoding="utf-8")))


async def test_every_event_type_is_a_cloud_event_to_independent_readers(
    log: EventLog, fresh_topics: MakeTopics, read_independently: ReadMessages
) -> None:
    assert set(GOLDEN) == set(EVENT_TYPES)
    names = await fresh_topics(*load_topics())
    records = [replace(record_from_event(event), topic=names[event.TOPIC]) for event in GOLDEN.values()]
    await log.append(records)

    messages = read_independently(list(names.values()), len(records))

    seen: dict[str, Event] = {}
    for message in messages:
        parsed = cloud_event(message)
        body = parsed.get_data()
        assert isinstance(body, dict)
        name = body["type"]
        seen[name] = event = GOLDEN[name]
        assert message.topic() == names[type(event).TOPIC]
        assert name in load_topics()[type(event).TOPIC].events
        assert parsed.get_id() == event.event_id
        assert parsed.get_type() == f"unstable_stream.{name}.v{event.schema_version}"
        assert parsed.get_source() == f"/unstable_stream/runs/{event.run_id}"
        assert parsed.get_specversion() == "1.0"
        assert parsed.get_time() == datetime.fromtimestamp(event.occurred_at_ms / 1000, tz=UTC)
        assert parsed.get_datacontenttype() == "application/json"
        assert parsed.get_dataschema() == validator(name).schema["$id"]
        assert parsed.get_extension("partitionkey") == event.key == message.key().decode()
        assert message.timestamp() == (confluent_kafka.TIMESTAMP_CREATE_TIME, event.occurred_at_ms)
        validator(name).validate(body)
        assert decode_event(message.value()) == event
    assert seen == GOLDEN


async def test_a_key_goes_to_the_partition_any_java_client_would_pick(
    log: EventLog, kafka_bootstrap: str, fresh_topics: MakeTopics, read_independently: ReadMessages
) -> None:
    topic = (await fresh_topics("steps"))["steps"]
    partitions = load_topics()["steps"].partitions
    record = replace(record_from_event(GOLDEN["step"]), topic=topic)
    keys = [f"game-{index}" for index in range(40)]
    await log.append([replace(record, key=key) for key in keys])
    # librdkafka's name for the Java client's partitioner.
    foreign = confluent_kafka.Producer(
        {"bootstrap.servers": kafka_bootstrap, "partitioner": "murmur2_random"}
    )
    for key in keys:
        foreign.produce(topic, key=key, value=record.value)
    assert foreign.flush(30) == 0

    placed: dict[str, list[int]] = {}
    for message in read_independently([topic], 2 * len(keys)):
        placed.setdefault(message.key().decode(), []).append(message.partition())
    assert all(len(where) == 2 and where[0] == where[1] for where in placed.values()), placed
    assert len({where[0] for where in placed.values()}) == partitions
