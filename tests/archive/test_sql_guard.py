"""A query reaches the archive and nothing else, unless files are allowed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.archive.history import made_up_run, stored
from unstable_stream.archive import ArchiveWriter, query, query_arrow
from unstable_stream.cli import app
from unstable_stream.errors import ArchiveError

Ask = Callable[..., object]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    with ArchiveWriter(directory / "archive.duckdb") as writer:
        writer.write(stored(made_up_run()))
    return directory


@pytest.mark.parametrize("ask", [query, query_arrow])
@pytest.mark.parametrize(
    "sql",
    [
        "COPY runs TO '{place}/out.csv'",
        "EXPORT DATABASE '{place}/out'",
        "SELECT * FROM read_text('{place}/secret.txt')",
        "SELECT * FROM '{place}/secret.txt'",
        "ATTACH '{place}/out.duckdb' AS other",
        "SET enable_external_access = true; COPY runs TO '{place}/out.csv'",
        "INSTALL httpfs",
    ],
)
def test_no_file_is_read_or_written(ask: Ask, sql: str, data: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    with pytest.raises(ArchiveError):
        ask(data / "archive.duckdb", sql.format(place=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.txt"]


def test_files_can_be_allowed(data: Path, tmp_path: Path) -> None:
    archive = data / "archive.duckdb"
    query(archive, f"COPY (SELECT run_id FROM runs) TO '{tmp_path}/runs.csv'", files=True)
    found = query(archive, f"SELECT * FROM read_csv('{tmp_path}/runs.csv')", files=True)
    assert found.rows == query(archive, "SELECT run_id FROM runs").rows


def test_on_the_command_line_the_remedy_is_said(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.csv"
    arguments = ["sql", f"COPY (SELECT run_id FROM runs) TO '{out}'", "--data", str(data)]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code != 0
    assert "Add --files to let a query read and write files." in str(refused.exception)
    assert not out.exists()
    assert CliRunner().invoke(app, [*arguments, "--files"]).exit_code == 0
    assert out.exists()
