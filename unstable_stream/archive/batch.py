"""Turn records into Arrow tables: decode, recognise events seen before, build each column in one pass.

This module is pure and touches no file. A record that cannot be decoded, or whose values no column can hold,
is rejected alone; the rest of the batch goes on.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from unstable_stream.archive.tables import TABLES
from unstable_stream.archive.tables.declare import RECORD_NUMBER, Column, TableDefinition, traced
from unstable_stream.errors import EventDecodeError, EventError
from unstable_stream.events import EVENT_TYPES, LATEST_MS, Event, decode_event, event_type
from unstable_stream.log.port import StoredRecord


class Rejection(NamedTuple):
    """A record that went into ``events`` but into no typed table."""

    record: StoredRecord
    error: EventError


class _Raw(NamedTuple):
    record: StoredRecord
    event: Event | None
    log_id: str
    text: bytes | None
    """The value, if it is text."""


class _Numbered(NamedTuple):
    number: int
    event: Event


_WIRE_NAMES: Final = {cls: name for name, cls in EVENT_TYPES.items()}
_CLOUD_EVENTS_HEADERS: Final = {
    "ce_specversion",
    "ce_id",
    "ce_type",
    "ce_source",
    "ce_time",
    "ce_dataschema",
    "content-type",
}


def _is_text(value: bytes) -> bool:
    if value.isascii():
        return True
    try:
        value.decode()
    except UnicodeDecodeError:
        return False  # also of an event: the decoder passes over fields it does not know
    return True


def _bytes_if_not_text(raw: _Raw) -> bytes | None:
    return None if raw.text is not None else raw.record.value


def _other_headers(raw: _Raw) -> list[tuple[str, bytes]] | None:
    headers = raw.record.headers
    if raw.event is None:
        return list(headers.items()) or None
    # An event's standard headers repeat its fields.
    if headers.keys() <= _CLOUD_EVENTS_HEADERS:
        return None
    return [(name, headers[name]) for name in headers if name not in _CLOUD_EVENTS_HEADERS]


def _of_event(read: Callable[[Event], object]) -> Callable[[_Raw], object]:
    return lambda raw: None if raw.event is None else read(raw.event)


EVENTS: Final = traced(
    TableDefinition(
        "events",
        "Every record of every topic as it was read, one row per log and position.",
        (),
        (
            Column("topic", "VARCHAR", "Topic.", "record.topic"),
            Column("partition", "INTEGER", "Partition of the topic.", "record.partition"),
            Column(
                "offset",
                "BIGINT",
                "Offset in the partition; reserved in SQL, write it in double quotes.",
                "record.offset",
            ),
            Column(
                "type",
                "VARCHAR",
                "Event type; NULL: could not be decoded.",
                _of_event(lambda event: _WIRE_NAMES[type(event)]),
            ),
            Column(
                "event_id",
                "VARCHAR",
                "What recognises an event published twice; NULL: could not be decoded.",
                _of_event(lambda event: event.event_id),
            ),
            Column("run_id", "VARCHAR", "The run.", _of_event(lambda event: event.run_id)),
            Column("key", "VARCHAR", "Record key.", "record.key"),
            Column("occurred_at", "TIMESTAMP", "UTC.", _of_event(lambda event: event.occurred_at_ms)),
            Column(
                "timestamp_ms", "BIGINT", "The record's own time, Unix milliseconds.", "record.timestamp_ms"
            ),
            Column("value", "VARCHAR", "The body, JSON: `value->>'$.field'`; NULL: not text.", "text", True),
            Column("value_bytes", "BLOB", "The body if it is not text.", _bytes_if_not_text),
            Column("headers", "MAP(VARCHAR, BLOB)", "Headers other than CloudEvents' own.", _other_headers),
            Column(
                "log_id",
                "VARCHAR",
                "The log it was read from: id of the Kafka cluster or of the local file; empty: not known.",
            ),
        ),
    )
)
"""The raw table. It keeps every position; the typed tables count an event published twice once."""

ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "VARCHAR": pa.string(),
    "JSON": pa.string(),
    "BLOB": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "TIMESTAMP": pa.timestamp("ms"),
    "VARCHAR[]": pa.list_(pa.string()),
    "DOUBLE[]": pa.list_(pa.float64()),
    "INTEGER[]": pa.list_(pa.int32()),
    "FLOAT[]": pa.list_(pa.float32()),
    "MAP(VARCHAR, DOUBLE)": pa.map_(pa.string(), pa.float64()),
    "MAP(VARCHAR, BIGINT)": pa.map_(pa.string(), pa.int64()),
    "MAP(VARCHAR, BLOB)": pa.map_(pa.string(), pa.binary()),
}
_ITEM_BYTES: Final = 4
_MOST_TEXT: Final = 2**31 - 1
"""Characters that the offsets of a column of strings can count."""
# The decoded events of so many records are in memory at a time; fewer also means memory used again while the
# processor still has it at hand (a third faster than 7,000, measured).
_CHUNK_RECORDS: Final = 1000

_UNSTORABLE: Final = (pa.ArrowException, OverflowError, ValueError, RecursionError)

_TABLES_OF: Final[Mapping[type[Event], tuple[TableDefinition, ...]]] = {
    event: tuple(table for table in TABLES if event in table.events)
    for event in {event for table in TABLES for event in table.events}
}

_EventIds: TypeAlias = Sequence[str]
Unseen: TypeAlias = Callable[[_EventIds], Sequence[bool]]
"""A function that is given distinct event ids and tells of each whether it is new to the archive."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """The rows that one transaction inserts."""

    tables: Mapping[str, pa.Table]
    """Table name to rows; only tables with rows."""
    event_ids: Sequence[str]
    """The events that this batch adds."""
    duplicates: int
    """The number of events that the archive held already, from another position."""
    rejected: Sequence[Rejection]
    records: int = 0
    """The number of records. Each row of the tables has the number of its record."""
    others_up_to: int = 0
    """The record number up to which other processes' events were known when the events were looked up."""


