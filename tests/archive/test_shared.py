"""A shared archive: many writers, none of whom can store what another has, and readers of one state of it."""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from infra.s3 import server as s3_server
from infra.s3.server import S3Server
from tests.archive import dying
from tests.archive.content import content
from tests.archive.history import made_up_run, stored
from tests.conftest import free_ports
from tests.forks import assert_killed
from tests.processes import python
from tests.tiers import chosen
from unstable_stream.api.place import Place
from unstable_stream.api.serving import compact_archive
from unstable_stream.archive import ArchiveWriter, RecordReader, drop_run, open_archive, query, query_arrow
from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.game_columns import archived_seats
from unstable_stream.archive.shared import store as store_module
from unstable_stream.archive.shared import table as table_module
from unstable_stream.archive.shared.relations import table_schema
from unstable_stream.archive.shared.store import compact
from unstable_stream.archive.shared.table import SharedTable, TableFile
from unstable_stream.errors import ArchiveBusyError, ArchiveError, ConfigError
from unstable_stream.events import GameOutcome, decode_event
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.stores.archive_address import ARCHIVE_VARIABLE, archive_exists, table_of
from unstable_stream.log.stores.store import Store
from unstable_stream.ui.cli import app

pytestmark = pytest.mark.longer

_RECORDS = stored(made_up_run())
_TURNS = ("turns", "trajectories", "game_outcomes")


@pytest.fixture(scope="module")
def unmerged(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A shared archive of all records in many small files."""
    address = f"delta:{tmp_path_factory.mktemp('unmerged') / 'shared'}"
    _write(address, _batches(40))
    return address


@pytest.fixture
def in_small_files(address: str, tmp_path: Path, unmerged: str) -> str:
    """A copy of it."""
    shutil.copytree(table_of(unmerged), tmp_path / "shared")
    return address


def _write(path: str, batches: Sequence[Sequence[StoredRecord]]) -> None:
    with ArchiveWriter(path) as writer:
        for batch in batches:
            writer.write(batch)


def _batches(size: int) -> list[list[StoredRecord]]:
    return [_RECORDS[start : start + size] for start in range(0, len(_RECORDS), size)]


# -- many writers -----------------------------------------------------------------------------


def _made_at_once(address: str, archivers: int) -> list[tuple[str, int]]:
    """Return the archive's id and version as each archiver found them that made it at the same moment."""
    barrier = threading.Barrier(archivers)

    def make(_: int) -> tuple[str, int]:
        barrier.wait()
        table = SharedTable(address, create=True)
        return table.archive_id, table.version

    with ThreadPoolExecutor(archivers) as threads:
        return list(threads.map(make, range(archivers)))


def test_archivers_that_make_it_at_the_same_time_have_one_archive_and_one_group(tmp_path: Path) -> None:
    for place in range(10):  # without the refusal of a second try, every other one had two ids
        made = _made_at_once(f"delta:{tmp_path / str(place)}", 6)
        assert made == [(made[0][0], 0)] * 6


def test_writers_of_different_partitions_do_not_hinder_each_other(
    address: str, whole: dict[str, list[str]]
) -> None:
    """Each commit of one makes a commit of the other that it did not know of fail, and be made again."""

    def work(share: int) -> None:
        mine = [r for r in _RECORDS if hash((r.topic, r.partition)) % 2 == share]
        _write(address, [mine[start : start + 20] for start in range(0, len(mine), 20)])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, range(2)))
    assert content(address) == whole
    numbers = query(address, "SELECT count(*), count(DISTINCT record_number) FROM events").rows
    assert numbers == [(len(_RECORDS), len(_RECORDS))]


