"""The columns are those of the event structs: every field is one, or it is listed with the reason why not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from tests.archive.history import made_up_run, stored
from unstable_stream.archive import ArchiveWriter, open_archive, query, query_arrow
from unstable_stream.archive.batch import ARROW_TYPES
from unstable_stream.archive.tables import TABLES
from unstable_stream.archive.tables.declare import columns_of, sql_type
from unstable_stream.archive.tables.not_columns import NOT_COLUMNS
from unstable_stream.archive.view_files import load_views
from unstable_stream.events import Event, RunFinished, RunStarted, Step, Trajectory, Turn, recorded_structs

_OLD_TABLES = Path(__file__).with_name("tables_of_0.1.sql")


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


def test_every_table_of_an_event_family_has_its_columns_types_and_names() -> None:
    for table in TABLES:
        names = [column.name for column in table.columns]
        assert len(names) == len(set(names)), table.name
        assert {column.sql_type for column in table.columns} <= set(ARROW_TYPES)


@pytest.mark.parametrize(
    ("struct", "field", "expected"),
    [
        (RunStarted, "name", "VARCHAR"),
        (RunStarted, "seed", "BIGINT"),
        (RunStarted, "parent_update", "INTEGER"),
        (RunStarted, "config", "JSON"),
        (RunStarted, "occurred_at_ms", "TIMESTAMP"),
        (Turn, "prompt_token_ids", "INTEGER[]"),
        (Turn, "logprobs", "FLOAT[]"),
        (Turn, "valid", "BOOLEAN"),
        (Trajectory, "opponents", "VARCHAR[]"),
        (Step, "reward", "DOUBLE"),
    ],
)
def test_types_follow_from_the_annotations(struct: type[msgspec.Struct], field: str, expected: str) -> None:
    assert sql_type(struct, field) == expected


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

    with pytest.raises(TypeError, match=r"Odd\.shape is of type .*not_columns\.py"):
        columns_of(Odd)


def test_an_archive_of_version_0_1_goes_on_and_gains_the_new_columns(tmp_path: Path) -> None:
    old, new = tmp_path / "old.duckdb", tmp_path / "new.duckdb"
    statements = _OLD_TABLES.read_text(encoding="utf-8")
    with duckdb.connect(str(old)) as connection:
        connection.execute(statements)
        connection.execute("INSERT INTO run_events (run_id, type) VALUES ('earlier', 'run-started')")
        before = {
            row[:2]: row[2]
            for row in connection.execute(
                "SELECT table_name, column_name, data_type FROM duckdb_columns()"
            ).fetchall()
        }
    records = stored(made_up_run())
    for path in (old, new):
        with ArchiveWriter(path) as writer:
            writer.write(records)
    with open_archive(old) as connection:
        after = {
            row[:2]: row[2]
            for row in connection.execute(
                "SELECT table_name, column_name, data_type FROM duckdb_columns()"
            ).fetchall()
        }
    assert {column: after[column] for column in before} == before
    assert "collapse_warnings" in {table for table, _ in after} - {table for table, _ in before}
    assert {column for column in after if column not in before and column[0] == "run_events"} == {
        ("run_events", "parent_games"),
        ("run_events", "extensions"),
        ("run_events", "record_number"),
    }
    assert query(old, "SELECT run_id, parent_games FROM run_events WHERE type = 'run-started'").rows == [
        ("earlier", None),
        ("run-a", 0),
    ]
    for table in TABLES:
        columns = ", ".join(column.quoted for column in table.columns)
        sql = f"SELECT {columns} FROM \"{table.name}\" WHERE run_id <> 'earlier' ORDER BY ALL"
        assert query(old, sql).rows == query(new, sql).rows, table.name


def test_an_archive_that_lacks_tables_and_columns_is_read_as_it_is(tmp_path: Path) -> None:
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
        connection.execute("UPDATE schema_version SET views_digest = 'of an older package'")
    assert _rows_of(path, views) == expected
    assert query(path, "FROM collapse_warnings").rows == []
    assert {row[0] for row in query(path, "SELECT model FROM updates").rows} == {None}
    ((run_id, *_), *_) = query(path, "SELECT run_id FROM runs").rows
    assert set(
        query_arrow(path, "SELECT run_id, model FROM updates", run_id=run_id)["model"].to_pylist()
    ) == {None}


def _rows_of(path: Path, views: Sequence[str]) -> dict[str, int]:
    with open_archive(path) as connection:
        return {name: len(connection.execute(f"FROM {name}").fetchall()) for name in views}
