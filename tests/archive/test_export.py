"""A run as Parquet files: every row and value, readable by others, and never half an export."""

import csv
import json
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from tests.archive.history import made_up_run, stored
from unstable_stream.archive import (
    SCHEMA_VERSION,
    ArchiveWriter,
    RecordReader,
    drop_run,
    held,
    query,
    query_arrow,
)
from unstable_stream.archive.export import default_tables, export_batches, export_run
from unstable_stream.archive.reference import relations
from unstable_stream.errors import ArchiveError, RunError
from unstable_stream.log.stores.archive_address import MANIFEST
from unstable_stream.log.stores.store import Store

pytestmark = pytest.mark.longer


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "archive.duckdb"
    with ArchiveWriter(path, "log-1") as writer:
        writer.write(stored(made_up_run() + made_up_run("run-b", updates=2)))
    return path


def test_every_table_is_read_back_by_arrow_and_duckdb(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = export_run(archive, "run-a", out)
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [MANIFEST, *(f"{name}.parquet" for name in default_tables())]
    )
    written = json.loads((out / MANIFEST).read_bytes())
    assert (written["run_id"], written["run_name"]) == ("run-a", "made up run-a")
    assert (written["schema_version"], written["log_ids"]) == (SCHEMA_VERSION, ["log-1"])
    assert list(written["tables"]) == default_tables()
    with duckdb.connect() as connection:
        for name, table in written["tables"].items():
            path = out / table["file"]
            expected = query(archive, f"SELECT * FROM {name} WHERE run_id = 'run-a'")
            assert table["rows"] == len(expected.rows) == manifest.tables[name].rows
            assert table["bytes"] == path.stat().st_size
            arrow = pq.read_table(path)
            assert (arrow.num_rows, arrow.column_names) == (len(expected.rows), list(expected.columns))
            there = connection.execute(f"SELECT * FROM '{path}'").fetchall()
            assert sorted(map(str, there)) == sorted(map(str, expected.rows)), name
            if arrow.num_rows:
                assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"
    assert manifest.tables["events"].rows == len(made_up_run())
    assert manifest.tables["game_outcomes"].rows == 38


def test_values_as_arrow_sees_them(archive: Path, tmp_path: Path) -> None:
    export_run(archive, "run-a", tmp_path, tables=["turns", "updates"])
    order = ["game_id", "turn_index"]
    turns = pq.read_table(tmp_path / "turns.parquet").sort_by([(name, "ascending") for name in order])
    expected = query(archive, f"FROM turns WHERE run_id = 'run-a' ORDER BY {', '.join(order)}")
    assert turns.to_pylist() == list(expected.dicts())
    (update,) = pq.read_table(tmp_path / "updates.parquet", filters=[("update", "=", 2)]).to_pylist()
    assert dict(update["metrics"])["grad_norm"] == 1.0
    assert dict(update["positions"]) == {"steps[0]": 2}


def test_every_text_is_a_string_to_any_reader_of_parquet(archive: Path, tmp_path: Path) -> None:
    manifest = export_run(archive, "run-a", tmp_path / "tables")
    names = ["training_batches", "learning_curve"]
    views = export_run(archive, "run-a", tmp_path / "views", tables=[*names, *names])
    for name in names:
        assert views.tables[name].rows == len(query(archive, f"FROM {name} WHERE run_id = 'run-a'").rows) > 0
    files = [tmp_path / "tables" / table.file for table in manifest.tables.values()]
    files += [tmp_path / "views" / table.file for table in views.tables.values()]
    files += export_batches(archive, "run-a", tmp_path / "batches", "parquet")
    others = set()
    for file in files:
        schema = pq.ParquetFile(file).schema
        for column in map(schema.column, range(len(schema))):
            if column.physical_type == "BYTE_ARRAY" and str(column.logical_type) != "String":
                others.add((column.path, str(column.logical_type)))
    # Bytes indeed.
    assert others == {(name, "None") for name in ("value_bytes", "record_value", "headers.key_value.value")}
    assert query(archive, "FROM duckdb_columns() WHERE data_type = 'JSON'").rows


