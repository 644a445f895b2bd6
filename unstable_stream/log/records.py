"""Turn events into log records and back, in the CloudEvents binary mode (Kafka protocol binding 1.0).

The attributes are ``ce_*`` headers and the body is plain JSON, so that any tool can read a topic.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from unstable_stream.errors import EventError
from unstable_stream.events import (
    EVENT_TYPES,
    Event,
    RecordRejected,
    decode_event,
    encode_event,
    event_type,
    unfit,
)
from unstable_stream.log.port import Record, StoredRecord

_json_decoder: Final = msgspec.json.Decoder()


def record_from_event(event: Event) -> Record:
    """Return the record of ``event``, with its topic and key."""
    occurred_at_ms = event.occurred_at_ms
    headers = _headers(type(event), event.schema_version, event.run_id).copy()
    headers["ce_id"] = event.event_id.encode()
    headers["ce_time"] = _time_header(occurred_at_ms)
    return Record(event.TOPIC, event.key, encode_event(event), headers, occurred_at_ms)


def event_headers(
    type_name: str, schema_version: int, event_id: str, run_id: str, occurred_at_ms: int
) -> dict[str, bytes]:
    """Return the headers of an event from the fields of its head; :class:`KeyError` for an unknown type."""
    headers = _headers(EVENT_TYPES[type_name], schema_version, run_id).copy()
    headers["ce_id"] = event_id.encode()
    headers["ce_time"] = _time_header(occurred_at_ms)
    return headers


def schema_uri(type_name: str, schema_version: int) -> str:
    """Return the URI of an event's JSON Schema: its ``$id``, and the event's attribute ``dataschema``."""
    return f"urn:unstable-stream:schema:{type_name}.v{schema_version}"


# Many events in a row share type, run and time. Without these caches the headers are most of a record's cost.
@lru_cache(maxsize=256)
def _headers(event_class: type[Event], schema_version: int, run_id: str) -> dict[str, bytes]:
    """Return headers to copy, with an empty id and time in their places."""
    name = event_type(event_class)
    return {
        "ce_specversion": b"1.0",
        "ce_id": b"",
        "ce_type": f"unstable_stream.{name}.v{schema_version}".encode(),
        "ce_source": source_header(run_id),
        "ce_time": b"",
        "ce_dataschema": schema_uri(name, schema_version).encode(),
        "content-type": b"application/json",
    }


@lru_cache(maxsize=1024)
def _time_header(occurred_at_ms: int) -> bytes:
    second, ms = divmod(occurred_at_ms, 1000)
    return b"%s.%03d+00:00" % (_second(second), ms)


@lru_cache(maxsize=1024)
def _second(unix_s: int) -> bytes:
    return datetime.fromtimestamp(unix_s, tz=UTC).replace(tzinfo=None).isoformat().encode()


@lru_cache(maxsize=64)
def source_header(run_id: str) -> bytes:
    """Return the header ``ce_source`` of all records of a run."""
    return f"/unstable_stream/runs/{run_id}".encode()


def event_from_record(record: StoredRecord) -> Event:
    """Return the event in ``record``; raises the :class:`EventError` family, with the position."""
    try:
        return decode_event(record.value)
    except EventError as error:
        raise type(error)(f"{record}: {error}") from error


def rejected_event(letter: RecordRejected) -> Event | None:
    """Return the event that was set aside; ``None``: the record held none that this version can read."""
    try:
        return decode_event(letter.record_value)
    except EventError:
        return None


def json_object(value: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a record's value, an event or not; ``None``: none that can be walked."""
    try:
        body = _json_decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return body if isinstance(body, dict) and unfit(body) is None else None


def id_header(headers: Mapping[str, bytes]) -> str:
    """Return the event id that the headers of a record name, also of one that is no event; empty: none."""
    return headers.get("ce_id", b"").decode(errors="replace")
