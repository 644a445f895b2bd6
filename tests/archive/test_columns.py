"""The columns are those of the event structs: every field is one, or it is listed with the reason why not."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from tests.archive.history import made_up_run, stored
from tools.pages.asyncapi import recorded_structs
from unstable_stream.archive import ArchiveWriter, open_archive, query, query_arrow
from unstable_stream.archive.tables import TABLES
from unstable_stream.archive.tables.declare import NOT_COLUMNS, columns_of
from unstable_stream.archive.view_files import load_views
from unstable_stream.errors import ArchiveError
from unstable_stream.events import Event, RunFinished, Turn


def _reason(struct: type[msgspec.Struct], field: str) -> str | None:
    return next((NOT_COLUMNS[c][field] for c in struct.__mro__ if field in NOT_COLUMNS.get(c, ())), None)


def test_every_event_field_is_a_column_or_listed_with_the_reason() -> None:
    held = {field for table in TABLES for column in table.columns for field in column.fields}
    nowhere = [
        f"{struct.__name__}.{field}"
        for struct in recorded_structs()
        for field in struct.__struct_fields__
        if (struct, field) not in held and not _reason(struct, field)
    ]
    assert nowhere == []
    assert (Turn, "latency_ms") in held


def test_the_list_names_only_fields_that_exist_and_are_no_column() -> None:
    held = {field for table in TABLES for column in table.columns for field in column.fields}
    for struct, fields in NOT_COLUMNS.items():
        assert set(fields) <= set(struct.__struct_fields__)
        assert struct is Event or not [field for field in fields if (struct, field) in held]


def test_a_new_field_becomes_a_column_of_its_own() -> None:
    class Later(RunFinished, frozen=True, kw_only=True, tag="later"):
        spent: dict[str, float] = msgspec.field(default_factory=dict)
        """Seconds by cause; empty: ``None`` was measured."""

    *_, spent, at = columns_of(Later)
    assert (spent.name, spent.sql_type) == ("spent", "MAP(VARCHAR, DOUBLE)")
    assert spent.doc == "Seconds by cause; empty: NULL was measured."
    assert at.name == "occurred_at"


def test_a_type_that_no_column_holds_is_named() -> None:
    class Odd(Event, frozen=True, kw_only=True, tag="odd"):
        shape: tuple[tuple[Any, ...], ...]

    with pytest.raises(TypeError, match=r"Odd\.shape is of type .*NOT_COLUMNS"):
        columns_of(Odd)


def test_an_archive_that_lacks_tables_and_columns_gains_them(tmp_path: Path) -> None:
    path = tmp_path / "old.duckdb"
    with ArchiveWriter(path) as writer:
        writer.write(stored(made_up_run()))
    views = [view.name for view in load_views()]
    expected = _rows_of(path, views)
    with duckdb.connect(str(path)) as connection:
        for table, column in (("updates", "model"), ("update_steps", "model"), ("run_events", "extensions")):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.execute("DROP TABLE collapse_warnings")
        connection.execute("DROP TABLE missing_records")
        connection.execute("CREATE OR REPLACE VIEW runs AS SELECT 1 AS x")
        connection.execute("UPDATE schema_version SET views_digest = 'of an older package'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        with pytest.raises(ArchiveError, match="copy it, or read it once as a user who may write it"):
            query(path, "FROM runs")
    assert _rows_of(path, views) == expected
    assert query(path, "FROM collapse_warnings").rows == []
    assert {row[0] for row in query(path, "SELECT model FROM updates").rows} == {None}
    ((run_id, *_), *_) = query(path, "SELECT run_id FROM runs").rows
    of_run = query_arrow(path, "SELECT run_id, model FROM updates", run_id=run_id)
    assert set(of_run["model"].to_pylist()) == {None}


def _rows_of(path: Path, views: Sequence[str]) -> dict[str, int]:
    with open_archive(path) as connection:
        return {name: len(connection.execute(f"FROM {name}").fetchall()) for name in views}
