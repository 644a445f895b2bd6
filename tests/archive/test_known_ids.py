"""Recognise an event that was archived long ago, with few ids in memory, whatever happened to the files."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.archive.history import made_up_run, stored
from unstable_stream.archive import ArchiveWriter, known_ids, query
from unstable_stream.archive.file_store import FileStore
from unstable_stream.archive.known_ids import ids_directory
from unstable_stream.log.port import StoredRecord

pytestmark = pytest.mark.longer

_BATCH = 40


@pytest.fixture(autouse=True)
def _few_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_ids, "_IN_MEMORY", 30)
    monkeypatch.setattr(known_ids, "_PIECE", 25)


def _batches(records: Sequence[StoredRecord]) -> Iterator[Sequence[StoredRecord]]:
    for start in range(0, len(records), _BATCH):
        yield records[start : start + _BATCH]


def _again(records: Sequence[StoredRecord]) -> list[StoredRecord]:
    ends = {(record.topic, record.partition): record.offset + 1 for record in records}
    return [replace(r, offset=r.offset + ends[r.topic, r.partition]) for r in records]


def _write(path: Path, records: Sequence[StoredRecord]) -> tuple[int, int]:
    """Return the number of new events and of those recognised."""
    with ArchiveWriter(path) as writer:
        written = [writer.write(batch) for batch in _batches(records)]
    return sum(w.records - w.duplicates for w in written), sum(w.duplicates for w in written)


def _memory(writer: ArchiveWriter) -> int:
    """Return the number of ids in memory."""
    assert isinstance(writer._store, FileStore)
    return len(writer._store._ids._memory)


def test_events_are_recognised_from_files_and_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    records = stored(made_up_run())
    with ArchiveWriter(path) as writer:
        for batch in _batches(records):
            assert writer.write(batch).duplicates == 0
            assert _memory(writer) < 30
        sizes = [file.stat().st_size for file in ids_directory(path).glob("*.hashes")]
        assert sum(sizes) + 8 * _memory(writer) == 8 * len(records)
        assert len(sizes) < len(records) / _BATCH
        # Also those that are in no file yet.
        assert sum(writer.write(batch).duplicates for batch in _batches(_again(records))) == len(records)
    other = [replace(r, partition=r.partition + 10) for r in stored(made_up_run("run-b"))]
    assert _write(path, other) == (len(other), 0)
    assert query(path, "SELECT count(*) FROM trajectories").rows == [(76,)]


def test_a_restart_reads_only_what_is_in_no_file(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    records = stored(made_up_run())
    _write(path, records)
    before = sorted(ids_directory(path).iterdir())
    with ArchiveWriter(path) as writer:
        assert 0 < _memory(writer) < 30
        assert sorted(ids_directory(path).iterdir()) == before
    assert _write(path, _again(records)) == (0, len(records))


@pytest.mark.parametrize("lost", ["all", "index.json", "hashes", "of another DuckDB", "of another archive"])
def test_files_that_are_gone_or_of_something_else_are_made_anew(tmp_path: Path, lost: str) -> None:
    path = tmp_path / "a.duckdb"
    records = stored(made_up_run())
    _write(path, records)
    directory = ids_directory(path)
    index = directory / "index.json"
    if lost == "all":
        shutil.rmtree(directory)
    elif lost == "index.json":
        index.unlink()
    elif lost == "hashes":
        next(directory.glob("*.hashes")).unlink()
    elif lost == "of another DuckDB":
        index.write_text(index.read_text().replace('"duckdb":"', '"duckdb":"0.'))
    else:
        shutil.rmtree(directory)
        _write(tmp_path / "b.duckdb", stored(made_up_run("run-b")))
        shutil.copytree(ids_directory(tmp_path / "b.duckdb"), directory)
    assert _write(path, _again(records)) == (0, len(records))


def test_a_copy_put_back_that_went_on_otherwise_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    records = stored(made_up_run())
    half = len(records) // 2
    _write(path, records[:half])
    shutil.copy(path, tmp_path / "copy.duckdb")
    _write(path, records[half:])
    shutil.copy(tmp_path / "copy.duckdb", path)
    # The files are of the archive as it was; the same numbers are given to other records now.
    other = [replace(r, partition=r.partition + 10) for r in stored(made_up_run("run-b"))[:half]]
    elsewhere = [replace(r, partition=r.partition + 10) for r in other]
    assert _write(path, other) == (half, 0)
    assert _write(path, elsewhere) == (0, half)
