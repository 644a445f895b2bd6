"""SQL is a closed room: it reads the archive and nothing else, and no statement ends the process."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from tests.archive.history import made_up_run, stored
from tests.archive.statements import ENDLESS, STATEMENTS
from tests.processes import completed
from tests.tiers import chosen
from unstable_stream.archive import ArchiveWriter, query, query_arrow, store, stream
from unstable_stream.archive.statements import UNSAFE_FUNCTIONS
from unstable_stream.errors import ArchiveError
from unstable_stream.ui.cli import app

pytestmark = pytest.mark.longer


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    with ArchiveWriter(directory / "archive.duckdb") as writer:
        writer.write(stored(made_up_run(updates=1)))
    return directory


def ask_in_a_child(archive: Path, place: Path, door: str, statements: Sequence[str]) -> list[str]:
    """Return how each statement ended; the process must live to the end of the last one."""
    lines = [json.dumps([str(archive), str(place), door]), *map(json.dumps, statements)]
    child = completed(sys.executable, "-m", "tests.archive.ask", input="\n".join(lines))
    ends = [json.loads(line) for line in child.stdout.splitlines()]
    last = statements[len(ends)][:200] if len(ends) < len(statements) else "the last one"
    assert child.returncode == 0, f"status {child.returncode} at {last!r}: {child.stderr[-2000:]}"
    return ends


def wrong_ends(statements: Sequence[tuple[str, str]], ends: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return what did not end as it must: with rows, or in one line that says what is wrong."""
    return [
        (sql[:100], says, end[:300])
        for (sql, says), end in zip(statements, ends, strict=True)
        if not re.fullmatch(rf"ArchiveError: (?!{{).*(?:{says}).*" if says else r"\d+|written", end)
    ]


def placed(place: Path) -> list[tuple[str, str]]:
    (place / "secret.txt").write_text("secret")
    return [(sql.replace("{place}", str(place)), says) for sql, says in STATEMENTS]


def test_no_statement_ends_the_process_or_does_more_than_read(data: Path, tmp_path: Path) -> None:
    archive = data / "archive.duckdb"
    before = archive.read_bytes()
    statements = placed(tmp_path)
    assert len({sql for sql, _ in statements}) > 150
    ends = ask_in_a_child(archive, tmp_path, "stream", [sql for sql, _ in statements])
    assert wrong_ends(statements, ends) == []
    assert archive.read_bytes() == before
    assert [path.name for path in data.iterdir()] == [archive.name]
    assert [path.name for path in tmp_path.iterdir()] == ["secret.txt"]


@chosen("door", ["parquet"], ("arrow", "run"))
def test_every_door_has_the_same_guard(data: Path, tmp_path: Path, door: str) -> None:
    # Without a statement there are no columns, and so no file.
    statements = [(sql, says) for sql, says in placed(tmp_path) if sql.strip("; ")][3::6]
    ends = ask_in_a_child(data / "archive.duckdb", tmp_path, door, [sql for sql, _ in statements])
    assert wrong_ends(statements, ends) == []
    assert [path.name for path in tmp_path.iterdir()] == ["secret.txt"]


def test_a_statement_without_end_is_cancelled(data: Path, tmp_path: Path) -> None:
    ends = ask_in_a_child(data / "archive.duckdb", tmp_path, "cancelled", ENDLESS)
    assert set(ends) == {"ArchiveError: the query was cancelled"}


def test_every_table_function_was_judged() -> None:
    """Those that are neither here nor refused are new in this DuckDB: look at what they do."""
    harmless = re.compile(
        "duckdb_|pragma_|read_|parquet_|json_(each|tree)|test_|glob|sniff_csv|which_secret|seq_scan|summary"
        "|range|generate_series|repeat|unnest|query_table|pg_timezone_names|icu_calendar_names"
    )
    with duckdb.connect() as connection:
        names = connection.execute(
            "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'table'"
        ).fetchall()
    assert {name for (name,) in names if not harmless.match(name)} <= UNSAFE_FUNCTIONS


