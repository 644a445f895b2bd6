"""A run is dropped from a shared archive while others write, and whoever does it is killed.

What it has in common with a DuckDB file is in ``test_dropping.py`` and ``tests/api``.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.archive import dying
from tests.archive.content import rows_of
from tests.archive.history import made_up_run, stored
from tests.forks import assert_killed
from tests.tiers import chosen
from unstable_stream.archive import ArchiveWriter, drop_run, dropped_runs, query
from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.shared import table as table_module
from unstable_stream.archive.shared.relations import DROPPED
from unstable_stream.archive.shared.store import compact
from unstable_stream.archive.shared.table import SharedTable
from unstable_stream.archive.tables import TABLES
from unstable_stream.errors import RunError
from unstable_stream.log.port import StoredRecord

pytestmark = pytest.mark.longer

_LOG = "log-1"
_OF_A = len(made_up_run(updates=2))
_HALF = _OF_A // 2
_RECORDS = stored(made_up_run(updates=2) + made_up_run("run-b", updates=1))
_NAMES = [table.name for table in (EVENTS, *TABLES)]


def _write(address: str, records: Sequence[StoredRecord], size: int = 60) -> None:
    with ArchiveWriter(address, _LOG) as writer:
        for start in range(0, len(records), size):
            writer.write(records[start : start + size])


def _on_disk(address: str, run: str) -> int:
    """Count the rows of a run in all files of the table, also those that readers leave out."""
    table = SharedTable(address)
    files = [file for file in table.files() if file.relation in _NAMES]
    return sum(row["run_id"] == run for file in files for row in table.read(file)[file.relation].to_pylist())


# -- others write -----------------------------------------------------------------------------


def test_two_archivers_write_while_a_run_is_dropped(address: str, tmp_path: Path) -> None:
    """Neither waits for the other, and both have prepared batches with records of the run."""
    _write(address, _RECORDS[:30])
    begun = threading.Barrier(3, timeout=100)

    def work(share: int) -> None:
        mine = [r for r in _RECORDS if hash((r.topic, r.partition)) % 2 == share]
        with ArchiveWriter(address, _LOG) as writer:
            prepared = writer.prepare(mine[:40])
            begun.wait()
            writer.store(prepared)
            for start in range(40, len(mine), 10):
                writer.write(mine[start : start + 10])

    with ThreadPoolExecutor(2) as threads:
        working = threads.map(work, range(2))
        begun.wait()
        dropped = drop_run(address, "run-a")
        list(working)
    assert 30 <= dropped.records <= _OF_A
    assert [run.run_id for run in dropped_runs(address)] == ["run-a"]
    assert _on_disk(address, "run-a") == 0
    other = f"delta:{tmp_path / 'other'}"
    _write(other, _RECORDS)
    kept, whole = ({n: len(rows) for n, rows in rows_of(at, "run-b").items()} for at in (address, other))
    assert kept == whole
    positions = "FROM positions ORDER BY ALL"
    assert query(address, positions).rows == query(other, positions).rows


def test_a_batch_whose_files_are_written_is_written_anew(
    address: str, before_commits: Callable[..., None]
) -> None:
    _write(address, _RECORDS[:_HALF])
    with ArchiveWriter(address, _LOG) as writer:
        prepared = writer.prepare(_RECORDS[_HALF:])
        before_commits(lambda: drop_run(address, "run-a"))
        assert writer.store(prepared).records == len(_RECORDS) - _HALF
    assert _on_disk(address, "run-a") == 0
    assert query(address, "SELECT count(*) FROM events").rows == [(len(_RECORDS) - _OF_A,)]


def test_others_commit_before_the_drop(address: str, before_commits: Callable[..., None]) -> None:
    """Another archiver stores records, of the run too, and small files are merged, those of the run too."""
    _write(address, _RECORDS[:_HALF], 20)
    with ArchiveWriter(address, _LOG) as writer:
        before_commits(
            lambda: writer.write(_RECORDS[_HALF:_OF_A]),
            lambda: None,  # that commit
            lambda: compact(SharedTable(address), everything=True),
        )
        assert drop_run(address, "run-a").records == _OF_A
        assert _on_disk(address, "run-a") == 0
        assert writer.write(_RECORDS[_OF_A:]).records == len(_RECORDS) - _OF_A
    assert query(address, "SELECT count(*) FROM events").rows == [(len(_RECORDS) - _OF_A,)]


def test_of_two_that_drop_the_same_run_one_is_told(address: str, before_commits: Callable[..., None]) -> None:
    _write(address, _RECORDS)
    before_commits(lambda: drop_run(address, "run-a"))
    with pytest.raises(RunError, match="has no record of run run-a"):
        drop_run(address, "run-a")
    assert len(dropped_runs(address)) == 1


def test_nothing_is_committed_upon_a_version_that_another_thread_looked_up(address: str) -> None:
    _write(address, _RECORDS[:50])
    table = SharedTable(address)
    version = table.refresh()
    _write(address, _RECORDS[:60])
    assert table.refresh() > version
    (file, *_) = table.files("turns")
    assert not table.commit([], [file], upon=version)
    assert file in SharedTable(address).files()


# -- killed -----------------------------------------------------------------------------------


@chosen("step, times", [("after write", 5)], [("after commit", 0), ("before write", 0), ("before commit", 0)])
def test_killed_while_it_drops_a_run(address: str, step: str, times: int) -> None:
    _write(address, _RECORDS, 200)
    before, of_b = rows_of(address, "run-a"), rows_of(address, "run-b")
    assert_killed(dying.drop, address, step, times)
    assert rows_of(address, "run-b") == of_b
    if step == "after commit":
        assert rows_of(address, "run-a") == {}
    else:
        assert (rows_of(address, "run-a"), dropped_runs(address)) == (before, [])
        assert drop_run(address, "run-a").records == _OF_A
    assert [run.records for run in dropped_runs(address)] == [_OF_A]
    assert _on_disk(address, "run-a") == 0


# -- files ------------------------------------------------------------------------------------


def test_the_disk_comes_back_hours_later(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(address, _RECORDS, 50)
    drop_run(address, "run-a")
    table = SharedTable(address)
    assert table.vacuum() == 0  # somebody may read them
    monkeypatch.setattr(table_module, "_KEPT_HOURS", 0)
    assert table.vacuum() > 0
    there = {str(path.relative_to(table.uri)) for path in Path(table.uri).rglob("*.parquet")}
    in_log = {name for name in there if name.startswith("_delta_log")}
    assert there - in_log == {file.name for file in table.files()}
    # Who was dropped is known from a merged file, too.
    drop_run(address, "run-b")
    compact(table, everything=True)
    assert len(SharedTable(address).files(DROPPED)) == 1
    with ArchiveWriter(address, "log-2") as writer:
        writer.write(_RECORDS)
    assert query(address, "SELECT count(*) FROM events").rows == [(0,)]
