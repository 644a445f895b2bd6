"""Topic ``dead-letters``: records a consumer could not accept; read by the archive and a person."""

import msgspec

from unstable_stream.events.envelope import Event, Int64


class RecordRejected(Event, frozen=True, kw_only=True, tag="record-rejected"):
    """A record was set aside, whole. Natural key: consumer, topic, partition, offset.

    ``run_id`` is the consumer's run, or empty if it serves all runs.
    """

    TOPIC = "dead-letters"

    consumer: str
    """The consumer group that rejected it."""
    topic: str
    """Topic of the record."""
    partition: int
    """Partition of the record."""
    offset: Int64
    """Offset of the record."""
    reason: str
    """The error class and message."""
    record_key: str = ""
    """The record's key."""
    record_value: bytes = b""
    """The record's bytes."""
    record_headers: dict[str, bytes] = msgspec.field(default_factory=dict)
    """The record's headers."""
    record_timestamp_ms: Int64 = 0
    """The record's own time, Unix milliseconds."""

    @property
    def key(self) -> str:
        return f"{self.topic}-{self.partition}"