def test_nothing_is_overwritten_unless_told(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_run(archive, "run-a", out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ArchiveError, match="holds an export of run run-a; replace it with --force"):
        export_run(archive, "run-b", out)
    export_run(archive, "run-b", out, tables=["seats", "steps"], force=True)
    names = sorted(path.name for path in out.iterdir())
    assert names == [MANIFEST, "notes.txt", "seats.parquet", "steps.parquet"]
    assert json.loads((out / MANIFEST).read_bytes())["run_id"] == "run-b"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    for force in (False, True):
        with pytest.raises(ArchiveError, match="is there already and is no export"):
            export_run(archive, "run-a", foreign, force=force)
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]


def test_to_a_store_and_replaced_there_only_if_told(archive: Path, tmp_path: Path) -> None:
    address = f"memory://{tmp_path.name}-exports/run-a"
    manifest = export_run(archive, "run-a", address, tables=["turns", "updates"])
    store = Store(address)
    assert store.names() == [MANIFEST, "turns.parquet", "updates.parquet"]
    store.get("turns.parquet", tmp_path / "turns.parquet")
    assert pq.read_table(tmp_path / "turns.parquet").num_rows == manifest.tables["turns"].rows
    with pytest.raises(ArchiveError, match="--force"):
        export_run(archive, "run-b", address)
    store.write("mine", b"of somebody else")
    export_run(archive, "run-b", address, tables=["updates"], force=True)
    assert store.names() == [MANIFEST, "mine", "updates.parquet"]
    assert json.loads(store.read(MANIFEST) or b"")["run_id"] == "run-b"
    store.remove(MANIFEST)  # as if it had been interrupted
    with pytest.raises(ArchiveError, match="is there already and is no export"):
        export_run(archive, "run-b", address, tables=["updates"])
    export_run(archive, "run-b", address, tables=["updates"], force=True)
    assert store.names() == [MANIFEST, "mine", "updates.parquet"]


def test_a_manifest_cannot_name_files_elsewhere(archive: Path, tmp_path: Path) -> None:
    out, precious = tmp_path / "out", tmp_path / "precious.txt"
    precious.write_text("keep")
    export_run(archive, "run-a", out, tables=["seats"])
    manifest = json.loads((out / MANIFEST).read_bytes())
    manifest["tables"]["seats"]["file"] = "../precious.txt"
    (out / MANIFEST).write_text(json.dumps(manifest))
    export_run(archive, "run-a", out, tables=["steps"], force=True)
    assert precious.read_text() == "keep"


