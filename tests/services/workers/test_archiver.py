"""The archiver on a real log: complete, resumable, and never stopped by a bad record."""

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.archive.content import content, typed_content
from tests.archive.history import made_up_run
from tests.conftest import Archives
from tests.services.streams.tapped_log import tapped
from tests.services.workers.archiving import Archiver, archive_all, publish, until
from tests.tiers import chosen
from unstable_stream.archive import ArchiveWriter, Prepared, Written, query
from unstable_stream.errors import ArchiveBusyError, ArchiveError
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import Record, StoredRecord, TopicPartition
from unstable_stream.log.reading import ends_of
from unstable_stream.log.stores.archive_address import ArchiveAddress, table_of
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.workers.retention import ARCHIVER_GROUP

pytestmark = pytest.mark.longer


def _counts(path: ArchiveAddress) -> list[tuple[object, ...]]:
    return list(
        query(path, "SELECT type, count(*), count(DISTINCT event_id) FROM events GROUP BY 1 ORDER BY 1").rows
    )


async def test_everything_up_to_the_stop_is_archived(log: LocalLog, archive_at: Archives) -> None:
    events = made_up_run()
    await publish(log, events)
    flushes = await archive_all(log, archive_at("a"), max_batch=50)
    assert len(flushes) > len(events) // 50
    assert sum(flushes) == len(events)
    assert sum(count for _, count, _ in _counts(archive_at("a"))) == len(events)  # type: ignore[misc]
    # For whoever watches the group's lag: nothing is left.
    ends = await ends_of(log, await log.topics())
    ((archive_id,),) = query(archive_at("a"), "SELECT archive_id FROM schema_version").rows
    committed = await log.committed_positions(f"{ARCHIVER_GROUP}-{archive_id}")
    assert {where: end for where, end in ends.items() if end} == {w: o for w, o in committed.items() if o}


async def test_sql_works_while_the_archiver_runs(log: LocalLog, archive_at: Archives) -> None:
    path = archive_at("a")
    events = made_up_run()
    half = len(events) // 2
    await publish(log, events[:half])
    async with Archiver(log, path) as archiver:
        await until(lambda: archiver.records == half, archiver)
        assert query(path, "SELECT count(*) FROM events").rows == [(half,)]
        await publish(log, events[half:])
    assert query(path, "SELECT count(*) FROM events").rows == [(len(events),)]


async def test_a_deleted_archive_is_filled_again(log: LocalLog, archive_at: Archives) -> None:
    await publish(log, made_up_run())
    path = archive_at("a")
    await archive_all(log, path)
    before = typed_content(path)
    shutil.rmtree(table_of(path)) if isinstance(path, str) else path.unlink()
    # The group stands at the end; the archive says: from the beginning.
    await archive_all(log, path)
    assert typed_content(path) == before


async def test_records_gone_from_the_log_do_not_stop_it(log: LocalLog, archive_at: Archives) -> None:
    events = made_up_run()
    path = archive_at("a")
    await publish(log, events[:60])
    await archive_all(log, path)
    await publish(log, events[60:])
    await log.delete_before(await ends_of(log, ["metrics", "steps"]))
    await archive_all(log, path)
    assert query(path, "SELECT count(*) FROM game_outcomes").rows == [(38,)]
    assert query(path, "SELECT next_offset FROM positions WHERE topic = 'runs'").rows[0] == (2,)


async def test_a_bad_record_becomes_a_dead_letter(log: LocalLog, archive_at: Archives) -> None:
    path = archive_at("a")
    events = made_up_run()
    await publish(log, events[:20])
    values = (b"\xff\x00", b'{"type":"from-the-future"}', b'{"type":"metrics"}')
    bad = [Record("metrics", "plug-in", value, {"trace": b"1"}, 1_000) for value in values]
    where, offset = (await log.append(bad))[0]
    await publish(log, events[20:])
    await archive_all(log, archive_at("another"))  # its letter about the record is the same
    await archive_all(log, path)
    await archive_all(log, path)
    asked = 'reason, consumer, topic, "partition", "offset", record_key, record_value'
    letters = query(path, f"SELECT {asked} FROM dead_letters ORDER BY 5").rows
    for number, ((reason, *letter), value) in enumerate(zip(letters, values, strict=True), offset):
        assert letter == ["archiver", *where, number, "plug-in", value]
        assert f"{where}@{number}" in reason
    assert query(path, "SELECT count(*) FROM events WHERE type IS NULL").rows == [(3,)]
    assert query(path, "SELECT count(*) FROM games").rows == [(40,)]


