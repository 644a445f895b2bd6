"""The only writer of dead letters: it keeps a whole record that a consumer refused, with the reason."""

from typing import Final

from unstable_stream.console import get_logger
from unstable_stream.events import LATEST_MS, RecordRejected, event_id
from unstable_stream.log.port import Record, StoredRecord
from unstable_stream.log.records import record_from_event

_MAX_VALUE_BYTES: Final = 8 * 1024 * 1024
"""Bytes. A longer value is cut: in base64 it would exceed the limit of the topic."""
_MAX_HEADER_BYTES: Final = 64 * 1024
"""Bytes of all headers: of a record with more, those that are too many or too large are left out."""
_MAX_TEXT: Final = 10_000
"""Characters of a key, and of a reason, which may quote foreign text."""

_log = get_logger(__name__)


class DeadLetters:
    """Writes the dead letters of one consumer."""

    def __init__(self, consumer: str, run_id: str | None = None, *, log_id: str | None = None) -> None:
        """Store the names that make event ids: one consumer and one record always give the same event id.

        Args:
            consumer: the consumer's name in the letter, usually its group.
            run_id: the run that the consumer serves; ``None``: all runs.
            log_id: for a consumer that reads several logs, where one position names a record of each log.
        """
        self._consumer = consumer
        self._run_id = run_id or ""
        self._origin = (consumer,) if log_id is None else (consumer, log_id)

    def about(self, record: StoredRecord, reason: str, *, warn: bool = True) -> list[Record]:
        """Return the dead letter about a record, as records to append; none if the record is itself a dead
        letter.

        A letter about a letter could repeat for ever, and the first one is already in the right topic.
        ``warn``: also log a warning.
        """
        where = f"{record.topic}[{record.partition}]@{record.offset}"
        if warn:
            _log.warning("record rejected", consumer=self._consumer, record=where, reason=reason)
        if record.topic == RecordRejected.TOPIC:
            return []
        size = len(record.value)
        reason = reason[:_MAX_TEXT]
        headers: dict[str, bytes] = {}
        room = _MAX_HEADER_BYTES
        for name, value in record.headers.items():
            taken = 2 * len(name) + len(value)
            if taken <= room:
                headers[name], room = value, room - taken
        if len(headers) < len(record.headers) or len(record.key) > _MAX_TEXT:
            reason += f" (key and headers cut; whole at {where})"
        if size > _MAX_VALUE_BYTES:
            reason += f" (value cut from {size} to {_MAX_VALUE_BYTES} bytes; whole at {where})"
        place = (record.topic, record.partition, record.offset)
        letter = RecordRejected(
            event_id=event_id(self._run_id, "record-rejected", *self._origin, *place),
            run_id=self._run_id,
            # The fault of the record may be an impossible time.
            occurred_at_ms=record.timestamp_ms if 0 <= record.timestamp_ms <= LATEST_MS else 0,
            consumer=self._consumer,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=reason,
            record_key=record.key[:_MAX_TEXT],
            record_value=record.value[:_MAX_VALUE_BYTES],
            record_headers=headers,
            record_timestamp_ms=record.timestamp_ms,
        )
        return [record_from_event(letter)]