@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_leaves_what_was_there(archive: Path, tmp_path: Path, existing: bool) -> None:
    out = tmp_path / "out"
    if existing:
        export_run(archive, "run-a", out, tables=["seats"])
    before = sorted(tmp_path.rglob("*"))
    for run, says in (
        ("run-x", "no run 'run-x' in this archive; known runs: run-a, run-b"),
        ("run-", "'run-' is the beginning or the name of several runs: run-a, run-b"),
    ):
        with pytest.raises(RunError, match=says):
            export_run(archive, run, out, force=True)
    with pytest.raises(ArchiveError, match="no table nonsense to export; there are: actions, "):
        export_run(archive, "run-a", out, tables=["nonsense"], force=True)
    with pytest.raises(ArchiveError, match="no archive at"):
        export_run(tmp_path / "none.duckdb", "run-a", out, force=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_that_cannot_be_made(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveError, match=r"could not export to .*/file/out: "):
        export_run(archive, "run-a", tmp_path / "file" / "out")


def test_batches_are_files_of_the_documented_names(archive: Path, tmp_path: Path) -> None:
    files = export_batches(archive, "run-a", tmp_path / "csv")
    expected = query(archive, "SELECT * FROM training_batches WHERE run_id = 'run-a'").dicts()
    updates = sorted({row["update"] for row in expected})
    assert [file.name for file in files] == [f"train_data_step_{update}.csv" for update in updates]
    with files[1].open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    second = [row for row in expected if row["update"] == updates[1]]
    wanted = sorted(second, key=lambda row: row["batch_position"])
    assert {"pid", "obs", "act", "reward", "env_id", "step_info"} <= rows[0].keys()
    assert [(row["step_id"], row["obs"], row["act"], float(row["reward"])) for row in rows] == [
        (row["step_id"], row["obs"], row["act"], row["reward"]) for row in wanted
    ]
    trained = query(archive, "FROM update_steps WHERE run_id = 'run-a' AND fate = 'trained'").rows
    assert len(expected) == len(trained)
    assert all(row["obs"] and row["act"] for row in expected)

    parquet = export_batches(archive, "run-a", tmp_path / "parquet", "parquet")
    assert sum(pq.read_table(file).num_rows for file in parquet) == len(expected)
    assert pq.read_table(parquet[1]).column("step_id").to_pylist() == [row["step_id"] for row in wanted]


def test_batches_replace_nothing_unless_told(archive: Path, tmp_path: Path) -> None:
    first = export_batches(archive, "run-a", tmp_path)[0]
    whole = first.read_bytes()
    first.write_text("mine")
    with pytest.raises(ArchiveError, match=r"has train_data_step_1\.csv already; replace .* with --force"):
        export_batches(archive, "run-a", tmp_path)
    assert first.read_text() == "mine"
    export_batches(archive, "run-a", tmp_path, force=True)
    assert first.read_bytes() == whole
    with pytest.raises(ArchiveError, match="expected one of csv, parquet"):
        export_batches(archive, "run-a", tmp_path, "xlsx")  # type: ignore[arg-type]


# -- as an archive --------------------------------------------------------------------------------


def test_an_export_answers_as_the_archive_did(tmp_path: Path) -> None:
    """All tables and views that know runs, and what is missing."""
    alone, out = tmp_path / "archive.duckdb", tmp_path / "it's out"
    with ArchiveWriter(alone, "log-1") as writer:
        writer.write(stored(made_up_run()))
        ends = RecordReader(alone).ends()
        writer.note_missing({("steps", 9): (0, 7)})
    export_run(alone, "run-a", out)
    names = [relation.name for relation in relations() if "run_id" in relation.columns]
    with held(alone), held(out):
        for sql in (f'FROM "{name}" ORDER BY ALL' for name in names):
            assert query(out, sql) == query(alone, sql)
    assert query_arrow(out, "FROM runs", run_id="run-a").num_rows == 1
    missing = 'SELECT topic, "partition", first_offset, next_offset FROM missing_records'
    assert query(out, missing).rows == query(alone, missing).rows == [("steps", 9, 0, 7)]
    assert RecordReader(out).ends() == ends
    with pytest.raises(ArchiveError, match="disabled by configuration"):
        query(out, f"FROM read_parquet('{alone}')")
    again = export_run(out, "run-a", tmp_path / "again")
    assert again.tables["turns"].rows == len(query(alone, "FROM turns").rows)


def test_an_export_is_only_read(archive: Path, tmp_path: Path) -> None:
    export_run(archive, "run-a", tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    for change in (
        lambda: ArchiveWriter(tmp_path, "log-1"),
        lambda: drop_run(tmp_path, "run-a"),
        lambda: query(tmp_path, "DELETE FROM events", write=True),
    ):
        with pytest.raises(ArchiveError, match="is an export, which is only read"):
            change()
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_what_is_no_whole_export_is_refused(archive: Path, tmp_path: Path) -> None:
    def refused(export: Path, told: str) -> None:
        with pytest.raises(ArchiveError, match=told):
            query(export, "SELECT 1")

    some = tmp_path / "some"
    export_run(archive, "run-a", some, tables=["seats"])
    refused(some, "only an export of all tables can be opened as an archive")
    torn = tmp_path / "torn"
    export_run(archive, "run-a", torn)
    turns = torn / "turns.parquet"
    turns.write_bytes(turns.read_bytes()[:-1])
    refused(torn, r"is not whole: expected turns\.parquet with [\d,]+ bytes, as its manifest\.json says")
    turns.unlink()
    refused(torn, "is not whole")
    manifest = json.loads((torn / MANIFEST).read_bytes())
    for version, remedy in ((99, "Upgrade unstable_stream"), (3, "Export it again")):
        (torn / MANIFEST).write_text(json.dumps(manifest | {"schema_version": version}))
        refused(torn, remedy)
    (torn / MANIFEST).write_text("{}")
    refused(torn, "is no export: expected a directory that unstable-stream export RUN -o was given")


def test_an_export_of_an_older_package_has_all_tables_and_columns(archive: Path, tmp_path: Path) -> None:
    export_run(archive, "run-a", tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_bytes())
    (tmp_path / manifest["tables"].pop("dead_letters")["file"]).unlink()
    updates = tmp_path / "updates.parquet"
    pq.write_table(pq.read_table(updates).drop(["model"]), updates)
    manifest["tables"]["updates"]["bytes"] = updates.stat().st_size
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    assert query(tmp_path, "FROM dead_letters").rows == []
    assert query(tmp_path, "SELECT DISTINCT model FROM updates").rows == [(None,)]
