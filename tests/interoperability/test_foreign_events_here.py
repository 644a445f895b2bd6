"""What other tools publish is read by our consumer; what is no event of ours is told apart and survives."""

import re
from datetime import UTC, datetime

import confluent_kafka
import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from tests.interoperability.conftest import DEADLINE_S, MakeTopics
from tests.log.harness import read
from unstable_stream.errors import EventDecodeError, UnknownEventError
from unstable_stream.events import Metrics, event_id
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import event_from_record, record_from_event

NOW_MS = 1_790_000_000_123


def metrics_made_elsewhere() -> KafkaMessage:
    """What a metric author without our package would publish."""
    body = {
        "type": "metrics",
        "event_id": event_id("run-foreign", "metrics", "my-dashboard", 1),
        "run_id": "run-foreign",
        "occurred_at_ms": NOW_MS,
        "source": "my-dashboard",
        "values": {"queue_depth": 3.5},
    }
    event = CloudEvent(
        attributes={
            "id": body["event_id"],
            "type": "unstable_stream.metrics.v1",
            "source": "/unstable_stream/runs/run-foreign",
            "time": datetime.fromtimestamp(NOW_MS / 1000, tz=UTC),
            "datacontenttype": "application/json",
            "specversion": "1.0",
            "partitionkey": "my-dashboard",
        },
        data=body,
    )
    return to_binary_event(event)


def publish(bootstrap: str, topic: str, message: KafkaMessage, compression: str = "none") -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "compression.type": compression})
    producer.produce(topic, key=message.key, value=message.value, headers=message.headers, timestamp=NOW_MS)
    assert producer.flush(DEADLINE_S) == 0


async def test_events_made_by_the_cloudevents_sdk_are_ours_however_they_are_compressed(
    log: EventLog, kafka_bootstrap: str, fresh_topics: MakeTopics
) -> None:
    topic = (await fresh_topics("metrics"))["metrics"]
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        publish(kafka_bootstrap, topic, metrics_made_elsewhere(), codec)
    for record in await read(await log.consumer([topic]), len(codecs)):
        event = event_from_record(record)
        assert isinstance(event, Metrics)
        assert (event.run_id, event.values) == ("run-foreign", {"queue_depth": 3.5})
        ours = record_from_event(event)
        assert (record.key, record.timestamp_ms) == (ours.key, ours.timestamp_ms)
        attributes = {name: value for name, value in record.headers.items() if name != "ce_partitionkey"}
        # An optional attribute of CloudEvents: who does without it is understood.
        assert attributes.keys() | {"ce_dataschema"} == ours.headers.keys()
        for name in attributes.keys() - {"ce_time"}:
            assert attributes[name] == ours.headers[name]
        assert moment(attributes["ce_time"]) == moment(ours.headers["ce_time"])


async def test_what_is_no_event_of_ours_is_read_and_told_apart(
    log: EventLog, kafka_bootstrap: str, fresh_topics: MakeTopics
) -> None:
    topic = (await fresh_topics("runs"))["runs"]
    theirs = CloudEvent(
        attributes={
            "id": "1",
            "type": "com.example.order",
            "source": "/shop",
            "specversion": "1.0",
            "datacontenttype": "application/json",
        },
        data={"type": "order", "amount": 3},
    )
    publish(kafka_bootstrap, topic, to_binary_event(theirs))
    publish(kafka_bootstrap, topic, to_structured_event(theirs))
    publish(kafka_bootstrap, topic, KafkaMessage(headers={}, key=None, value=b"\xff\x00 no JSON"))
    publish(kafka_bootstrap, topic, KafkaMessage(headers={"h": b"\xff"}, key=b"\xff\xfe", value=b"{}"))
    publish(kafka_bootstrap, topic, KafkaMessage(headers={}, key="tombstone", value=None))
    publish(kafka_bootstrap, topic, metrics_made_elsewhere())

    records = await read(await log.consumer([topic]), 6)
    records.sort(key=lambda record: record.offset)
    for record in records[:2]:
        with pytest.raises(UnknownEventError, match=re.escape(f"{topic}[0]@{record.offset}: ")):
            event_from_record(record)
    for record in records[2:5]:
        with pytest.raises(EventDecodeError, match=re.escape(f"{topic}[0]@{record.offset}: ")):
            event_from_record(record)
    assert (records[4].key, records[4].value) == ("tombstone", b"")
    assert [record.key for record in records[2:4]] == ["", "\ufffd\ufffd"]
    assert isinstance(event_from_record(records[5]), Metrics)


def moment(header: bytes) -> datetime:
    return datetime.fromisoformat(header.decode())
