"""What we publish is read by tools that know nothing of us: librdkafka, the CloudEvents SDK, JSON Schema."""

import contextlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka
import jsonschema
import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event
from cloudevents.core.v1.event import CloudEvent
from msgspec.structs import replace

from tests.interoperability.conftest import MakeTopics, ReadMessages
from unstable_stream.events import EVENT_TYPES, Event, decode_event
from unstable_stream.log.port import EventLog, Producer, Record
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


@pytest.mark.parametrize("name", ["trajectory", "game-outcome"])
def test_the_schemas_can_tell_a_wrong_body(name: str) -> None:
    body = json.loads((TOPICS_DIR / "golden" / f"{name}.v1.json").read_bytes())
    validator(name).validate(body)
    for wrong in (body | {"env_id": 7}, {key: value for key, value in body.items() if key != "game_id"}):
        with pytest.raises(jsonschema.ValidationError):
            validator(name).validate(wrong)


async def test_independent_readers_see_transactions_whole_or_not_at_all(
    log: EventLog, fresh_topics: MakeTopics, read_independently: ReadMessages
) -> None:
    topics = list((await fresh_topics("games", "game-outcomes")).values())
    started, outcome = GOLDEN["game-started"], GOLDEN["game-outcome"]
    both = [
        replace(record_from_event(started), topic=topics[0]),
        replace(record_from_event(outcome), topic=topics[1]),
    ]
    producer = await log.producer(f"interoperability-{topics[0]}")

    await publish(producer, both, then_give_up=True)
    await publish(producer, both)
    await producer.close()

    assert sorted(cloud_event(message).get_type() for message in read_independently(topics, 2)) == [
        "unstable_stream.game-outcome.v1",
        "unstable_stream.game-started.v1",
    ]


async def publish(producer: Producer, records: Sequence[Record], *, then_give_up: bool = False) -> None:
    class ChangedItsMindError(Exception):
        pass

    with contextlib.suppress(ChangedItsMindError):
        async with producer.transaction() as transaction:
            await transaction.append(records)
            if then_give_up:
                raise ChangedItsMindError


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
