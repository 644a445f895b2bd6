"""Turn events into log records and back, in the CloudEvents binary mode (Kafka protocol binding 1.0).

The attributes are ``ce_*`` headers and the body is plain JSON, so that any tool can read a topic.
"""

from datetime import UTC, datetime
from functools import lru_cache

from unstable_stream.errors import EventError
from unstable_stream.events import EVENT_TYPES, Event, decode_event, encode_event, event_type
from unstable_stream.log.port import Record, StoredRecord

__all__ = ["event_from_record", "event_headers", "record_from_event", "schema_uri", "source_header"]


def record_from_event(event: Event) -> Record:
    """Return the record of ``event``, with its topic and key."""
    return Record(
        topic=event.TOPIC,
        key=event.key,
        value=encode_event(event),
        headers={
            "ce_specversion": b"1.0",
            "ce_id": event.event_id.encode(),
            "ce_type": _type_header(type(event), event.schema_version),
            "ce_source": source_header(event.run_id),
            "ce_time": _time_header(event.occurred_at_ms),
            "ce_dataschema": _schema_header(type(event), event.schema_version),
            "content-type": b"application/json",
        },
        timestamp_ms=event.occurred_at_ms,
    )


def event_headers(
    type_name: str, schema_version: int, event_id: str, run_id: str, occurred_at_ms: int
) -> dict[str, bytes]:
    """Return the headers of an event from the fields of its head; :class:`KeyError` for an unknown type."""
    return {
        "ce_specversion": b"1.0",
        "ce_id": event_id.encode(),
        "ce_type": _type_header(EVENT_TYPES[type_name], schema_version),
        "ce_source": source_header(run_id),
        "ce_time": _time_header(occurred_at_ms),
        "ce_dataschema": _schema_header(EVENT_TYPES[type_name], schema_version),
        "content-type": b"application/json",
    }


def schema_uri(type_name: str, schema_version: int) -> str:
    """Return the URI of an event's JSON Schema: its ``$id``, and the event's attribute ``dataschema``."""
    return f"urn:unstable-stream:schema:{type_name}.v{schema_version}"


# Many events in a row share type, run and time. Without this cache these four are most of a record's cost.
@lru_cache(maxsize=64)
def _type_header(event_class: type[Event], schema_version: int) -> bytes:
    return f"unstable_stream.{event_type(event_class)}.v{schema_version}".encode()


@lru_cache(maxsize=64)
def _schema_header(event_class: type[Event], schema_version: int) -> bytes:
    return schema_uri(event_type(event_class), schema_version).encode()


@lru_cache(maxsize=64)
def source_header(run_id: str) -> bytes:
    """Return the header ``ce_source`` of all records of a run."""
    return f"/unstable_stream/runs/{run_id}".encode()


@lru_cache(maxsize=1024)
def _time_header(occurred_at_ms: int) -> bytes:
    moment = datetime.fromtimestamp(occurred_at_ms / 1000, tz=UTC)
    return moment.isoformat(timespec="milliseconds").encode()


def event_from_record(record: StoredRecord) -> Event:
    """Return the event in ``record``; raises the :class:`EventError` family, with the position."""
    try:
        return decode_event(record.value)
    except EventError as error:
        raise type(error)(f"{record}: {error}") from error
