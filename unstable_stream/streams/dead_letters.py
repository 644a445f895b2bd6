"""The one writer of dead letters: what a consumer cannot take is kept whole, with the reason."""

from collections.abc import Mapping
from typing import Final, Protocol

import structlog

from unstable_stream.events import LATEST_MS, RecordRejected, event_id
from unstable_stream.log.port import Record
from unstable_stream.log.records import record_from_event

__all__ = ["DeadLetters", "RejectedRecord"]

_MAX_VALUE_BYTES: Final = 8 * 1024 * 1024
"""A longer value is cut: base64 and the limit of the topic leave room for no more."""

_log = structlog.get_logger(__name__)


class RejectedRecord(Protocol):
    """What a dead letter says of a stored record; the event log's records fit."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> str: ...
    @property
    def value(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, bytes]: ...
    @property
    def timestamp_ms(self) -> int: ...


class DeadLetters:
    """Writes the dead letters of one consumer."""

    def __init__(self, consumer: str, run_id: str | None = None, *, log_id: str | None = None) -> None:
        """A letter about the same record by the same consumer always has the same event id.

        Args:
            consumer: named in the letter; its group, as a rule.
            run_id: the run it serves; ``None``: all.
            log_id: for a consumer that reads several logs: the same position of another is another record.
        """
        self._consumer = consumer
        self._run_id = run_id or ""
        self._origin = (consumer,) if log_id is None else (consumer, log_id)

    def about(self, record: RejectedRecord, reason: str, *, warn: bool = True) -> list[Record]:
        """Return the letter about a record, as records to append; none about one that is a letter itself.

        A letter about a letter could go round for ever, and it is where it belongs already. ``warn``: say so
        in the service's own log, too.
        """
        where = f"{record.topic}[{record.partition}]@{record.offset}"
        if warn:
            _log.warning("record rejected", consumer=self._consumer, record=where, reason=reason)
        if record.topic == RecordRejected.TOPIC:
            return []
        size = len(record.value)
        if size > _MAX_VALUE_BYTES:
            reason += f" (value cut from {size} to {_MAX_VALUE_BYTES} bytes; whole at {where})"
        place = (record.topic, record.partition, record.offset)
        letter = RecordRejected(
            event_id=event_id(self._run_id, "record-rejected", *self._origin, *place),
            run_id=self._run_id,
            # An absurd time may be what is wrong with the record.
            occurred_at_ms=record.timestamp_ms if 0 <= record.timestamp_ms <= LATEST_MS else 0,
            consumer=self._consumer,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=reason,
            record_key=record.key,
            record_value=record.value[:_MAX_VALUE_BYTES],
            record_headers=dict(record.headers),
            record_timestamp_ms=record.timestamp_ms,
        )
        return [record_from_event(letter)]
