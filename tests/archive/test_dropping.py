"""A dropped run leaves nothing behind but its name, and its disk space comes back."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.archive.history import made_up_run, stored
from unstable_stream.archive import (
    ArchiveWriter,
    drop_run,
    dropped_runs,
    open_archive,
    query,
)
from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.tables import TABLES
from unstable_stream.errors import ArchiveError, RunError
from unstable_stream.events import Event, Trajectory
from unstable_stream.log.port import StoredRecord

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


def _rows(path: Path, run: str) -> dict[str, Sequence[tuple[Any, ...]]]:
    """``Any``: whatever Python value DuckDB makes of the column's type."""
    return {name: query(path, f"FROM {name} WHERE run_id = ? ORDER BY ALL", [run]).rows for name in _TABLES}


def _files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "archive.duckdb"
    with ArchiveWriter(path, "log-1") as writer:
        writer.write(_two_runs())
    return path


def test_the_space_comes_back_and_the_other_run_stays_as_it_was(path: Path, tmp_path: Path) -> None:
    before, kept = path.stat().st_size, _rows(path, "run-b")
    own = {name: query(path, f"FROM {name} ORDER BY ALL").rows for name in ("positions", "schema_version")}
    dropped = drop_run(path, "run-a")
    assert (dropped.run_id, dropped.name, dropped.records) == ("run-a", "made up run-a", len(made_up_run()))
    assert dropped_runs(path) == [dropped]
    assert not any(_rows(path, "run-a").values())
    assert _rows(path, "run-b") == kept
    assert {name: query(path, f"FROM {name} ORDER BY ALL").rows for name in own} == own
    assert query(path, "SELECT run_id FROM runs").rows == [("run-b",)]
    # As small as an archive that never had it, and so at least a third smaller than it was.
    alone = tmp_path / "alone" / path.name
    with ArchiveWriter(alone, "log-1") as writer:
        writer.write(stored(_with_texts(made_up_run("run-b"), 2)))
    assert path.stat().st_size < 1.15 * alone.stat().st_size
    assert path.stat().st_size < 0.67 * before
    assert _files(tmp_path) == ["alone", path.name]


def test_an_archiver_at_work_goes_on_and_passes_over_the_run(tmp_path: Path) -> None:
    path, records = tmp_path / "archive.duckdb", _two_runs()
    third = len(records) // 3
    with ArchiveWriter(path, "log-1") as writer:
        writer.write(records[:third])
        prepared = writer.prepare(records[third : 2 * third])
        drop_run(path, "run-a")  # which most of the batch is of
        writer.store(prepared)
        writer.write(records[2 * third :])
        positions = dict(writer.positions)
    assert not any(_rows(path, "run-a").values())
    whole = tmp_path / "whole.duckdb"
    with ArchiveWriter(whole, "log-1") as writer:
        writer.write(records)
        assert writer.positions == positions
    assert _rows(path, "run-b") == _rows(whole, "run-b")
    # The next archiver neither: it knows the positions, and whom it is to leave out.
    with ArchiveWriter(path, "log-1") as writer:
        assert writer.write(records).records == 0
    with ArchiveWriter(path, "another log") as writer:
        writer.write(records)
    assert not any(_rows(path, "run-a").values())


@pytest.mark.parametrize("step", ["fill", "rename"])
def test_an_interruption_leaves_the_whole_run(path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    kept = _rows(path, "run-a")
    leftover = path.with_name(f"{path.name}.new")
    leftover.write_bytes(b"of a process that was killed")

    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    if step == "fill":
        monkeypatch.setattr("unstable_stream.archive.dropping.TABLES", [None])
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


def test_a_run_that_is_not_there_and_an_archive_that_is_shared(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(RunError, match="has no record of run run-x"):
        drop_run(path, "run-x")
    with pytest.raises(ArchiveError, match="no archive at"):
        drop_run(tmp_path / "none.duckdb", "run-a")
    with pytest.raises(ArchiveError, match="is a shared archive, of which no run can be dropped yet"):
        drop_run(f"delta:{tmp_path}/shared", "run-a")
    assert path.read_bytes() == before


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
