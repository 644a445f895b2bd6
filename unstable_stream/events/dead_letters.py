"""Topic ``dead-letters``: records a consumer could not accept; read by the archive and a person."""

import msgspec

from unstable_stream.events.envelope import Event

__all__ = ["RecordRejected"]


class RecordRejected(Event, frozen=True, kw_only=True, tag="record-rejected"):
    """A record was set aside, whole. Natural key: consumer, topic, partition, offset.

    ``run_id`` is the consumer's run, or empty if it serves all runs.
    """

    TOPIC = "dead-letters"

    consumer: str
    """The group that rejected it."""
    topic: str
    partition: int
    offset: int
    reason: str
    """The error class and message."""
    record_key: str = ""
    record_value: bytes = b""
    record_headers: dict[str, bytes] = msgspec.field(default_factory=dict)
    record_timestamp_ms: int = 0

    @property
    def key(self) -> str:
        return f"{self.topic}-{self.partition}"
