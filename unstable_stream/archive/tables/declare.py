"""Derive a table's columns from the event structs: names, types and meanings are those of the fields.

A declaration says only what differs from the struct: a new name, or a column that is computed.
It creates the table, fills it (:mod:`unstable_stream.archive.batch`) and documents it
(:mod:`unstable_stream.archive.reference`), so the three cannot disagree.
"""

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from unstable_stream.events import (
    AdapterProbe,
    Checkpoint,
    EnvironmentUse,
    Event,
    ExtensionUse,
    GameOutcome,
    GamePosition,
    GameStarted,
    LearnerUpdate,
    Metrics,
    ProbeSequence,
    RecordRejected,
    RunStarted,
    Seat,
    SeatResult,
    Step,
    StepsDropped,
    StepTexts,
    Trajectory,
    event_type,
    field_description,
)
from unstable_stream.events.descriptions import plain_text

Source: TypeAlias = str | Callable[[Any], object]
"""A dotted attribute path of the row's object, or a function of it. ``Any``: one table, one row class."""

Struct: TypeAlias = type[msgspec.Struct]

_SQL_TYPES: Final[Mapping[object, str]] = {
    str: "VARCHAR",
    bool: "BOOLEAN",
    int: "INTEGER",
    float: "DOUBLE",
    bytes: "BLOB",
    tuple[str, ...]: "VARCHAR[]",
    tuple[int, ...]: "INTEGER[]",
    tuple[float, ...]: "DOUBLE[]",
    dict[str, float]: "MAP(VARCHAR, DOUBLE)",
    dict[str, int]: "MAP(VARCHAR, BIGINT)",
    dict[str, bytes]: "MAP(VARCHAR, BLOB)",
    dict[str, str]: "JSON",
    dict[str, bool]: "JSON",
    dict[str, Any]: "JSON",
    tuple[ExtensionUse, ...]: "JSON",
    tuple[EnvironmentUse, ...]: "JSON",
    GamePosition: "JSON",
}
_PACKED: Final = {"int32": "INTEGER[]", "float32": "FLOAT[]"}
_LONG_TEXTS: Final = {(name, "VARCHAR") for name in ("value", "observation", "prompt", "completion")}
"""Columns of text that DuckDB leaves as it is, or compresses with short texts in mind, unless told otherwise:
of a quickstart's archive three quarters. An archive keeps what its columns were made with."""
_MOMENT: Final = "_at_ms"
"""The end of the name of a field that is a moment; its column is a ``TIMESTAMP`` without this unit."""


_PARENT: Final = "`checkpoints.parent_uid` says it of each `model_uid`."
_PROBE: Final = "`adapter_proofs` has what engines made of the probe, `events.value` has its tokens."
_TOKENS: Final = "`turns` has it; join by `trajectory_id` and `turn_index`."

NOT_COLUMNS: Final[Mapping[type[msgspec.Struct], Mapping[str, str]]] = {
    Event: {
        "event_id": "`events.event_id`. Where other tables refer to it, it is `trajectory_id` or `step_id`.",
        "schema_version": "It concerns decoding alone; the body in `events.value` has it.",
    },
    ExtensionUse: dict.fromkeys(
        ("kind", "target", "distribution", "version", "sha256"), "`run_events.extensions` has it."
    ),
    EnvironmentUse: dict.fromkeys(
        ("env_id", "num_players", "distribution", "version", "sha256", "verdict", "judged_at_ms"),
        "`run_events.environments` has it.",
    ),
    RunStarted: dict.fromkeys(
        ("log_id", "start_offsets"), "It concerns reading the log alone; `events.value` has it."
    ),
    GameStarted: {
        "seats": "Each is a row of `planned_seats`; `models` has their models.",
        "position": "`game_outcomes.position` has it.",
        "moves": "They are the first rows of `actions`.",
    },
    GameOutcome: {
        "seats": "Each is a row of `seats`; `models`, `rewards` and `winner` sum them up.",
        "actions": "Each is a row of `actions`.",
        "unparsed": "`turns.format_feedback` says it of each move.",
        "finish_reasons": "`actions.finish_reason` has them.",
        "no_answers": "`seats.no_answers` has them.",
    },
    Seat: {"parent_uid": _PARENT},
    SeatResult: {"parent_uid": _PARENT},
    GamePosition: dict.fromkeys(("game_id", "turn", "seed", "moves"), "`game_outcomes.position` has it."),
    Trajectory: {
        "turns": "Each is a row of `turns`.",
        "rewards": "`game_outcomes.rewards` has them.",
        "roles": "`seats.role` says it of each seat.",
        "trained_seats": "`seats.trained` says it of each seat.",
        "position": "`game_outcomes.position` has it.",
    },
    Step: {
        "prompt_token_ids": _TOKENS,
        "completion_token_ids": _TOKENS,
        "logprobs": _TOKENS,
        "temperature": "`trajectories.temperature` has it.",
        "texts": _TOKENS,
    },
    StepTexts: dict.fromkeys(
        ("observation", "completion", "action", "valid", "format_feedback", "step_info"), _TOKENS
    ),
    Checkpoint: {"probe": _PROBE},
    AdapterProbe: dict.fromkeys(("dtype", "sequences"), _PROBE),
    ProbeSequence: dict.fromkeys(
        ("prompt_token_ids", "completion_token_ids", "logprobs", "base_logprobs"), _PROBE
    ),
    LearnerUpdate: {
        "step_ids": "Each is a row of `update_steps`.",
        "dropped": "Each is a row of `update_steps`.",
    },
    StepsDropped: {
        "run_id": "`update_steps.run_id` has it.",
        "occurred_at_ms": "`events.timestamp_ms` has it, at the record's position.",
        "update": "`update_steps.update` has it.",
        "model": "`update_steps.model` has it.",
        "dropped": "Each is a row of `update_steps`.",
    },
    Metrics: {"values": "Each is a row of `metrics`."},
    RecordRejected: {
        "record_headers": "`events.headers` has them, at the record's position.",
        "record_timestamp_ms": "`events.timestamp_ms` has it, at the record's position.",
    },
}
"""Event fields that are no column: struct to field to reason. Every other field is a column.

What is listed of a struct holds for the structs derived from it. ``docs/reference/archive.md`` prints it.
"""


