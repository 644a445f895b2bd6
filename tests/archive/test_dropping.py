"""A dropped run leaves nothing behind but its name, and its disk space comes back.

What only a shared archive can meet is in ``test_shared_dropping.py``.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.archive.history import made_up_run, stored
from unstable_stream.archive import (
    ArchiveWriter,
    archive_bytes,
    drop_run,
    dropped_runs,
    held,
    open_archive,
    query,
)
from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.tables import TABLES
from unstable_stream.errors import ArchiveError, RunError
from unstable_stream.events import Event, Trajectory
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.stores.archive_address import ArchiveAddress

pytestmark = pytest.mark.longer

_TABLES = [table.name for table in (EVENTS, *TABLES)]
_TEXT_BYTES = 100_000


def _with_texts(events: list[Event], seed: int) -> list[Event]:
    """Give each trajectory a text that nothing can compress much, so that rows are what takes the space."""
    made = random.Random(seed)

    def padded(event: Event) -> Event:
        if not isinstance(event, Trajectory):
            return event
        turn = msgspec.structs.replace(event.turns[0], prompt=made.randbytes(_TEXT_BYTES).hex())
        return msgspec.structs.replace(event, turns=(turn, *event.turns[1:]))

    return list(map(padded, events))


def _two_runs() -> list[StoredRecord]:
    return stored(_with_texts(made_up_run(), 1) + _with_texts(made_up_run("run-b"), 2))


def _rows(archive: ArchiveAddress, run: str, columns: str = "*") -> dict[str, Sequence[tuple[Any, ...]]]:
    """``Any``: whatever Python value DuckDB makes of the column's type."""
    sql = f"SELECT {columns} FROM {{}} WHERE run_id = ? ORDER BY ALL"
    with held(archive):
        return {name: query(archive, sql.format(name), [run]).rows for name in _TABLES}


def _files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(params=["file", "shared"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveAddress:
    """Where an archive of either kind is to be."""
    return tmp_path / "archive.duckdb" if request.param == "file" else f"delta:{tmp_path / 'shared'}"


def _fill(archive: ArchiveAddress, records: Sequence[StoredRecord]) -> None:
    with ArchiveWriter(archive, "log-1") as writer:
        writer.write(records)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "archive.duckdb"
    _fill(path, _two_runs())
    return path


def test_the_space_comes_back_and_the_other_run_stays_as_it_was(
    archive: ArchiveAddress, tmp_path: Path
) -> None:
    _fill(archive, _two_runs())
    before, kept = archive_bytes(archive), _rows(archive, "run-b")
    own = {name: query(archive, f"FROM {name} ORDER BY ALL").rows for name in ("positions", "schema_version")}
    dropped = drop_run(archive, "run-a")
    assert (dropped.run_id, dropped.name, dropped.records) == ("run-a", "made up run-a", len(made_up_run()))
    assert dropped_runs(archive) == [dropped]
    assert not any(_rows(archive, "run-a").values())
    assert _rows(archive, "run-b") == kept
    assert {name: query(archive, f"FROM {name} ORDER BY ALL").rows for name in own} == own
    assert query(archive, "SELECT run_id FROM runs").rows == [("run-b",)]
    # As small as an archive that never had it, and so at least a third smaller than it was.
    alone = str(archive).replace(str(tmp_path), str(tmp_path / "alone"))
    _fill(alone, stored(_with_texts(made_up_run("run-b"), 2)))
    assert archive_bytes(archive) < 1.15 * archive_bytes(alone)
    assert archive_bytes(archive) < 0.67 * before
    assert len(_files(tmp_path)) == 2


def test_an_archiver_at_work_goes_on_and_passes_over_the_run(archive: ArchiveAddress, tmp_path: Path) -> None:
    records = _two_runs()
    third = len(records) // 3
    with ArchiveWriter(archive, "log-1") as writer:
        writer.write(records[:third])
        prepared = writer.prepare(records[third : 2 * third])
        drop_run(archive, "run-a")  # which most of the batch is of
        writer.store(prepared)
        writer.write(records[2 * third :])
        positions = dict(writer.positions)
    assert not any(_rows(archive, "run-a").values())
    whole = tmp_path / "whole.duckdb"
    with ArchiveWriter(whole, "log-1") as writer:
        writer.write(records)
        assert writer.positions == positions
    besides = "* EXCLUDE (record_number)"
    assert _rows(archive, "run-b", besides) == _rows(whole, "run-b", besides)
    # The next archiver neither: it knows the positions, and whom it is to leave out.
    with ArchiveWriter(archive, "log-1") as writer:
        assert writer.write(records).records == 0
    with ArchiveWriter(archive, "another log") as writer:
        writer.write(records)
    assert not any(_rows(archive, "run-a").values())


@pytest.mark.parametrize("step", ["fill", "rename"])
def test_an_interruption_leaves_the_whole_run(path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    kept = _rows(path, "run-a")
    leftover = path.with_name(f"{path.name}.new")
    leftover.write_bytes(b"of a process that was killed")

    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    if step == "fill":
        monkeypatch.setattr("unstable_stream.archive.file_store.TABLES", [None])
        with pytest.raises(AttributeError):
            drop_run(path, "run-a")
    else:
        monkeypatch.setattr(Path, "replace", full)
        with pytest.raises(ArchiveError, match=r"No space left on device.*as much free disk as what stays"):
            drop_run(path, "run-a")
    monkeypatch.undo()
    assert _files(path.parent) == [path.name]
    assert _rows(path, "run-a") == kept
    assert drop_run(path, "run-a").records > 0


def test_a_run_and_an_archive_that_are_not_there(archive: ArchiveAddress, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="no archive at"):
        drop_run(archive, "run-a")
    assert _files(tmp_path) == []
    _fill(archive, stored(made_up_run()))
    kept = _rows(archive, "run-a")
    with pytest.raises(RunError, match="has no record of run run-x"):
        drop_run(archive, "run-x")
    assert (_rows(archive, "run-a"), dropped_runs(archive)) == (kept, [])
    drop_run(archive, "run-a")
    with pytest.raises(RunError, match="has no record of run run-a"):
        drop_run(archive, "run-a")
    assert len(dropped_runs(archive)) == 1


def test_what_an_older_package_did_not_note_is_noted_while_it_can_be_seen(tmp_path: Path) -> None:
    path = tmp_path / "archive.duckdb"
    with ArchiveWriter(path, "log-1") as writer:
        writer.write([record for record in _two_runs() if record.topic != "metrics" or record.offset >= 2])
    with open_archive(path) as connection:
        begun = connection.execute(
            'SELECT log_id, topic, "partition", 0, min("offset"), NULL FROM events '
            'GROUP BY ALL HAVING min("offset") > 0 ORDER BY ALL'
        ).fetchall()
    assert {row[1] for row in begun} == {"metrics"}
    drop_run(path, "run-b")
    assert query(path, "FROM missing_records ORDER BY ALL").rows == begun