async def test_an_absurd_time_is_no_reason_for_ever_more_letters(log: LocalLog, archive_at: Archives) -> None:
    path = archive_at("a")
    for moment in (10**18, -5):
        body = f'{{"type":"metrics","event_id":"e","run_id":"r","occurred_at_ms":{moment},"source":"s"}}'
        await log.append([Record("metrics", "s", body.encode(), {}, moment)])
        await log.append([Record("dead-letters", "s", b"not even a letter", {}, moment)])
    for _ in range(3):
        await archive_all(log, path)
    assert query(path, "SELECT count(*) FROM dead_letters").rows == [(2,)]
    assert query(path, "SELECT count(*) FROM events").rows == [(6,)]


class _Killed(BaseException):
    """Stands for kill -9: nothing in the package catches it."""


_OF_A_FILE = [("after poll", 2), ("after append dead-letters", 1), ("before commit", 2)]
_OF_A_FILE += [("before commit", 1)]  # where reading begins
_OF_A_TABLE = [("before append dead-letters", 1), ("before store", 1), ("after store", 1)]
_OF_A_TABLE += [("after commit", 2)]


@chosen(
    "archive_at, call, occurrence",
    [("file", *at) for at in _OF_A_FILE] + [("delta", *at) for at in _OF_A_TABLE],
    [("delta", *at) for at in _OF_A_FILE] + [("file", *at) for at in _OF_A_TABLE],
    indirect=["archive_at"],
)
async def test_death_at_any_call_to_the_log_loses_nothing_and_repeats_nothing(
    log: LocalLog, archive_at: Archives, monkeypatch: pytest.MonkeyPatch, call: str, occurrence: int
) -> None:
    await publish(log, made_up_run(updates=2))
    await log.append([Record("metrics", "plug-in", b"bad", {}, 1_000)])
    made, store = Counter[str](), ArchiveWriter.store

    def die(name: str, about: object = None) -> None:
        made[name] += 1
        if name == call and made[name] == occurrence:
            raise _Killed

    def store_or_die(self: ArchiveWriter, prepared: Prepared) -> Written:
        die("before store")
        written = store(self, prepared)
        die("after store")
        return written

    path = archive_at("a")
    with monkeypatch.context() as patch:
        patch.setattr(ArchiveWriter, "store", store_or_die)
        with pytest.raises(_Killed):
            await archive_all(tapped(log, die), path, max_batch=60)
    await archive_all(log, path, max_batch=60)
    await archive_all(log, archive_at("whole"))
    assert typed_content(path) == typed_content(archive_at("whole"))
    for _ in range(2):  # a letter may have come after the end
        assert query(path, "SELECT count(*) FROM dead_letters").rows == [(1,)]
        await archive_all(log, path)


