"""One archive, several logs; and an archive of an older version of the package."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.archive.content import typed_content
from tests.archive.history import made_up_run, stored
from tests.services.workers.archiving import archive_all
from unstable_stream.archive import ArchiveWriter, query
from unstable_stream.errors import ArchiveError
from unstable_stream.events import Event
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import Record
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics

pytestmark = pytest.mark.longer


async def _new_log(path: Path, events: Sequence[Event]) -> LocalLog:
    log = LocalLog.open(path, synchronous="NORMAL")
    await log.create_topics(list(load_topics().values()))
    await log.append([record_from_event(event) for event in events])
    return log


def test_what_others_store_while_a_batch_waits_is_known(tmp_path: Path) -> None:
    """As many records as wait, so that the number of the next one is what it would be without them."""
    path = tmp_path / "a.duckdb"
    records = stored(made_up_run())
    half = len(records) // 2
    with ArchiveWriter(path, "one") as one, ArchiveWriter(path, "other") as other:
        waiting = one.prepare(records[:half])
        other.write(records[half : 2 * half])
        one.store(waiting)
        assert one.write(records[half : 2 * half]).duplicates == half


async def test_two_logs_into_one_archive(tmp_path: Path) -> None:
    path = tmp_path / "both.duckdb"
    log = await _new_log(tmp_path / "log.sqlite", made_up_run())
    # The same topics, partitions and offsets, and other events.
    other = await _new_log(tmp_path / "other.sqlite", made_up_run("run-b", updates=2))
    await log.append([Record("metrics", "plug-in", b"bad in one", {}, 1_000)])
    await other.append([Record("metrics", "plug-in", b"bad in the other", {}, 1_000)])
    ids = await log.log_id(), await other.log_id()
    counts = [sum(await archive_all(each, path)) for each in (log, other, log, other)]
    assert counts[:2] == [len(made_up_run()) + 1, len(made_up_run("run-b", updates=2)) + 1]
    # The second time only the dead letter that the first time published.
    assert counts[2:] == [1, 1]
    positions = query(path, "SELECT log_id, sum(next_offset) FROM positions GROUP BY log_id").rows
    assert dict(positions) == {ids[0]: counts[0] + 1, ids[1]: counts[1] + 1}
    by_run = "SELECT log_id, run_id, count(*) FROM events WHERE run_id <> '' GROUP BY ALL ORDER BY run_id"
    assert query(path, by_run).rows == [(ids[0], "run-a", counts[0] - 1), (ids[1], "run-b", counts[1] - 1)]
    letters = query(path, "SELECT record_value FROM dead_letters ORDER BY 1").rows
    assert letters == [(b"bad in one",), (b"bad in the other",)]
    again = tmp_path / "rebuilt.duckdb"
    await archive_all(other, again)
    await archive_all(log, again)
    await other.close()
    await log.close()
    assert typed_content(again) == typed_content(path)


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


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_archive_of_before_version_0_2_is_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "a.duckdb"
    ArchiveWriter(path).close()
    query(path, f"UPDATE schema_version SET version = {version}", write=True)
    for use in (lambda: query(path, "SELECT 1"), lambda: ArchiveWriter(path)):
        with pytest.raises(ArchiveError, match=rf"schema version {version}, .* Move it away and fill a new"):
            use()