def build_batch(
    records: Sequence[StoredRecord],
    unseen: Unseen | None,
    log_id: str = "",
    numbers: Sequence[int] | None = None,
) -> RowBatch:
    """Turn records that are new by position in the log ``log_id`` into the rows to insert.

    Args:
        records: the records.
        unseen: tells which events are new; ``None``: make the rows of each record, also of an event that
            comes again.
        log_id: their log.
        numbers: the record number of each; by default 0, 1, 2, …
    """
    if numbers is None:
        numbers = range(len(records))
    parts: list[RowBatch] = []
    added: set[str] = set()
    for start in range(0, len(records), _CHUNK_RECORDS):
        chunk = slice(start, start + _CHUNK_RECORDS)
        parts.append(_build_chunk(records[chunk], numbers[chunk], log_id, unseen, added))
        added.update(parts[-1].event_ids)
    tables = {
        table.name: [part.tables[table.name] for part in parts if table.name in part.tables]
        for table in (EVENTS, *TABLES)
    }
    return RowBatch(
        {name: pa.concat_tables(found) for name, found in tables.items() if found},
        [event_id for part in parts for event_id in part.event_ids],
        sum(part.duplicates for part in parts),
        [reject for part in parts for reject in part.rejected],
        len(records),
    )


def _build_chunk(
    records: Sequence[StoredRecord],
    numbers: Sequence[int],
    log_id: str,
    unseen: Unseen | None,
    added: Collection[str],
) -> RowBatch:
    raws: list[_Raw] = []
    rejected: list[Rejection] = []
    events: list[_Numbered] = []
    for number, record in zip(numbers, records, strict=True):
        event: Event | None = None
        try:
            event = _storable_head(decode_event(record.value))
        except EventError as error:
            rejected.append(Rejection(record, error))
        else:
            events.append(_Numbered(number, event))
        raws.append(_Raw(record, event, log_id, record.value if _is_text(record.value) else None))
    new = events if unseen is None else _new_events(events, unseen, added)
    duplicates = len(events) - len(new)
    try:
        tables = typed_rows(new)
    except _UNSTORABLE:
        # Somewhere a value does not fit its column: find those events, and set only them aside.
        unstorable = _unstorable(new)
        rejected += [
            Rejection(raw.record, unstorable[raw.event.event_id])
            for raw in raws
            if raw.event is not None and raw.event.event_id in unstorable
        ]
        raws = [
            raw._replace(event=None) if raw.event is not None and raw.event.event_id in unstorable else raw
            for raw in raws
        ]
        new = [each for each in new if each.event.event_id not in unstorable]
        tables = typed_rows(new)
    tables[EVENTS.name] = _arrow(EVENTS, raws, numbers)
    return RowBatch(tables, [each.event.event_id for each in new], duplicates, rejected)


