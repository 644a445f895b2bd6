"""One archive, several logs; and archives of older versions of the package."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import duckdb
import pytest

from tests.archive.content import typed_content
from tests.archive.history import made_up_run, stored
from unstable_stream.archive import ArchiveWriter, Written, drop_run, query
from unstable_stream.archive.tables import TABLES
from unstable_stream.errors import ArchiveError
from unstable_stream.events import Event
from unstable_stream.history.hindsight.why import find_node, trace
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Record
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.services.workers.archiver import run_archiver

pytestmark = pytest.mark.longer


async def _new_log(path: Path, events: Sequence[Event] = ()) -> LocalLog:
    log = LocalLog.open(path, synchronous="NORMAL")
    await log.create_topics(list(load_topics().values()))
    if events:
        await log.append([record_from_event(event) for event in events])
    return log


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    log = await _new_log(tmp_path / "log.sqlite", made_up_run())
    yield log
    await log.close()


async def _archive_all(log: EventLog, path: Path) -> int:
    stop = asyncio.Event()
    stop.set()
    flushes: list[Written] = []
    await run_archiver(log, path, stop=stop, flush_interval_s=0.02, on_flush=flushes.append)
    return sum(flush.records for flush in flushes)


def _positions(path: Path) -> dict[str, int]:
    return dict(query(path, "SELECT log_id, sum(next_offset) FROM positions GROUP BY log_id").rows)


async def test_two_logs_into_one_archive(log: LocalLog, tmp_path: Path) -> None:
    path = tmp_path / "both.duckdb"
    # The same topics, partitions and offsets, and other events.
    other = await _new_log(tmp_path / "other.sqlite", made_up_run("run-b", updates=2))
    await log.append([Record("metrics", "plug-in", b"bad in one", {}, 1_000)])
    await other.append([Record("metrics", "plug-in", b"bad in the other", {}, 1_000)])
    ids = await log.log_id(), await other.log_id()
    counts = [await _archive_all(each, path) for each in (log, other, log, other)]
    assert counts[:2] == [len(made_up_run()) + 1, len(made_up_run("run-b", updates=2)) + 1]
    # The second time only the dead letter that the first time published.
    assert counts[2:] == [1, 1]
    assert _positions(path) == {ids[0]: counts[0] + 1, ids[1]: counts[1] + 1}
    assert query(
        path, "SELECT log_id, run_id, count(*) FROM events WHERE run_id <> '' GROUP BY ALL ORDER BY run_id"
    ).rows == [(ids[0], "run-a", counts[0] - 1), (ids[1], "run-b", counts[1] - 1)]
    assert sorted(query(path, "SELECT record_value FROM dead_letters").rows) == [
        (b"bad in one",),
        (b"bad in the other",),
    ]
    again = tmp_path / "rebuilt.duckdb"
    await _archive_all(other, again)
    await _archive_all(log, again)
    await other.close()
    assert typed_content(again) == typed_content(path)


async def test_a_copied_history_counts_once(log: LocalLog, tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    await _archive_all(log, path)
    before = typed_content(path)
    copy = await _new_log(tmp_path / "copy.sqlite", made_up_run())
    assert await _archive_all(copy, path) == len(made_up_run())
    await copy.close()
    assert typed_content(path) == before
    assert query(path, "SELECT count(*), count(DISTINCT event_id) FROM events").rows == [
        (2 * len(made_up_run()), len(made_up_run()))
    ]


def test_two_writers_of_two_logs_take_turns(tmp_path: Path) -> None:
    records = stored(made_up_run())
    path = tmp_path / "archive.duckdb"
    with ArchiveWriter(path, "one") as first, ArchiveWriter(path, "two") as second:
        assert first.write(records[:100]).records == 100
        # The second one finds the same events at the same positions of its own log.
        written = second.write(records[:150])
        assert (written.records, written.duplicates) == (150, 100)
        written = first.write(records)
        assert (written.records, written.duplicates) == (len(records) - 100, 50)
    with ArchiveWriter(tmp_path / "alone.duckdb") as writer:
        writer.write(records)
    assert typed_content(path) == typed_content(tmp_path / "alone.duckdb")


def _make_version_2(path: Path) -> None:
    """Take away what later versions added."""
    with duckdb.connect(str(path)) as connection:
        for table in ("events", *(table.name for table in TABLES)):
            connection.execute(f'ALTER TABLE "{table}" DROP COLUMN record_number')
        connection.execute("DROP VIEW missing_of_runs")
        connection.execute("DROP TABLE missing_records")
        for column in ("next_record", "traced_from"):
            connection.execute(f"ALTER TABLE schema_version DROP COLUMN {column}")
        connection.execute("UPDATE schema_version SET version = 2, views_digest = 'old'")


async def test_an_archive_of_version_2_is_upgraded_in_place(log: LocalLog, tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    await _archive_all(log, path)
    before = typed_content(path)
    _make_version_2(path)
    # It can be read as it is, with the views of today.
    assert query(path, "SELECT count(*) FROM ledger").rows == [(1,)]
    other = made_up_run("run-b", updates=1)
    await log.append([record_from_event(event) for event in other])
    assert await _archive_all(log, path) == len(other)
    assert query(path, "SELECT version FROM schema_version").rows == [(4,)]
    numbers = query(path, "SELECT count(DISTINCT record_number), max(record_number) FROM events").rows
    assert numbers == [(len(made_up_run()) + len(other), len(made_up_run()) + len(other) - 1)]
    for name, rows in before.items():
        assert set(rows) <= set(typed_content(path)[name])


async def test_an_archive_of_version_3_is_upgraded_in_place(log: LocalLog, tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    await _archive_all(log, path)
    with duckdb.connect(str(path)) as connection:
        connection.execute("ALTER TABLE positions ADD COLUMN newest VARCHAR")
        connection.execute("CREATE TABLE divergences (log_id VARCHAR)")
        connection.execute("UPDATE schema_version SET version = 3, views_digest = 'old'")
    assert await _archive_all(log, path) == 0
    other = made_up_run("run-b", updates=1)
    await log.append([record_from_event(event) for event in other])
    assert await _archive_all(log, path) == len(other)
    drop_run(path, "run-b")
    assert query(path, "SELECT run_id FROM runs").rows == [("run-a",)]


def test_an_archive_that_does_not_know_its_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    ArchiveWriter(path).close()
    query(path, "UPDATE schema_version SET version = 1", write=True)
    for use in (lambda: query(path, "SELECT 1"), lambda: ArchiveWriter(path)):
        with pytest.raises(ArchiveError, match=r"has schema version 1, .* Move it away and fill a new one"):
            use()


def test_an_old_archive_that_is_only_read_tells_why(tmp_path: Path) -> None:
    path = tmp_path / "archive.duckdb"
    with ArchiveWriter(path) as writer:
        writer.write(stored(made_up_run()))
    key = find_node(path, "update:3")
    found = trace(path, key)
    _make_version_2(path)
    assert trace(path, key) == found
