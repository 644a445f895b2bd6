"""The writer: each position once, each event once, whatever comes again and whenever it is killed."""

import resource
import threading
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import duckdb
import msgspec
import pytest

from tests.archive import dying
from tests.archive.content import content
from tests.archive.history import made_up_run, stored, with_texts
from tests.conftest import Archives
from tests.forks import assert_killed
from tests.tiers import chosen
from unstable_stream.archive import ArchiveWriter, open_archive, query, store, stream
from unstable_stream.archive.store import WritableArchive
from unstable_stream.archive.tables import TABLES
from unstable_stream.errors import ArchiveBusyError, ArchiveError
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.stores.archive_address import ArchiveAddress

pytestmark = pytest.mark.longer


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive without records."""
    path = tmp_path_factory.mktemp("empty") / "archive.duckdb"
    ArchiveWriter(path).close()
    return path


def _archive(path: ArchiveAddress, batches: Sequence[Sequence[StoredRecord]]) -> dict[str, list[str]]:
    with ArchiveWriter(path) as writer:
        for batch in batches:
            writer.write(batch)
    return content(path, numbered=True)


def _again(records: Sequence[StoredRecord]) -> list[StoredRecord]:
    """Return the records as if they had been published twice."""
    ends = {(record.topic, record.partition): record.offset + 1 for record in records}
    return [msgspec.structs.replace(r, offset=r.offset + ends[r.topic, r.partition]) for r in records]


def _bad(value: bytes, offset: int = 0, timestamp_ms: int = 5) -> StoredRecord:
    return StoredRecord("metrics", 3, offset, "plug-in", value, {"trace": b"\x01"}, timestamp_ms)


Rows = dict[str, list[str]]


def test_batching_does_not_change_the_content(archive_at: Archives, once: Rows) -> None:
    records = stored(made_up_run())
    assert _archive(archive_at("parts"), [records[:50], records[50:51], [], records[51:]]) == once
    assert len(once["events"]) == len(records)


def test_little_is_left_for_each_opening_to_replay(tmp_path: Path) -> None:
    """Every batch and every reader opens the file, and replays what stands in its write-ahead log."""
    path, most, written = tmp_path / "archive.duckdb", 0, 0
    log = path.with_suffix(".duckdb.wal")
    with ArchiveWriter(path) as writer:
        records = stored(with_texts("run-a"))
        for start in range(0, len(records), 30):
            batch = records[start : start + 30]
            writer.store(writer.prepare(batch))
            written += sum(len(each.value) for each in batch)
            most = max(most, log.stat().st_size if log.exists() else 0)
    assert written > 7e6
    assert 0 < most < 4e6


def test_redelivered_positions_are_skipped_also_after_reopening(archive_at: Archives, once: Rows) -> None:
    records = stored(made_up_run())
    path = archive_at("again")
    _archive(path, [records[:80], records[40:120]])
    with ArchiveWriter(path) as writer:
        written = writer.write(records)
    assert (written.records, written.redelivered) == (len(records) - 120, 120)
    assert content(path, numbered=True) == once


@pytest.mark.parametrize("when", ["in one batch", "in batches", "after a restart"])
def test_an_event_published_twice_counts_once(archive_at: Archives, once: Rows, when: str) -> None:
    records = stored(made_up_run())
    again = _again(records)
    path = archive_at("twice")
    if when == "after a restart":
        _archive(path, [records])
    twice = _archive(path, [records + again] if when == "in one batch" else [records, again[:30], again[30:]])
    assert len(twice["events"]) == 2 * len(records)
    for table in TABLES:
        assert twice[table.name] == once[table.name], table.name


def test_what_cannot_be_decoded_is_kept_raw(archive_at: Archives) -> None:
    path = archive_at("archive")
    good = stored(made_up_run())[:3]
    with ArchiveWriter(path) as writer:
        written = writer.write([_bad(b"\xff\xfe", 0), *good, *good[:2], _bad(b'{"type":"nonsense"}', 1)])
    assert (written.records, written.redelivered) == (5, 2)
    assert [reject.record.offset for reject in written.rejected] == [0, 1]
    assert "nonsense" in str(written.rejected[1].error)
    found = query(
        path,
        "SELECT \"offset\", type, value, value_bytes, headers FROM events WHERE topic = 'metrics' ORDER BY 1",
    )
    assert found.rows == [
        (0, None, None, b"\xff\xfe", {"trace": b"\x01"}),
        (1, None, '{"type":"nonsense"}', None, {"trace": b"\x01"}),
    ]
    assert query(path, "SELECT count(*) FROM events WHERE type IS NOT NULL").rows == [(3,)]


def test_events_that_fit_no_column_do_not_stop_the_batch(archive_at: Archives) -> None:
    times = [("occurred_at_ms", moment) for moment in (10**18, -1)]
    unfit = [*times, ("seat", 2**40), ("logprobs", "AAA="), ("seed", 2**63)]
    records = stored(made_up_run())
    places = [i for i, r in enumerate(records) if r.topic == "trajectories"][: len(unfit)]
    for place, (field, value) in zip(places, unfit, strict=True):
        body = msgspec.json.decode(records[place].value)
        target = body["turns"][0] if field == "logprobs" else body
        target[field] = value
        records[place] = msgspec.structs.replace(records[place], value=msgspec.json.encode(body))
    path = archive_at("archive")
    with ArchiveWriter(path) as writer:
        written = writer.write(records)
    rejected = sorted(reject.record.value for reject in written.rejected)
    assert rejected == sorted(records[place].value for place in places)
    counts = ("trajectories", "events", "events WHERE type IS NULL")
    found = [query(path, f"SELECT count(*) FROM {rows}").rows for rows in counts]
    assert found == [[(38 - len(unfit),)], [(len(records),)], [(len(unfit),)]]


def test_text_that_is_not_utf8_in_an_unknown_field_stays_bytes(archive_at: Archives) -> None:
    value = b'{"type":"metrics","event_id":"e","run_id":"r","occurred_at_ms":1,"source":"s","new":"\xff"}'
    path = archive_at("archive")
    with ArchiveWriter(path) as writer:
        assert not writer.write([_bad(value)]).rejected
    assert query(path, "SELECT event_id, value, value_bytes FROM events").rows == [("e", None, value)]


# A batch of 100 takes some dozen statements, from BEGIN to COMMIT: die before the first insert, between two,
# and in later batches.
@chosen("statements", (0, 7, 31), (1, 20))
def test_killed_in_mid_batch_and_restarted_equals_uninterrupted(
    tmp_path: Path, whole_file: Path, statements: int
) -> None:
    path = tmp_path / "killed.duckdb"
    assert_killed(dying.write_file, path, statements)
    records = stored(made_up_run())
    with ArchiveWriter(path) as writer:
        resumed_from = sum(writer.positions.values())
        written = writer.write(records)
    assert written.redelivered == resumed_from
    assert content(path, numbered=True) == content(whole_file, numbered=True)


def test_batches_prepared_ahead_know_of_each_other(tmp_path: Path, whole_file: Path) -> None:
    records = stored(made_up_run())
    again = _again(records)
    path = tmp_path / "ahead.duckdb"
    with ArchiveWriter(path) as writer:
        first = writer.prepare(records)
        second = writer.prepare(records[-20:] + again)
        assert writer.store(first).records == len(records)
        written = writer.store(second)
    assert (written.records, written.redelivered, written.duplicates) == (len(records), 20, len(records))
    ahead, once = (content(each, numbered=True) for each in (path, whole_file))
    assert [ahead[name] for name in ("steps", "turns")] == [once[name] for name in ("steps", "turns")]


def test_an_archive_deleted_under_the_writer_is_noticed(tmp_path: Path) -> None:
    records = stored(made_up_run())
    path = tmp_path / "archive.duckdb"
    writer = ArchiveWriter(path)
    writer.write(records[:100])
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(ArchiveError, match="lacks records that were stored in it"):
        writer.write(records[100:])


def test_a_batch_that_another_writer_stored_is_not_stored_again(archive_at: Archives, once: Rows) -> None:
    """Also batches that were prepared before the other one wrote, the second behind the first."""
    records, path = stored(made_up_run()), archive_at("archive")
    with ArchiveWriter(path) as first, ArchiveWriter(path) as second:
        late, later = first.prepare(records[:100]), first.prepare(records[100:140])
        assert second.write(records[:120]).records == 120
        assert first.store(late).records == 0
        assert first.store(later).records == 20
        assert second.write(records[:150]).records == 10
        assert first.write(records).records == len(records) - 150
    assert content(path, numbered=True) == once


def test_a_batch_is_built_once_though_others_write_meanwhile(tmp_path: Path) -> None:
    """Archivers of two runs do, of other partitions. Built anew each time, it might never be stored."""
    records, path = stored(made_up_run()), tmp_path / "archive.duckdb"
    mine = [record for record in records if record.topic == "steps"]
    others = [record for record in records if record.topic != "steps"]
    with ArchiveWriter(path) as first, ArchiveWriter(path) as second:
        late, later = first.prepare(mine[:9]), first.prepare(mine[9:30])
        second.write(others)
        with patch.object(ArchiveWriter, "prepare", side_effect=AssertionError("built anew")):
            assert first.store(late).records == 9
            assert first.store(later).records == 21
        # The other one has these events under other positions: only that is a reason.
        late = first.prepare(mine[30:])
        second.write([msgspec.structs.replace(r, partition=r.partition + 90) for r in mine[30:]])
        assert first.store(late).duplicates == len(mine) - 30
    numbers = "SELECT count(DISTINCT record_number), max(record_number) + 1 FROM events"
    count = len(records) + len(mine) - 30
    assert query(path, numbers).rows == [(count, count)]
    assert query(path, "SELECT count(*) FROM steps").rows == [(len(mine),)]


def test_a_refused_batch_leaves_the_events_of_the_next_known(tmp_path: Path) -> None:
    mine = [record for record in stored(made_up_run()) if record.topic == "steps"]
    with ArchiveWriter(tmp_path / "archive") as first, ArchiveWriter(tmp_path / "archive") as second:
        refused = first.prepare(mine[:9])
        second.write(mine[:9])
        ahead = first.prepare(mine[9:30])
        assert first.store(refused).records == 0
        again = first.prepare([msgspec.structs.replace(r, offset=r.offset + 1000) for r in mine[9:30]])
        assert first.store(ahead).records == 21
        assert first.store(again).duplicates == 21


def test_reader_waits_for_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "archive.duckdb"
    _archive(path, [stored(made_up_run())])
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with WritableArchive(path).held():
            held.set()
            release.wait(60)

    writer = threading.Thread(target=hold)
    writer.start()
    try:
        assert held.wait(60)
        with monkeypatch.context() as patch:
            patch.setattr(store, "PATIENCE_S", 0.05)
            with pytest.raises(ArchiveBusyError, match=r"held by another process for 0\.05 s"):
                query(path, "SELECT 1")
        threading.Timer(0.1, release.set).start()
        assert query(path, "SELECT count(*) FROM runs").rows == [(1,)]
    finally:
        release.set()
        writer.join()


def test_writer_waits_for_the_reader_and_can_be_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PATIENCE_S", 0.05)
    path = tmp_path / "archive.duckdb"
    records = stored(made_up_run())
    writer = ArchiveWriter(path)
    prepared = writer.prepare(records)
    with open_archive(path), pytest.raises(ArchiveBusyError):
        writer.store(prepared)
    assert writer.store(prepared).records == len(records)


def test_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "archive.duckdb"
    ArchiveWriter(path).close()
    query(path, "UPDATE schema_version SET version = 99, package_version = '9.0'", write=True)
    with pytest.raises(ArchiveError, match=r"schema version 99, written by unstable_stream 9\.0"):
        query(path, "SELECT 1")
    with pytest.raises(ArchiveError, match="Upgrade unstable_stream"):
        ArchiveWriter(path)


def test_rows_are_read_as_they_are_asked_for(empty: Path) -> None:
    # The progress of slow queries is not printed among rows.
    assert query(empty, "SELECT current_setting('enable_progress_bar')").rows == [(False,)]
    endless = "SELECT i, repeat('x', 1000) FROM range(1_000_000_000_000) AS t(i)"
    with stream(empty, endless) as result:
        assert result.columns == ["i", "repeat('x', 1000)"]
        assert [next(result.rows)[0] for _ in range(5000)] == list(range(5000))
    for nothing in ("", "-- only a comment"):
        assert query(empty, nothing).rows == []


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nothing.duckdb"
    with pytest.raises(ArchiveError, match=r"no archive at .*start a run first"):
        query(missing, "SELECT 1")
    foreign = tmp_path / "foreign.duckdb"
    with duckdb.connect(str(foreign)) as connection:
        connection.execute("CREATE TABLE mine (x INTEGER)")
    for use in (lambda: query(foreign, "SELECT 1"), lambda: ArchiveWriter(foreign)):
        with pytest.raises(ArchiveError, match="not an archive of unstable_stream"):
            use()


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM nope", "Table with name nope does not exist! Tables and views: actions, "),
        ("SELECT *\n  FROM game", "line 2, column 8: Table with name game does not exist! Did you mean"),
        ("SELECT 'é', policy FROM seats", 'line 1, column 13: Referenced column "policy" not found'),
        ("SELECT policy_versio FROM seats", "Did you mean policy_version?"),
        ("SELECT seat FROM games", "It is a column of actions, branches, moves, planned_seats, seats, "),
        ("SELECT nope FROM turns", "See the columns with: unstable-stream sql --tables"),
        ("SELECT wilson(1, 2)", "Did you mean wilson_low or wilson_high?"),
        ("SELECT offset FROM events", 'near "FROM". Write the column "offset" in double quotes.'),
        ("SELECT 1 + true_or_false()", "Scalar Function with name true_or_false does not exist!"),
        ("DELETE FROM turns", "Add --write to change the archive"),
        ("SELEC 1", 'line 1, column 1: syntax error at or near "SELEC"'),
        # Found while rows are read.
        ("SELECT CASE WHEN i = 9999 THEN error('late') END FROM range(10000) AS t(i)", "late"),
    ],
)
def test_wrong_sql_is_explained_in_one_line(empty: Path, sql: str, message: str) -> None:
    with pytest.raises(ArchiveError) as caught:
        query(empty, sql)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_full_disk_at_the_end_is_said_in_words(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "archive.duckdb")
    writer.write(stored(made_up_run(updates=3)))
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, bounds[1]))  # of a file here, as on a full disk
    try:
        with pytest.raises(ArchiveError, match=r"could not write to the archive .*archive\.duckdb"):
            writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
    ((games,),) = query(tmp_path / "archive.duckdb", "SELECT count(*) FROM game_outcomes").rows
    assert games > 0, "what was stored stays stored"