def _new_events(events: Sequence[_Numbered], unseen: Unseen, added: Collection[str]) -> list[_Numbered]:
    """Return the first of each id that is new to the archive, and was not ``added`` by the batch before."""
    first: dict[str, _Numbered] = {}
    for numbered in events:
        if numbered.event.event_id not in added:
            first.setdefault(numbered.event.event_id, numbered)
    are_new = unseen(list(first))
    return [numbered for numbered, is_new in zip(first.values(), are_new, strict=True) if is_new]


def _storable_head(event: Event) -> Event:
    if not 0 <= event.occurred_at_ms <= LATEST_MS:
        raise EventDecodeError(
            f"{event.occurred_at_ms} is no time: expected Unix milliseconds from 0 to {LATEST_MS} "
            "- at `$.occurred_at_ms`"
        )
    return event


def typed_rows(events: Sequence[tuple[int, Event]]) -> dict[str, pa.Table]:
    """Return the rows that these events make, by table; each event comes with its record's number."""
    rows: dict[str, tuple[list[object], list[int]]] = {}
    for number, event in events:
        for table in _TABLES_OF.get(type(event), ()):
            made, numbers = rows.setdefault(table.name, ([], []))
            if table.explode is None:
                made.append(event)
                numbers.append(number)
            else:
                made.extend(table.explode(event))
                numbers.extend([number] * (len(made) - len(numbers)))
    return {
        table.name: _arrow(table, *rows[table.name])
        for table in TABLES
        if table.name in rows and rows[table.name][0]
    }


def _unstorable(events: Sequence[_Numbered]) -> dict[str, EventError]:
    """Return the events that fit no column, by id: halves are tried, since most of a batch fits."""
    try:
        typed_rows(events)
    except _UNSTORABLE as error:
        if len(events) > 1:
            half = len(events) // 2
            return _unstorable(events[:half]) | _unstorable(events[half:])
        (numbered,) = events
        reason = f"event {event_type(numbered.event)!r} fits no column: {error}"
        return {numbered.event.event_id: EventDecodeError(reason)}
    return {}


def _arrow(table: TableDefinition, rows: Sequence[object], numbers: Sequence[int]) -> pa.Table:
    columns = {column.name: _array(column, rows) for column in table.columns if column != RECORD_NUMBER}
    return pa.table(columns | {RECORD_NUMBER.name: pa.array(numbers, pa.int64())})


def _array(column: Column, rows: Sequence[Any]) -> pa.Array:
    values: list[Any] = list(map(column.getter(), rows))
    arrow_type = ARROW_TYPES[column.sql_type]
    if column.sql_type == "VARCHAR":
        return _utf8_array(values) if column.packed else _string_array(values)
    return _packed_array(values, arrow_type) if column.packed else pa.array(values, arrow_type)


def _utf8_array(values: Sequence[bytes | None]) -> pa.Array:
    """Build strings of bytes known to be UTF-8 in one copy; Arrow's builder copies each time it grows."""
    if None in values:
        array = pa.array(values, pa.large_binary())
        return pa.Array.from_buffers(pa.large_string(), len(array), array.buffers(), array.null_count)
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum([len(value or b"") for value in values], out=offsets[1:])
    data = b"".join(values)  # type: ignore[arg-type]  # none is None
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(values), buffers, 0)


def _string_array(values: Sequence[str | None]) -> pa.Array:
    """Build strings: plain ASCII, which nearly all is, in one go."""
    try:
        text = "".join(values)  # type: ignore[arg-type]
    except TypeError:  # there is a None
        return pa.array(values, pa.string())
    if not text.isascii() or len(text) > _MOST_TEXT:
        return pa.array(values, pa.string())
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(list(map(len, values)), out=offsets[1:])  # type: ignore[arg-type]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text.encode())]
    return pa.Array.from_buffers(pa.string(), len(values), buffers, 0)


def _packed_array(values: Sequence[Any], arrow_type: pa.DataType) -> pa.Array:
    """Build ``LIST<int32>`` or ``LIST<float32>`` from packed bytes without a Python object per item."""
    sizes = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    if (sizes % _ITEM_BYTES).any():
        raise ValueError(f"a packed array's length is not a multiple of {_ITEM_BYTES} bytes")
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(sizes // _ITEM_BYTES, out=offsets[1:])
    data = pa.py_buffer(b"".join(values))
    items = pa.Array.from_buffers(arrow_type.value_type, int(offsets[-1]), [None, data])
    return pa.ListArray.from_arrays(pa.array(offsets), items)
