"""A dropped run leaves nothing behind but its name, and its disk space comes back.

What only a shared archive can meet is in ``test_shared_dropping.py``.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.archive.content import rows_of
from tests.archive.history import made_up_run, stored, with_texts
from tests.conftest import Archives
from unstable_stream.archive import ArchiveWriter, archive_bytes, drop_run, dropped_runs, query
from unstable_stream.errors import ArchiveError, RunError
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.stores.archive_address import ArchiveAddress

pytestmark = pytest.mark.longer

_TWO_RUNS = stored([*made_up_run("run-a"), *made_up_run("run-b")])


def _files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def _fill(archive: ArchiveAddress, records: Sequence[StoredRecord]) -> None:
    with ArchiveWriter(archive, "log-1") as writer:
        writer.write(records)


def test_the_space_comes_back_and_the_other_run_stays_as_it_was(archive_at: Archives, tmp_path: Path) -> None:
    archive = archive_at("archive")
    first, second = with_texts("run-a", updates=2), with_texts("run-b", updates=2)
    _fill(archive, stored([*first, *second]))
    before, kept = archive_bytes(archive), rows_of(archive, "run-b")
    own = {name: query(archive, f"FROM {name} ORDER BY ALL").rows for name in ("positions", "schema_version")}
    dropped = drop_run(archive, "run-a")
    assert (dropped.run_id, dropped.name, dropped.records) == ("run-a", "made up run-a", len(first))
    assert dropped_runs(archive) == [dropped]
    assert not rows_of(archive, "run-a")
    assert rows_of(archive, "run-b") == kept
    assert {name: query(archive, f"FROM {name} ORDER BY ALL").rows for name in own} == own
    assert query(archive, "SELECT run_id FROM runs").rows == [("run-b",)]
    # As small as an archive that never had it, and so at least a third smaller than it was.
    alone = archive_at("alone")
    _fill(alone, stored(second))
    assert archive_bytes(archive) < 1.15 * archive_bytes(alone)
    assert archive_bytes(archive) < 0.67 * before
    assert len(_files(tmp_path)) == 2


def test_an_archiver_at_work_goes_on_and_passes_over_the_run(archive_at: Archives, tmp_path: Path) -> None:
    archive = archive_at("archive")
    records = _TWO_RUNS
    third = len(records) // 3
    with ArchiveWriter(archive, "log-1") as writer:
        writer.write(records[:third])
        prepared = writer.prepare(records[third : 2 * third])
        drop_run(archive, "run-a")  # which most of the batch is of
        writer.store(prepared)
        writer.write(records[2 * third :])
        positions = dict(writer.positions)
    assert not rows_of(archive, "run-a")
    whole = tmp_path / "whole.duckdb"
    with ArchiveWriter(whole, "log-1") as writer:
        writer.write(records)
        assert writer.positions == positions
    besides = "* EXCLUDE (record_number)"
    assert rows_of(archive, "run-b", besides) == rows_of(whole, "run-b", besides)
    # The next archiver neither: it knows the positions, and whom it is to leave out.
    with ArchiveWriter(archive, "log-1") as writer:
        assert writer.write(records).records == 0
    with ArchiveWriter(archive, "another log") as writer:
        writer.write(records)
    assert not rows_of(archive, "run-a")


@pytest.mark.parametrize("step", ["fill", "rename"])
def test_an_interruption_leaves_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "archive.duckdb"
    _fill(path, _TWO_RUNS)
    kept = rows_of(path, "run-a")
    path.with_name(f"{path.name}.new").write_bytes(b"of a process that was killed")

    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if step == "fill":
            patch.setattr("unstable_stream.archive.file_store.TABLES", [None])
        else:
            patch.setattr(Path, "replace", full)
        with pytest.raises((AttributeError, ArchiveError)) as failed:
            drop_run(path, "run-a")
    assert step == "fill" or re.search("No space left.*as much free disk as what stays", str(failed.value))
    assert _files(tmp_path) == [path.name]
    assert rows_of(path, "run-a") == kept
    assert drop_run(path, "run-a").records > 0


def test_a_run_and_an_archive_that_are_not_there(archive_at: Archives, tmp_path: Path) -> None:
    archive = archive_at("archive")
    with pytest.raises(ArchiveError, match="no archive at"):
        drop_run(archive, "run-a")
    assert _files(tmp_path) == []
    _fill(archive, stored(made_up_run()))
    kept = rows_of(archive, "run-a")
    with pytest.raises(RunError, match="has no record of run run-x"):
        drop_run(archive, "run-x")
    assert (rows_of(archive, "run-a"), dropped_runs(archive)) == (kept, [])
    drop_run(archive, "run-a")
    with pytest.raises(RunError, match="has no record of run run-a"):
        drop_run(archive, "run-a")
    assert len(dropped_runs(archive)) == 1
