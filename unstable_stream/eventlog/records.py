"""Events as log records and back, in the CloudEvents binary mode (Kafka protocol binding, version 1.0).

The attributes travel as ``ce_*`` headers and the body is plain JSON, so that any tool can read a topic.
"""

from datetime import UTC, datetime

from unstable_stream.errors import EventError
from unstable_stream.eventlog.port import Record, StoredRecord
from unstable_stream.events import Event, decode_event, encode_event, event_type

__all__ = ["event_from_record", "record_from_event"]


def record_from_event(event: Event) -> Record:
    """Return the record that carries ``event`` on its topic, under its key."""
    moment = datetime.fromtimestamp(event.occurred_at_ms / 1000, tz=UTC)
    return Record(
        topic=event.TOPIC,
        key=event.key,
        value=encode_event(event),
        headers={
            "ce_specversion": b"1.0",
            "ce_id": event.event_id.encode(),
            "ce_type": f"unstable_stream.{event_type(event)}.v{event.schema_version}".encode(),
            "ce_source": f"/unstable_stream/runs/{event.run_id}".encode(),
            "ce_time": moment.isoformat(timespec="milliseconds").encode(),
            "content-type": b"application/json",
        },
        timestamp_ms=event.occurred_at_ms,
    )


def event_from_record(record: StoredRecord) -> Event:
    """Return the event in ``record``; raises the :class:`EventError` family, naming the position."""
    try:
        return decode_event(record.value)
    except EventError as error:
        raise type(error)(f"{record}: {error}") from error