class Item(NamedTuple):
    """A row that comes from a part of an event, e.g. one turn of a trajectory."""

    event: Any
    item: Any
    place: int
    """0-based position within the event."""


def items_of(field: str) -> Callable[[Any], Iterable[Item]]:
    """Return a function that yields one :class:`Item` for each element of the event's sequence ``field``."""

    def explode(event: Any) -> Iterable[Item]:
        return [Item(event, item, index) for index, item in enumerate(getattr(event, field))]

    return explode


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    sql_type: str
    """DuckDB's name of the type, one of the keys of ``batch.ARROW_TYPES``."""
    text: str = ""
    """Meaning, unit, and the meaning of ``NULL``; empty: as described in the struct."""
    source: Source = ""
    """The attribute or function that gives the value; by default the attribute of the column's name."""
    packed: bool = False
    """The source gives bytes: a packed array (:mod:`unstable_stream.events.arrays`), or UTF-8 for text."""
    fields: tuple[tuple[Struct, str], ...] = ()
    """The struct fields whose values the column holds."""
    only_of: tuple[type[Event], ...] = ()
    """The event families that have the field, if some of the table's lack it; empty: all have it."""

    def getter(self) -> Callable[[Any], object]:
        """Return the function that takes the column's value from a row's object."""
        if callable(self.source):
            return self.source
        return attrgetter(self.source or self.name)

    @property
    def doc(self) -> str:
        """Meaning, unit, and the meaning of ``NULL``, as Markdown."""
        doc = self.text or plain_text(field_description(*self.fields[0]), null="NULL")
        if not self.only_of:
            return doc
        return f"{doc} NULL except in {' and '.join(f'`{event_type(event)}`' for event in self.only_of)}."

    @property
    def compression(self) -> str:
        """The clause that has DuckDB compress the column in one way; empty: as it likes."""
        return " USING COMPRESSION zstd" if (self.name, self.sql_type) in _LONG_TEXTS else ""

    @property
    def quoted(self) -> str:
        """The name as it must be written in SQL."""
        return f'"{self.name}"'


RECORD_NUMBER: Final = Column(
    "record_number",
    "BIGINT",
    "The archived record that the row was made from, numbered in the order of archiving, the same in every "
    "table.",
)
"""The column that tells of which record a row is. Another archive of the same log numbers them otherwise."""


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """One typed table, filled from one or more event families."""

    name: str
    doc: str
    events: tuple[type[Event], ...]
    columns: tuple[Column, ...]
    explode: Callable[[Any], Iterable[object]] | None = None
    """Rows of an event; ``None``: the event itself is the one row."""

    def create_sql(self) -> str:
        """Return the statement that creates the table. No indexes: they would cost more than they save."""
        columns = ", ".join(
            f"{column.quoted} {column.sql_type}{column.compression}" for column in self.columns
        )
        return f'CREATE TABLE IF NOT EXISTS "{self.name}" ({columns})'

    def widen_sql(self) -> Iterable[str]:
        """Yield the statements that add the table, or its columns, where an older package's archive lacks it.

        Their values are ``NULL`` in the rows that are there already.
        """
        yield self.create_sql()
        for column in self.columns:
            yield f'ALTER TABLE "{self.name}" ADD COLUMN IF NOT EXISTS {column.quoted} {column.sql_type}'