def test_a_table_that_was_deleted_under_the_writer_is_noticed(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ArchiveWriter(address) as writer:
        writer.write(_RECORDS[:50])
        monkeypatch.setattr(store_module, "read_standings", lambda table: {})
        monkeypatch.setattr(SharedTable, "position", lambda self, name: None)
        with pytest.raises(ArchiveError, match="lacks records that were stored in it"):
            writer.write(_RECORDS[50:])


def test_one_who_always_comes_second_says_so_and_can_ask_again(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(address, [_RECORDS[:50]])
    with ArchiveWriter(address) as writer:
        prepared = writer.prepare(_RECORDS[50:])
        with monkeypatch.context() as patch:
            patch.setattr(SharedTable, "commit", lambda *_, **__: False)
            patch.setattr("unstable_stream.archive.store.PATIENCE_S", 0.01)
            for step in (lambda: writer.store(prepared), lambda: drop_run(address, "run-a")):
                with pytest.raises(ArchiveBusyError, match="others committed"):
                    step()
        assert query(address, "SELECT count(*) FROM events").rows == [(50,)]
        assert writer.store(prepared).records == len(_RECORDS) - 50
    assert drop_run(address, "run-a").records == len(_RECORDS)


# -- killed -----------------------------------------------------------------------------------


# The first file and the first commit are those of the slots; a batch writes about ten files.
@chosen(
    "step, times",
    [("before commit", 0), ("after write", 15), ("after commit", 3)],
    [("before write", 0), ("before write", 4), ("before commit", 3), ("after commit", 0)],
)
def test_killed_between_two_steps_and_restarted_equals_uninterrupted(
    address: str, step: str, times: int, whole: dict[str, list[str]]
) -> None:
    assert_killed(dying.write, address, step, times)
    with ArchiveWriter(address) as writer:
        stored_before = sum(writer.positions.values())
        assert writer.write(_RECORDS).records == len(_RECORDS) - stored_before
    assert content(address) == whole


@chosen(
    "step, times",
    [("after write", 2), ("after commit", 0)],
    [("before write", 0), ("before commit", 0), ("before commit", 3)],
)
def test_killed_between_two_steps_of_a_merge_nothing_is_lost_or_twice(
    in_small_files: str, step: str, times: int, whole: dict[str, list[str]]
) -> None:
    address = in_small_files
    files = len(SharedTable(address).files())
    assert_killed(dying.merge, address, step, times)
    assert content(address) == whole
    compact(SharedTable(address), everything=True)
    SharedTable(address).vacuum()
    assert len(SharedTable(address).files()) < files / 3
    assert content(address) == whole
    with ArchiveWriter(address) as writer:
        assert writer.write(_RECORDS).redelivered == len(_RECORDS)


# -- small files ------------------------------------------------------------------------------


def test_small_files_are_merged_while_somebody_reads_and_others_write(
    in_small_files: str, whole: dict[str, list[str]]
) -> None:
    address = in_small_files
    with open_archive(address) as before:
        table = SharedTable(address)
        files = len(table.files())
        before_merge, after_merge = compact(table, everything=True)
        assert len(table.files()) == files - before_merge + after_merge < files / 3
        # The files that it reads are there still.
        assert before.execute("SELECT count(*) FROM events").fetchall() == [(len(_RECORDS),)]
    assert content(address) == whole
    assert compact(SharedTable(address), everything=True) == (0, 0)
    # The writer goes on with the positions as they were merged.
    with ArchiveWriter(address) as writer:
        assert writer.write(_RECORDS).redelivered == len(_RECORDS)
    # Sorted by number: a reader of one partition passes over the rest.
    (events,) = [file for file in table.files() if file.relation == EVENTS.name]
    numbers = table.read(events)["record_number"].to_pylist()
    assert numbers == sorted(numbers)


def test_a_writer_merges_now_and_then(
    address: str, whole: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_COMPACT_EVERY", 5)
    _write(address, _batches(16))
    assert len(SharedTable(address).files("positions")) < 12
    assert content(address) == whole


def test_a_merge_that_another_archiver_made_is_given_up(
    in_small_files: str, whole: dict[str, list[str]], before_commits: Callable[..., None]
) -> None:
    before_commits(lambda: compact(SharedTable(in_small_files), everything=True))
    compact(SharedTable(in_small_files), everything=True)
    assert content(in_small_files) == whole


def test_old_and_orphaned_files_are_deleted(
    in_small_files: str, monkeypatch: pytest.MonkeyPatch, whole: dict[str, list[str]]
) -> None:
    address = in_small_files
    table = SharedTable(address)
    orphan = table.write("turns", table.read(table.files("turns")[0]))
    compact(table, everything=True)
    assert table.vacuum() == 0  # somebody may read them
    monkeypatch.setattr(table_module, "_KEPT_HOURS", 0)
    assert table.vacuum() > len(table.files())
    there = {str(path.relative_to(table.uri)) for path in Path(table.uri).rglob("*.parquet")}
    assert orphan.name not in there
    assert {file.name for file in table.files()} <= there
    assert content(address) == whole


# -- readers ----------------------------------------------------------------------------------


def test_a_reader_sees_one_state_and_can_change_nothing(address: str, tmp_path: Path) -> None:
    _write(address, [_RECORDS[:100]])
    with open_archive(address) as reader:
        _write(address, [_RECORDS])
        assert reader.execute("SELECT count(*) FROM events").fetchall() == [(100,)]
    assert query(address, "SELECT count(*) FROM events").rows == [(len(_RECORDS),)]
    name = next(iter(SharedTable(address).files("turns"))).name
    elsewhere = tmp_path / "elsewhere.csv"
    elsewhere.write_text("a\n1\n")
    for sql in (
        f"SELECT * FROM read_csv('{elsewhere}')",
        f"COPY (SELECT 1) TO '{tmp_path / 'out.csv'}'",
        f"COPY (SELECT 1) TO 'snapshot://{name}'",
        "COPY (SELECT 1) TO 'snapshot://new.parquet'",
        "DELETE FROM events",
    ):
        with pytest.raises(ArchiveError):
            query(address, sql)
    with pytest.raises(ArchiveError, match="only archivers change it"):
        query(address, "SELECT 1", write=True)
    assert query(address, f"SELECT count(*) FROM read_csv('{elsewhere}')", files=True).rows == [(1,)]


def test_questions_of_one_run_see_that_run_alone(address: str) -> None:
    _write(address, [stored([*made_up_run(), *made_up_run("run-b", updates=2)])])
    for sql in ("SELECT count(*) AS n FROM turns", "SELECT count(*) AS n FROM win_rates"):
        runs = [query_arrow(address, sql, run_id=run)["n"].to_pylist() for run in ("run-a", "run-b", "none")]
        (a,), (b,), none = runs
        assert query(address, sql).rows == [(a + b,)]
        assert (0 < b < a, none) == (True, [0])


def test_games_are_read_in_the_order_of_the_log(in_small_files: str) -> None:
    """Though their files lie in another order since some were merged."""
    table = SharedTable(in_small_files)
    files = table.files("seats")
    odd = [table.read(file) for file in files[::2]]
    table.commit([table.write("seats", pa.concat_tables(odd).sort_by("record_number"))], files[::2])
    read = archived_seats(in_small_files, "run-a").game_ids.to_pylist()
    outcomes = [decode_event(r.value) for r in _RECORDS if r.topic == "game-outcomes"]
    assert read == [event.game_id for event in outcomes if isinstance(event, GameOutcome)]


def test_raw_records_are_read_by_position(unmerged: str) -> None:
    reader = RecordReader(unmerged)
    for (topic, partition), end in reader.ends().items():
        mine = [r for r in _RECORDS if (r.topic, r.partition) == (topic, partition)]
        assert reader.read(topic, partition, 0, end) == mine
    reader.release()


def test_files_of_an_older_and_a_newer_package_are_read(address: str) -> None:
    _write(address, [_RECORDS])
    table = SharedTable(address)
    (file,) = table.files("seats")
    rows = table.read(file)
    seats = pa.Table.from_struct_array(rows["seats"].combine_chunks())
    older = seats.drop_columns(["role"])
    newer = seats.append_column("mood", pa.array(["calm"] * len(seats)))
    for number, changed in enumerate((older, newer)):
        inner = pa.chunked_array([changed.to_struct_array().combine_chunks()])
        table.refresh()
        new = table.write("seats", pa.table({"record_number": rows["record_number"], "seats": inner}))
        assert table.commit([new], table.files("seats") if number == 0 else [])
    rows_now = query(address, "SELECT role FROM seats").rows
    assert len(rows_now) == 2 * len(seats)
    assert rows_now.count((None,)) >= len(seats)
    # What this package does not know, it does not lose.
    compact(SharedTable(address), everything=True)
    assert len(SharedTable(address).files("seats")) == 2


def test_what_is_no_archive_of_ours_is_named(address: str, tmp_path: Path) -> None:
    assert not archive_exists(address)
    with pytest.raises(ArchiveError, match="no archive at"):
        query(address, "SELECT 1")
    deltalake.write_deltalake(str(tmp_path / "shared"), pa.table({"x": [1]}))
    with pytest.raises(ArchiveError, match="not an archive of unstable_stream"):
        ArchiveWriter(address)
    newer = f"delta:{tmp_path / 'newer'}"
    deltalake.DeltaTable.create(
        str(tmp_path / "newer"),
        pa.schema([("relation", pa.string())]),
        description="unstable_stream archive, schema version 99",
    )
    with pytest.raises(ArchiveError, match="Upgrade unstable_stream"):
        query(newer, "SELECT 1")


def test_an_archive_gets_the_columns_of_a_newer_package(
    address: str, monkeypatch: pytest.MonkeyPatch, whole: dict[str, list[str]]
) -> None:
    schema = table_schema()
    without = schema.get_field_index("dead_letters")
    trained = schema.field("seats")
    fewer = pa.field("seats", pa.struct([each for each in trained.type if each.name != "role"]))
    older = schema.set(schema.get_field_index("seats"), fewer).remove(without)
    monkeypatch.setattr(table_module, "table_schema", lambda: older)
    SharedTable(address, create=True)
    monkeypatch.undo()
    _write(address, [_RECORDS])
    names = pa.schema(deltalake.DeltaTable(address.removeprefix("delta:")).schema())
    assert set(names.names) == set(schema.names)
    assert "role" in {field.name for field in names.field("seats").type}
    assert content(address) == whole


def test_without_the_package_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['deltalake'] = None\nfrom unstable_stream.archive import query\n"
    code += "query('delta:/nowhere', 'SELECT 1')"
    assert python(code).stderr.strip().splitlines()[-1].endswith("pip install 'unstable_stream[delta]'")


# -- commands ---------------------------------------------------------------------------------


def test_commands_use_the_archive_that_the_environment_names(
    in_small_files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ARCHIVE_VARIABLE, in_small_files)
    data = ["--data", str(tmp_path)]
    done = CliRunner().invoke(app, ["sql", "SELECT count(*) AS n FROM games", "--csv", *data])
    assert done.stdout.split() == ["n", "40"]
    done = CliRunner().invoke(app, ["archive", "--compact", *data])
    assert "small files merged" in done.stderr
    assert compact_archive(Place.at(tmp_path)).merged == 0
    report = tmp_path / "report.html"
    assert CliRunner().invoke(app, ["report", "-o", str(report), *data]).exit_code == 0
    assert "run-a" in report.read_text()
    assert not Place.at(tmp_path).data.archive_file.exists()
    monkeypatch.setenv(ARCHIVE_VARIABLE, "s3://bucket/archive")
    with pytest.raises(ConfigError, match="expected delta:ADDRESS"):
        _ = Place.at(tmp_path).archive
    monkeypatch.delenv(ARCHIVE_VARIABLE)
    with pytest.raises(ArchiveError, match="is one file"):
        compact_archive(Place.at(tmp_path))


# -- an object store --------------------------------------------------------------------------


def test_in_an_object_store(s3: str, tmp_path: Path, whole: dict[str, list[str]]) -> None:
    (tmp_path / "first").touch()
    Store(s3).put(tmp_path / "first", "first")  # makes the bucket
    address = f"delta:{s3}/archive"
    with ArchiveWriter(address) as first, ArchiveWriter(address) as second:
        late = first.prepare(_RECORDS[:100])
        assert second.write(_RECORDS[:120]).records == 120
        assert first.store(late).records == 0
    _write(address, _batches(100))
    assert content(address) == whole
    table = SharedTable(address)
    compact(table, everything=True)
    kept = content(address)
    assert [kept[name] for name in _TURNS] == [whole[name] for name in _TURNS]
    table.vacuum()


@pytest.mark.long
@pytest.mark.slow
def test_a_batch_waits_for_a_store_that_went_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, list[str]]
) -> None:
    """Whatever was under way when it went: after an error nobody may take the archive for broken."""
    reason = s3_server.why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    with S3Server(tmp_path / "s3", free_ports(s3_server.PORTS)) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "first").touch()
        Store("s3://bucket/x").put(tmp_path / "first", "first")  # makes the bucket
        address = "delta:s3://bucket/x/archive"
        with ArchiveWriter(address) as writer:
            writer.write(_RECORDS[:50])
            prepared = writer.prepare(_RECORDS[50:])
            table = SharedTable(address)
            written = table.write("turns", table.read(table.files("turns")[0]))
            server.kill()
            for step in (
                lambda: writer.store(prepared),
                writer.refresh,
                lambda: table.read(written),
                lambda: table.commit([written]),
                table.vacuum,
                lambda: SharedTable(address, create=True),
            ):
                with pytest.raises(ArchiveBusyError, match="cannot be reached"):
                    step()
            server.up()
            assert writer.store(prepared).records == len(_RECORDS) - 50
        assert content(address) == whole


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which file it is")
def test_files_are_on_the_disk_before_they_are_of_the_table(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []
    fsync, commit = os.fsync, SharedTable.commit

    def noting(handle: int) -> None:
        kept.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def checked(self: SharedTable, added: Sequence[TableFile], *args: object, **options: object) -> bool:
        for file in added:
            assert {f"{self.uri}/{file.name}", f"{self.uri}/relation={file.relation}"} <= set(kept)
        done = commit(self, added, *args, **options)  # type: ignore[arg-type]
        assert kept[-2:] == [f"{self.uri}/_delta_log/{self.version + 1:020d}.json", f"{self.uri}/_delta_log"]
        return done

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(SharedTable, "commit", checked)
    _write(address, [_RECORDS])


def test_a_commit_that_a_power_cut_left_empty_is_made_again(
    address: str, whole: dict[str, list[str]]
) -> None:
    _write(address, [_RECORDS[:100], _RECORDS[100:]])
    newest = max(Path(SharedTable(address).uri, "_delta_log").glob("*.json"))
    newest.write_bytes(b"")
    assert query(address, "SELECT count(*) FROM events").rows == [(100,)]
    _write(address, [_RECORDS])
    assert content(address) == whole
