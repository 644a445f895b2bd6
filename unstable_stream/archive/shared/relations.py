"""Declare the columns of the table, and turn rows of a relation into rows of the table."""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from unstable_stream.archive import tables
from unstable_stream.archive.batch import ARROW_TYPES, EVENTS
from unstable_stream.archive.tables.declare import RECORD_NUMBER

RELATION: Final = "relation"
NUMBER: Final = RECORD_NUMBER.name
POSITIONS: Final = tables.POSITIONS.name
DROPPED: Final = tables.DROPPED.name
_OFFSET_BITS: Final = 40

TYPED: Final = tuple(table.name for table in tables.TABLES)
"""Names of the relations whose rows come from events."""
RELATIONS: Final[Mapping[str, Mapping[str, str]]] = {
    table.name: {column.name: column.sql_type for column in table.columns if column.name != NUMBER}
    for table in (EVENTS, *tables.TABLES, tables.MISSING, tables.DROPPED)
} | {
    # A row for each time that a partition moved; the one with the highest offset counts.
    POSITIONS: {column.name: column.sql_type for column in tables.POSITIONS.columns} | {"slot": "INTEGER"},
}
"""Relation to its columns with their DuckDB types."""


def first_number(slot: int) -> int:
    """Return the record number of offset 0 of the partition with this slot."""
    return slot << _OFFSET_BITS


def of_relation(relation: str) -> pa.StructType:
    """Return the type of a relation's rows."""
    # Delta knows no milliseconds.
    return pa.struct(
        [
            (name, pa.timestamp("us") if kind == "TIMESTAMP" else ARROW_TYPES[kind])
            for name, kind in RELATIONS[relation].items()
        ]
    )


def table_schema() -> pa.Schema:
    """Return the columns of the whole table."""
    relations = [(name, of_relation(name)) for name in RELATIONS]
    return pa.schema([(RELATION, pa.string()), (NUMBER, pa.int64()), *relations])


def rows_of(relation: str, table: pa.Table) -> pa.Table:
    """Turn a table with the relation's columns, and perhaps record numbers, into rows of a file."""
    kind = of_relation(relation)
    columns = [table[field.name].cast(field.type).combine_chunks() for field in kind]
    made = pa.StructArray.from_arrays(columns, fields=list(kind))
    numbers = table[NUMBER] if NUMBER in table.column_names else pa.nulls(len(table), pa.int64())
    return pa.table({NUMBER: numbers, relation: made})


def as_rows(relation: str, rows: Sequence[Mapping[str, object]]) -> pa.Table:
    """Turn rows of a relation of the archive's own, which have no record number, into rows of a file."""
    numbers = pa.nulls(len(rows), pa.int64())
    return pa.table({NUMBER: numbers, relation: pa.array(rows, of_relation(relation))})


def conformed(relation: str, table: pa.Table) -> pa.Table | None:
    """Give the rows of a file, perhaps of an older package, all columns that there are now.

    ``None``: it has columns that this package does not know, which must not be lost.
    """
    kind, column = of_relation(relation), table[relation].combine_chunks()
    there = {field.name for field in column.type}
    if there - {field.name for field in kind}:
        return None
    made = pa.StructArray.from_arrays(
        [
            column.field(field.name).cast(field.type)
            if field.name in there
            else pa.nulls(len(column), field.type)
            for field in kind
        ],
        fields=list(kind),
    )
    return pa.table({NUMBER: table[NUMBER], relation: made})
