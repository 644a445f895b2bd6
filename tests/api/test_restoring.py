"""Log expired, archive file lost, Parquet kept: the history is whole again, and answers as before."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import unstable_stream as us
from tests.api.test_dropping import append, expire, lose_the_archive
from tests.api.test_dropping import kind as kind  # a fixture
from tests.archive.history import made_up_run, stored
from tests.proofs.recorded_run import record_run
from unstable_stream.api.archived import export_run, query, relations
from unstable_stream.api.dropping import drop_run
from unstable_stream.api.place import Place
from unstable_stream.api.replaying import Replay
from unstable_stream.api.restoring import restore_run
from unstable_stream.api.serving import archive
from unstable_stream.api.why import find_why
from unstable_stream.archive import ArchiveWriter, held, missing_in_archive, open_writer
from unstable_stream.archive import drop_run as drop
from unstable_stream.archive import restore_run as restore
from unstable_stream.archive.export import MANIFEST
from unstable_stream.archive_address import ArchiveAddress
from unstable_stream.cli import app
from unstable_stream.errors import ArchiveError
from unstable_stream.events import RunFinished, encode_event
from unstable_stream.log.local.log import LocalLog
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.fork import find_fork

RUN = "run-a"
_OF_THE_ARCHIVE = {
    "positions",
    "divergences",
    "missing_records",
    "dropped_runs",
    "restored_runs",
    "schema_version",
}


def _answers(path: ArchiveAddress, run: str) -> dict[str, Sequence[tuple[Any, ...]]]:
    """What every table and view says of a run, but in which order the archive got it; ``Any``: any value."""
    found: dict[str, Sequence[tuple[Any, ...]]] = {}
    with held(path):
        for relation in relations():
            if relation.name not in _OF_THE_ARCHIVE and "run_id" in relation.columns:
                besides = " EXCLUDE (record_number)" if "record_number" in relation.columns else ""
                sql = f"SELECT *{besides} FROM {relation.name} WHERE run_id = ? ORDER BY ALL"
                found[relation.name] = query(path, sql, [run]).rows
    return found


def _count(path: ArchiveAddress) -> int:
    """Count the records, each of which must have a position and a number of its own."""
    ((rows, positions, numbers),) = query(
        path,
        'SELECT count(*), count(DISTINCT (log_id, topic, "partition", "offset")), '
        "count(DISTINCT record_number) FROM events",
    ).rows
    assert rows == positions == numbers
    return int(rows)


@pytest.mark.usefixtures("kind")
def test_from_parquet_alone_history_is_whole_again(tmp_path: Path) -> None:
    place = Place.at(tmp_path)

    async def record() -> None:
        async with LocalLog.open(DataDir(place.root).log, synchronous="NORMAL") as log:
            await record_run(log, RUN)

    async def fork() -> object:
        async with place.opened_history() as log:
            return await find_fork(log, RUN, 0)

    def looked_at() -> list[object]:
        run = us.open_run(RUN, data=place.root)
        return [
            run.verify(games=False),
            run.audit(),
            [encode_event(event) for event in Replay(place, RUN)],
            [encode_event(event) for event in Replay(place, RUN, source="archive")],
            repr(find_why(place, f"{RUN}:update:1")),
            asyncio.run(fork()),
            _answers(place.archive, RUN),
        ]

    asyncio.run(record())
    archive(place)
    append(place.root, made_up_run("run-b", updates=1))
    archive(place)
    # The address of a store that is gone with this process.
    exports = [f"memory://{tmp_path.name}/{run}" for run in (RUN, "run-b")]
    for run, export in zip((RUN, "run-b"), exports, strict=True):
        export_run(place.archive, run, export)
    before = looked_at()
    assert before[0].ok  # type: ignore[attr-defined]
    of_other = _answers(place.archive, "run-b")
    records = _count(place.archive)
    expire(place.root)
    lose_the_archive(place.root)
    archive(place)
    assert _count(place.archive) == 0
    assert missing_in_archive(place.archive)
    for export in exports:
        done = CliRunner().invoke(app, ["archive", "--restore", export, "--data", str(place.root)])
        assert done.exit_code == 0, done.output
        assert "records put back, 0 were there" in done.output
    assert looked_at() == before
    assert _answers(place.archive, "run-b") == of_other
    assert missing_in_archive(place.archive) == []
    # And the archive goes on with the log, and knows what it has.
    assert restore_run(place, exports[0]).records == 0
    append(place.root, made_up_run("run-c", updates=1))
    archive(place)
    assert _count(place.archive) == records + len(made_up_run("run-c", updates=1))


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("store", ["file", "s3"])
def test_a_dropped_run_comes_back(tmp_path: Path, store: str, request: pytest.FixtureRequest) -> None:
    place = Place.at(tmp_path)
    kept = str(tmp_path / "kept") if store == "file" else f"{request.getfixturevalue('s3')}/kept"
    append(tmp_path, [*made_up_run(), *made_up_run("run-b", updates=1)])
    archive(place)
    path = place.archive
    before, records = _answers(path, RUN), _count(path)
    export_run(path, RUN, kept)
    drop_run(place, RUN)
    assert restore_run(place, kept).records == len(made_up_run())
    assert (_answers(path, RUN), _count(path)) == (before, records)
    assert query(path, "SELECT run_id FROM dropped_runs").rows == []
    noted = [(RUN, len(made_up_run()), True)]
    assert query(path, "SELECT run_id, records, whole FROM restored_runs").rows == noted
    assert restore_run(place, kept).records == 0
    assert query(path, "SELECT run_id, records, whole FROM restored_runs").rows == noted
    # Once more around.
    drop_run(place, RUN)
    assert query(path, "SELECT run_id FROM restored_runs").rows == []
    restore_run(place, kept)
    assert _answers(path, RUN) == before


def _archive(kind: str, path: Path) -> ArchiveAddress:
    return path if kind == "file" else f"delta:{path}"


@pytest.mark.parametrize("kind", ["file", "shared"])
def test_an_archiver_at_work_gives_no_number_twice(tmp_path: Path, kind: str) -> None:
    path, records = _archive(kind, tmp_path / "archive"), stored(made_up_run() + made_up_run("run-b"))
    of_a = len(made_up_run())
    with closing(open_writer(path, "log-1")) as writer:
        writer.write(records[:of_a])
        export_run(path, RUN, tmp_path / "kept")
        drop(path, RUN)
        first = writer.prepare(records[of_a : of_a + 50])
        second = writer.prepare(records[of_a + 50 :])
        assert restore(path, tmp_path / "kept", log_id="log-1").records == of_a
        writer.store(first)
        writer.store(second)
        # Events that were put back are known, also where they come again at another position.
        again = writer.write(
            [msgspec.structs.replace(record, partition=record.partition + 100) for record in records[:9]]
        )
        # Of a shared archive only readers know.
        assert (again.records, again.duplicates) == (9, 9 if kind == "file" else 0)
    assert _count(path) == len(records) + 9
    whole = tmp_path / "whole.duckdb"
    with ArchiveWriter(whole, "log-1") as writer:
        writer.write(records)
    assert _answers(path, "run-b") == _answers(whole, "run-b")


def test_of_a_log_that_is_gone_it_is_put_back_when_told(tmp_path: Path) -> None:
    old, new = Place.at(tmp_path / "old"), Place.at(tmp_path / "new")
    append(old.root, made_up_run())
    archive(old)
    before = _answers(old.data.archive_file, RUN)
    export_run(old.archive, RUN, tmp_path / "kept")
    append(new.root, made_up_run("run-b", updates=1))
    with pytest.raises(
        ArchiveError, match=r"is of the log \S+, .* name that log with --log; or, .*--log-gone$"
    ):
        restore_run(new, str(tmp_path / "kept"))
    assert _answers(new.data.archive_file, RUN)["events"] == []
    restore_run(new, str(tmp_path / "kept"), log_gone=True)
    assert _answers(new.data.archive_file, RUN) == before
    assert missing_in_archive(new.archive) == []
    # Where there is no log at all, too.
    restore_run(Place.at(tmp_path / "empty"), str(tmp_path / "kept"), log_gone=True)
    assert _answers(tmp_path / "empty" / "archive.duckdb", RUN) == before


@pytest.mark.usefixtures("kind")
def test_a_run_that_was_exported_before_its_end_is_not_taken_for_whole(tmp_path: Path) -> None:
    place = Place.at(tmp_path)
    whole = made_up_run()
    append(tmp_path, [event for event in whole if not isinstance(event, RunFinished)])
    archive(place)
    export_run(place.archive, RUN, tmp_path / "kept")
    append(tmp_path, [*made_up_run("run-b", updates=1), whole[-1]])
    expire(tmp_path)
    lose_the_archive(tmp_path)
    restore_run(place, str(tmp_path / "kept"))
    assert query(place.archive, "SELECT whole FROM restored_runs").rows == [(False,)]
    assert missing_in_archive(place.archive, RUN)


@pytest.mark.usefixtures("kind")
def test_what_is_no_whole_export_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    place = Place.at(tmp_path)
    append(tmp_path, made_up_run())
    archive(place)
    before = _count(place.archive)

    def refused(export: Path, told: str) -> None:
        with pytest.raises(ArchiveError, match=told):
            restore_run(place, str(export))
        assert _count(place.archive) == before

    refused(tmp_path / "none", "is no export: expected a directory or an address")
    some = tmp_path / "some"
    export_run(place.archive, RUN, some, tables=["seats"])
    refused(some, "only an export of all tables can be put back")
    torn = tmp_path / "torn"
    export_run(place.archive, RUN, torn)
    events = torn / "events.parquet"
    events.write_bytes(events.read_bytes()[:-1])
    refused(torn, r"is not whole: events\.parquet is not there as its manifest\.json says")
    events.unlink()
    refused(torn, "is not whole")
    other = tmp_path / "other"
    export_run(place.archive, RUN, other)
    table = pq.read_table(other / "events.parquet")
    pq.write_table(table.slice(1), other / "events.parquet")
    manifest = json.loads((other / MANIFEST).read_bytes())
    manifest["tables"]["events"]["bytes"] = (other / "events.parquet").stat().st_size
    (other / MANIFEST).write_text(json.dumps(manifest))
    refused(other, r"is not whole: its events are not those that manifest\.json tells of")
    manifest["schema_version"] = 99
    (other / MANIFEST).write_text(json.dumps(manifest))
    refused(other, "Upgrade unstable_stream")


@pytest.mark.parametrize("kind", ["file", "shared"])
def test_an_export_of_a_log_that_lost_records_is_refused(tmp_path: Path, kind: str) -> None:
    path, other, short = (_archive(kind, tmp_path / name) for name in ("archive", "other", "short"))
    with closing(open_writer(other, "log-1")) as writer:
        writer.write(stored(made_up_run()))
    export_run(other, RUN, tmp_path / "kept")
    with closing(open_writer(path, "log-1")) as writer:
        writer.write(stored(made_up_run("run-b")))
    with pytest.raises(ArchiveError, match=r"has another record at \S+@0 than the archive: the log had lost"):
        restore(path, tmp_path / "kept", log_id="log-1")
    with closing(open_writer(short, "log-1")) as writer:
        writer.write(stored(made_up_run())[:20])
    with pytest.raises(ArchiveError, match=r"goes up to \S+, but the log ends at \d+: it has lost records"):
        restore(short, tmp_path / "kept", log_id="log-1")