async def test_a_batch_that_failed_while_something_else_ended_the_archiver_is_told(
    log: LocalLog, archive_at: Archives, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(log, made_up_run(updates=2))
    ready, prepare = threading.Event(), ArchiveWriter.prepare

    def die(name: str, about: object = None) -> None:
        if name == "after poll" and ready.is_set():  # the batch before is being stored
            raise _Killed

    def prepare_first(
        self: ArchiveWriter, records: Sequence[StoredRecord], up_to: Mapping[tuple[str, int], int]
    ) -> Prepared:
        ready.set()
        return prepare(self, records, up_to)

    def full(self: ArchiveWriter, prepared: Prepared) -> Written:
        raise ArchiveError("no space left")

    monkeypatch.setattr(ArchiveWriter, "prepare", prepare_first)
    monkeypatch.setattr(ArchiveWriter, "store", full)
    with capture_logs() as told, pytest.raises(_Killed):
        await archive_all(tapped(log, die), archive_at("a"), max_batch=60)
    reasons = [line["reason"] for line in told if line["event"].startswith("the last batch was not archived")]
    assert reasons == ["no space left"]


async def test_an_archive_that_another_process_has_locked_delays_but_does_not_stop_it(
    log: LocalLog, archive_at: Archives, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, store, locked = archive_at("a"), ArchiveWriter.store, iter(range(3))

    def store_when_free(self: ArchiveWriter, prepared: Prepared) -> Written:
        if next(locked, None) is not None:
            raise ArchiveBusyError("locked")
        return store(self, prepared)

    monkeypatch.setattr(ArchiveWriter, "store", store_when_free)
    await publish(log, made_up_run())
    async with Archiver(log, path) as archiver:
        await until(lambda: archiver.records > 0, archiver)
    assert query(path, "SELECT count(*) FROM games").rows == [(40,)]


# -- a log that has lost records --------------------------------------------------------------


async def test_a_log_that_ends_before_what_was_archived_is_refused(
    tmp_path: Path, archive_at: Archives
) -> None:
    """A copy of the log from before is put back; with the whole log again, the archiver goes on."""
    path, copy, archive = tmp_path / "lossy.sqlite", tmp_path / "copy.sqlite", archive_at("a")
    async with LocalLog.open(path, synchronous="NORMAL") as whole:
        await whole.create_topics(list(load_topics().values()))
        await publish(whole, made_up_run()[:150])
    shutil.copy(path, copy)
    async with LocalLog.open(path, synchronous="NORMAL") as whole:
        await publish(whole, made_up_run()[150:])
        await archive_all(whole, archive)
        log_id, updates = await whole.log_id(), TopicPartition("learner-updates", 0)
        end = (await whole.end_offsets("learner-updates"))[updates]
    before = _counts(archive)
    async with LocalLog.open(copy, synchronous="NORMAL") as lossy:
        assert (await lossy.end_offsets("learner-updates"))[updates] < end
        says = rf"the log {log_id} has lost records that the archive \S+ has: .* partitions more"
        says += ".*Restore the log from a backup; or fill a new archive"
        with pytest.raises(ArchiveError, match=says):
            await archive_all(lossy, archive)
    assert _counts(archive) == before
    async with LocalLog.open(path, synchronous="NORMAL") as whole:
        await publish(whole, made_up_run("run-b", updates=1))
        flushes = await archive_all(whole, archive)
    assert sum(flushes) == len(made_up_run("run-b", updates=1))


# -- several archivers of one shared archive ------------------------------------------------------

_EVENTS = made_up_run()
_TIMEOUT_S = 200


@pytest.fixture
async def logs(log: LocalLog, tmp_path: Path) -> AsyncIterator[list[LocalLog]]:
    """The same log, opened by three processes as it were."""
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(LocalLog.open(DataDir(tmp_path).log)) for _ in range(2)]
        yield [log, *others]


async def test_a_member_comes_and_another_goes_while_records_come(
    logs: list[LocalLog], tmp_path: Path
) -> None:
    archive = f"delta:{tmp_path / 'shared'}"
    third = len(_EVENTS) // 3
    async with asyncio.timeout(_TIMEOUT_S):
        await publish(logs[2], _EVENTS[:third])
        first = Archiver(logs[0], archive, max_batch=20)
        await until(lambda: first.records >= 20, first)
        # It joins while the first one still stores, and takes over some partitions.
        second = Archiver(logs[1], archive, max_batch=20)
        for event in _EVENTS[third : 2 * third]:
            await publish(logs[2], [event])
        await until(lambda: first.records + second.records >= 2 * third, first, second)
        leaving = asyncio.create_task(first.end())
        await publish(logs[2], _EVENTS[2 * third :])
        await leaving
        await second.end()
    assert first.records + second.records == len(_EVENTS)
    assert second.records > 0
    await archive_all(logs[2], tmp_path / "one.duckdb")
    assert content(archive) == content(tmp_path / "one.duckdb")


async def test_a_member_that_stores_late_finds_its_partitions_gone(
    logs: list[LocalLog], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for dead while it stored a batch, and another member archived the same records."""
    archive = f"delta:{tmp_path / 'shared'}"
    store, other_is_done = ArchiveWriter.store, asyncio.Event()
    loop = asyncio.get_running_loop()
    late: list[ArchiveWriter] = []

    def slow(self: ArchiveWriter, prepared: Prepared) -> Written:
        if not late:
            late.append(self)
            asyncio.run_coroutine_threadsafe(other_is_done.wait(), loop).result(_TIMEOUT_S)
        return store(self, prepared)

    monkeypatch.setattr(ArchiveWriter, "store", slow)
    await publish(logs[2], _EVENTS)
    async with asyncio.timeout(_TIMEOUT_S):
        first = Archiver(logs[0], archive, max_batch=20)
        while not late:
            await asyncio.sleep(0.02)
        # Another consumer group: to this one, all partitions are its own.
        monkeypatch.setattr("unstable_stream.services.workers.archiver.ARCHIVER_GROUP", "another")
        second = Archiver(logs[1], archive, max_batch=20)
        await until(lambda: second.records >= len(_EVENTS), second)
        other_is_done.set()
        await first.end()
        await second.end()
    assert (first.records, second.records) == (0, len(_EVENTS))
    await archive_all(logs[2], tmp_path / "one.duckdb")
    assert content(archive) == content(tmp_path / "one.duckdb")
    assert query(archive, "SELECT count(*) FROM events").rows == [(len(_EVENTS),)]