def test_temporary_files_are_bounded_and_not_beside_the_archive(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_MOST_BYTES", 40_000_000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sql = (
        "SELECT count(*) FROM (SELECT md5(range::VARCHAR) AS m FROM range(3000000) ORDER BY m LIMIT 2500000)"
    )
    with pytest.raises(ArchiveError, match="memory and disk of a query are bounded: ask for fewer rows"):
        query(data / "archive.duckdb", sql)
    assert [path.name for path in data.iterdir()] == ["archive.duckdb"]
    assert list(tmp_path.iterdir()) == []


def test_readers_of_one_process_share_the_archive(data: Path, tmp_path: Path) -> None:
    archive = data / "archive.duckdb"
    with stream(archive, "FROM runs") as first, stream(archive, "FROM runs") as second:
        assert list(first.rows) == list(second.rows)
        assert query_arrow(archive, "FROM runs", run_id="run-a").num_rows == 1
        with pytest.raises(ArchiveError, match="refused"):
            query(archive, "SET threads = 1000")


def test_files_can_be_allowed(data: Path, tmp_path: Path) -> None:
    archive = data / "archive.duckdb"
    query(archive, f"COPY (SELECT run_id FROM runs) TO '{tmp_path}/runs.csv'", files=True)
    found = query(archive, f"SELECT * FROM read_csv('{tmp_path}/runs.csv')", files=True)
    assert found.rows == query(archive, "SELECT run_id FROM runs").rows
    with duckdb.connect(tmp_path / "mine.duckdb") as mine:
        mine.execute("CREATE TABLE t AS SELECT 1")
    assert query(archive, f"ATTACH '{tmp_path}/mine.duckdb' AS m; FROM m.t", files=True).rows == [(1,)]
    assert query_arrow(archive, f"FROM '{tmp_path}/runs.csv'", files=True).num_rows == 1


@pytest.mark.parametrize(("files", "write"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    "sql", ["SET threads = 1000", "FROM enable_logging()", "CALL enable_logging()", "PRAGMA enable_profiling"]
)
def test_settings_stay_locked_whatever_is_allowed(data: Path, files: bool, write: bool, sql: str) -> None:
    with pytest.raises(ArchiveError, match=r"refused|locked"):
        query(data / "archive.duckdb", sql, files=files, write=write)


def test_changes_can_be_allowed_without_files(data: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive.duckdb"
    archive.write_bytes((data / "archive.duckdb").read_bytes())
    query(archive, "CREATE TEMP TABLE t AS FROM runs; DELETE FROM metrics; CHECKPOINT", write=True)
    with pytest.raises(ArchiveError, match="Add --files"):
        query(archive, f"COPY runs TO '{tmp_path}/out.csv'", write=True)
    with pytest.raises(ArchiveError, match="disabled by configuration"):
        query(archive, f"CREATE TABLE t AS FROM read_text('{tmp_path}/x')", write=True)


def test_on_the_command_line_the_remedy_is_said(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.csv"
    arguments = ["sql", f"COPY (SELECT run_id FROM runs) TO '{out}'", "--data", str(data)]
    for more in ([], ["--write"]):
        refused = CliRunner().invoke(app, arguments + more)
        assert "Add --files to let a query read and write files" in str(refused.exception)
        assert not out.exists()
    assert CliRunner().invoke(app, [*arguments, "--files"]).exit_code == 0
    assert out.exists()


@pytest.mark.parametrize("after_s", [0.1, 1.0], ids=["as it opens", "as it runs"])
def test_ctrl_c_ends_a_query(data: Path, after_s: float) -> None:
    """In the thread of the query, which only the main thread of a process can be."""
    script = (
        "import sys, _thread, threading\n"
        "from unstable_stream.archive import query\n"
        "threading.Timer(float(sys.argv[3]), _thread.interrupt_main).start()\n"
        "try: query(sys.argv[1], sys.argv[2])\n"
        "except KeyboardInterrupt: print('ended')\n"
    )
    arguments = [sys.executable, "-c", script, str(data / "archive.duckdb"), ENDLESS[0], str(after_s)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "ended\n"