def table_of(name: str, doc: str, *events: type[Event], **more: Any) -> TableDefinition:
    """Return a table with one row for each such event; ``more`` is as in :func:`columns_of`."""
    return TableDefinition(name, doc, events, columns_of(*events, **more))


def traced(table: TableDefinition) -> TableDefinition:
    """Return the table with :data:`RECORD_NUMBER` as its last column."""
    return replace(table, columns=(*table.columns, RECORD_NUMBER))


def columns_of(
    *structs: Struct,
    of: str = "",
    only: Sequence[str] = (),
    renamed: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
    computed: Sequence[Column] = (),
) -> tuple[Column, ...]:
    """Return a column for each field of the structs that :data:`NOT_COLUMNS` does not list.

    The order is: the event's id, if it is renamed; the run; the fields as declared; ``computed``; the time.

    Args:
        structs: the row's struct; several if rows of several event families share the table. A row whose
            struct lacks the field has ``NULL``.
        of: ``event`` or ``item`` where rows are of class :class:`Item`; by default the row is the struct.
        only: take these fields, in this order, and no others.
        renamed: field to the column's name.
        texts: field to a description that says more than the struct's.
        computed: columns that are no field.

    Raises:
        TypeError: a field is of a type that no column can hold.
    """
    renamed, texts = renamed or {}, texts or {}
    owners: dict[str, list[Struct]] = {}
    for struct in structs:
        for field in only or struct.__struct_fields__:
            if only or field in renamed or not _is_listed(struct, field):
                owners.setdefault(field, []).append(struct)
    columns = {
        field: _column(field, having, structs, of, renamed.get(field, ""), texts.get(field, ""))
        for field, having in owners.items()
    }
    if only:
        return (*columns.values(), *computed)
    first = [columns.pop(field) for field in ("event_id", "run_id") if field in columns]
    last = [columns.pop(field) for field in ("occurred_at_ms",) if field in columns]
    return (*first, *columns.values(), *computed, *last)


def sql_type(struct: Struct, field: str) -> str:
    """Return DuckDB's name of the type of a field's column.

    Raises:
        TypeError: no column can hold such a field.
    """
    annotation = get_type_hints(struct, include_extras=True)[field]
    if get_origin(annotation) in (Union, types.UnionType):
        # Every column may be NULL.
        (annotation,) = (part for part in get_args(annotation) if part is not types.NoneType)
    if field.endswith(_MOMENT):
        return "TIMESTAMP"
    if get_origin(annotation) is Annotated:
        annotation, meta = get_args(annotation)
        if packed := (meta.extra or {}).get("packed"):
            return _PACKED[packed]
        if (meta.extra_json_schema or {}).get("format") == "int64":
            return "BIGINT"
    try:
        return _SQL_TYPES[annotation]
    except (KeyError, TypeError) as error:
        raise TypeError(
            f"{struct.__name__}.{field} is of type {annotation}, which no column holds: give it a type in "
            "archive/tables/declare.py, or list the field in NOT_COLUMNS there"
        ) from error


def _is_listed(struct: Struct, field: str) -> bool:
    return any(field in NOT_COLUMNS.get(owner, ()) for owner in struct.__mro__)


def _column(
    field: str, having: Sequence[Struct], structs: Sequence[Struct], of: str, name: str, text: str
) -> Column:
    kind = sql_type(having[0], field)
    path = f"{of}.{field}" if of else field
    source: Source = path
    if kind == "JSON":
        source = _json_of(path)
    elif len(having) < len(structs):
        source = _if_present(field)
    if kind == "TIMESTAMP":
        name, text = name or field.removesuffix("_ms"), text or "UTC."
    return Column(
        name or field,
        kind,
        text,
        source,
        packed=kind in _PACKED.values() and get_type_hints(having[0])[field] is bytes,
        fields=tuple((struct, field) for struct in having),
        only_of=tuple(s for s in having if issubclass(s, Event)) if len(having) < len(structs) else (),
    )


def _json_of(path: str) -> Callable[[Any], object]:
    """Return a getter of JSON text; numbers JSON does not know become ``null``, a lacking field ``NULL``."""
    *parents, field = path.split(".")
    parent = attrgetter(".".join(parents)) if parents else None

    def read(row: Any) -> str | None:
        value = getattr(parent(row) if parent else row, field, None)
        return None if value is None else msgspec.json.encode(value).decode()

    return read


def _if_present(field: str) -> Callable[[Any], object]:
    return lambda row: getattr(row, field, None)
