"""An archive that DuckDB cannot read: one typed error, whoever reads it, and what to do."""

import re
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tests.archive.history import made_up_run, stored
from unstable_stream.archive import ArchiveWriter, RecordReader, open_archive, query, query_arrow, stream
from unstable_stream.archive.export import export_run
from unstable_stream.archive.game_columns import archived_seats
from unstable_stream.archive.store import copy_archive
from unstable_stream.errors import ArchiveError
from unstable_stream.history.hindsight.why import NodeKey, find_node, trace
from unstable_stream.history.views.report import find_runs

_STORAGE_OF_1_4 = 67
"""``storage version`` in the header of a file: what DuckDB 1.4 can read."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "archive.duckdb"
    with ArchiveWriter(path, "log-1") as writer:
        writer.write(stored(made_up_run(updates=1)))
    return path


@pytest.fixture(scope="module")
def damaged(archive: Path) -> Path:
    """An archive that opens, and whose tables cannot be read: all blocks of 64 KB have other bytes."""
    path = archive.with_name("damaged.duckdb")
    copy_archive(archive, path)
    content = bytearray(path.read_bytes())
    blocks_of = "SELECT DISTINCT block_id FROM pragma_storage_info('{}') WHERE block_id >= 0"
    sql = " UNION ".join(blocks_of.format(table) for table in ("events", "updates", "checkpoints"))
    with duckdb.connect(str(path), read_only=True) as connection:
        blocks = connection.execute(sql).fetchall()
    assert blocks
    for (block,) in blocks:
        at = 3 * 4096 + block * 65_536 + 100
        content[at : at + 2000] = bytes(byte ^ 0xFF for byte in content[at : at + 2000])
    path.write_bytes(content)
    return path


_READERS: dict[str, Callable[[Path], object]] = {
    "sql": lambda path: query(path, "SELECT sum(length(value)) FROM events"),
    "arrow": lambda path: query_arrow(path, "FROM events"),
    "of one run": lambda path: query_arrow(path, "FROM events", run_id="run-a"),
    "rows": lambda path: _all_rows(path),
    "why": lambda path: find_node(path, "0"),
    "trace": lambda path: trace(path, NodeKey("update", "run-a", "1")),
    "export": lambda path: export_run(path, "run-a", path.parent / "out"),
    "records": lambda path: RecordReader(path, "log-1").read("runs", 0, 0, 100),
    "seats": lambda path: archived_seats(path, "run-a"),
    "report": lambda path: find_runs(path, []),
}


def _all_rows(path: Path) -> None:
    with stream(path, "FROM events") as result:
        list(result.rows)


@pytest.mark.parametrize("reader", ["sql", "arrow", "of one run", "rows", "why", "trace", "export"])
def test_a_damaged_archive_is_a_typed_error(damaged: Path, reader: str) -> None:
    says = rf"cannot read the archive {re.escape(str(damaged))}: .*unstable-stream archive$"
    with pytest.raises(ArchiveError, match=says) as refused:
        _READERS[reader](damaged)
    assert "{" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("reader", sorted(_READERS))
@pytest.mark.parametrize("spoil", ["cut", "noise"])
def test_what_no_duckdb_opens_names_the_remedy(
    archive: Path, tmp_path: Path, reader: str, spoil: str
) -> None:
    path = tmp_path / "archive.duckdb"
    path.write_bytes({"cut": archive.read_bytes()[:5000], "noise": b"no archive " * 1000}[spoil])
    with pytest.raises(ArchiveError, match="a new one from the log: unstable-stream archive") as refused:
        _READERS[reader](path)
    assert "\n" not in str(refused.value)


def test_a_new_archive_is_for_every_duckdb_that_is_allowed(archive: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.duckdb"
    copy_archive(archive, copy)
    with ArchiveWriter(copy, "log-1") as writer:
        writer.write(stored(made_up_run("run-b", updates=1)))
    for path in (archive, copy):
        assert int.from_bytes(path.read_bytes()[12:20], "little") <= _STORAGE_OF_1_4
        with open_archive(path) as connection:
            assert connection.execute("SELECT count(*) FROM events").fetchone() != (0,)
