"""The local log's file: contiguous offsets, locks, damage, deleted records, and how it stores records."""

import asyncio
import contextlib
import inspect
import random
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.log.harness import DEADLINE_S, read, records
from unstable_stream.errors import (
    EventLogError,
    FencedError,
    LogUnavailableError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UnknownTopicError,
)
from unstable_stream.log.local import database as local_database
from unstable_stream.log.local import records as local_records
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.open import open_log_at, opened_log
from unstable_stream.log.port import Record, StoredRecord, TopicPartition, TopicSpec
from unstable_stream.runs.config import RunConfig

AT = TopicPartition("t", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "on" / "demand" / "log.sqlite"


@pytest.fixture
async def log(path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(path, synchronous="NORMAL", busy_timeout_s=DEADLINE_S) as log:
        await log.create_topics([TopicSpec("t", 1, max_message_bytes=100_000)])
        yield log


async def _values(log: LocalLog, count: int) -> list[str]:
    consumer = await log.consumer(["t"])
    found = [record.value.decode() for record in await read(consumer, count)]
    await consumer.close()
    return found


async def test_opening_needs_no_event_loop_and_a_log_outlives_one(path: Path) -> None:
    def use() -> object:
        log = LocalLog.open(path)
        asyncio.run(log.create_topics([TopicSpec("t", 1)]))
        asyncio.run(log.append(records("t", ["a"])))
        end = asyncio.run(log.end_offsets("t"))
        for _ in range(2):
            asyncio.run(log.close())
        with pytest.raises(EventLogError, match=r"log\.sqlite is closed"):
            asyncio.run(log.topics())
        return end

    assert await asyncio.to_thread(use) == {AT: 1}


async def test_offsets_count_up_from_zero_across_handles(log: LocalLog, path: Path) -> None:
    async with LocalLog.open(path) as other:
        for turn in range(4):
            writer = (log, other)[turn % 2]
            placed = await writer.append(records("t", ["a", "b", "c"]))
            assert placed == [(AT, 3 * turn + number) for number in range(3)]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the write lock, as another process does: what is begun meanwhile waits, and shares a commit."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.execute("COMMIT")


async def _at_once(path: Path, *work: Awaitable[Any]) -> list[Any]:
    with _locked(path):
        begun = [asyncio.ensure_future(each) for each in work]
        await asyncio.wait(begun, timeout=0.05)
    return await asyncio.gather(*begun, return_exceptions=True)


async def test_every_batch_of_a_shared_commit_is_told_its_own_places(log: LocalLog, path: Path) -> None:
    await log.create_topics([TopicSpec("three", 3)])

    def batch(number: int) -> list[Record]:
        values = (b"%d:%d" % (number, place) for place in range(number % 4))
        return [Record("three", f"key-{number % 5}", value, timestamp_ms=number % 3) for value in values]

    batches = list(map(batch, range(40)))
    places = await _at_once(path, *(log.append(batch) for batch in batches))
    stored = await read(await log.consumer(["three"]), sum(map(len, batches)))
    found = {(TopicPartition("three", each.partition), each.offset): each.value for each in stored}
    for appended, told in zip(batches, places, strict=True):
        assert [found[place] for place in told] == [record.value for record in appended]
    assert sum((await log.end_offsets("three")).values()) == len(found)


async def test_what_one_batch_cannot_write_fails_it_alone(log: LocalLog, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(
            """CREATE TRIGGER refuse BEFORE INSERT ON records_1 WHEN NEW.key = 'bad'
               BEGIN SELECT RAISE(ABORT, 'refused'); END"""
        )
    spoiled = {3: Record("t", "k", b"x" * 200_000), 7: Record("t", "bad", b"")}
    batches = [
        [*records("t", [f"{number}"]), *([spoiled[number]] if number in spoiled else [])]
        for number in range(20)
    ]
    told = await _at_once(
        path, *map(log.append, batches), log.create_topics([TopicSpec("new", 2), TopicSpec("t", 5)])
    )
    failed = {number: type(each) for number, each in enumerate(told) if isinstance(each, BaseException)}
    assert failed == {3: RecordTooLargeError, 7: EventLogError, 20: EventLogError}
    assert "refused" in str(told[7])
    assert await log.topics() == {"t": 1}
    assert await _values(log, 18) == [str(number) for number in range(20) if number not in spoiled]


async def test_offsets_go_on_where_records_are_deleted_between_appends_of_one_commit(
    log: LocalLog, path: Path
) -> None:
    """The table is empty in between: SQLite by itself would begin at 1 again."""
    _, _, places = await _at_once(
        path,
        log.append([Record("t", "k", b"first", timestamp_ms=9)] * 3),
        log.delete_before({AT: 3}),
        log.append([Record("t", "k", b"second", timestamp_ms=9)]),
    )
    assert places == [(AT, 3)]
    assert await _values(log, 1) == ["second"]


async def test_a_fenced_transaction_takes_nobody_with_it(log: LocalLog, path: Path) -> None:
    zombie = await log.producer("p")
    transaction = zombie.transaction()
    await transaction.__aenter__()
    await transaction.append(records("t", ["zombie"]))
    await log.producer("p")
    results = await _at_once(
        path,
        log.append(records("t", ["before"])),
        transaction.__aexit__(None, None, None),
        log.append(records("t", ["after"])),
    )
    assert [type(result) for result in results] == [list, FencedError, list]
    assert await _values(log, 2) == ["before", "after"]
    with pytest.raises(FencedError, match="epoch 2"):
        await zombie.transaction().__aenter__()


async def test_one_poll_gives_each_partition_its_share(log: LocalLog) -> None:
    await log.create_topics([TopicSpec(name, 1) for name in ("busy", "busier", "quiet")])
    await log.append(records("busy", ["x"] * 500) + records("busier", ["x"] * 5000))
    await log.append(records("quiet", ["heard"]))
    consumer = await log.consumer(["busy", "busier", "quiet", "t"])
    counts = Counter(record.topic for record in await consumer.poll(max_records=100))
    assert counts["quiet"] == 1
    assert sum(counts.values()) == 100
    assert abs(counts["busy"] - counts["busier"]) <= 1


async def test_with_more_partitions_than_records_in_a_poll_all_are_served(log: LocalLog) -> None:
    await log.create_topics([TopicSpec("many", 7)])
    await log.append([Record("many", "k", b"", partition=number % 7) for number in range(700)])
    consumer = await log.consumer(["many"])
    seen = [record.partition for _ in range(4) for record in await consumer.poll(max_records=2)]
    assert len(set(seen)) == 7


async def test_a_poll_takes_only_so_much_memory(log: LocalLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_records, "_MOST_BYTES_AT_ONCE", 25_000)
    await log.create_topics([TopicSpec("two", 2)])
    for number in range(2):
        await log.append([Record("two", "k", b"x" * 10_000, partition=number)] * 4)
    consumer = await log.consumer(["two"])
    assert [len(await consumer.poll(timeout_s=0)) for _ in range(4)] == [3, 3, 2, 0]


async def test_one_transaction_at_a_time(log: LocalLog) -> None:
    producer = await log.producer("p")
    async with producer.transaction():
        second = producer.transaction()
        with pytest.raises(EventLogError, match="open already"):
            await second.__aenter__()
    with pytest.raises(EventLogError, match="async with"):
        await producer.transaction().append(records("t", ["a"]))


async def test_a_writer_waits_for_the_lock_up_to_its_deadline(log: LocalLog, path: Path) -> None:
    with _locked(path):
        async with LocalLog.open(path, synchronous="NORMAL", busy_timeout_s=0.3) as hasty:
            with pytest.raises(LogUnavailableError, match="locked"):
                await hasty.append(records("t", ["lost"]))
        assert LogUnavailableError.retriable
        assert await log.end_offsets("t") == {AT: 0}  # readers do not wait
        waiting = asyncio.create_task(log.append(records("t", ["kept"])))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
    assert await waiting == [(AT, 0)]


async def test_a_cancelled_append_is_settled_when_the_cancellation_arrives(log: LocalLog, path: Path) -> None:
    with _locked(path):
        appending = asyncio.create_task(log.append(records("t", ["kept"])))
        await asyncio.wait([appending], timeout=0.05)
        appending.cancel()
        await asyncio.sleep(0)
        assert not appending.done()
    with pytest.raises(asyncio.CancelledError):
        await appending
    assert await log.end_offsets("t") == {AT: 1}


def test_a_wal_that_readers_kept_growing_is_started_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_database, "_WAL_BYTES", 100_000)
    path = str(tmp_path / "log.sqlite")
    connection = local_database.open_database(path, "NORMAL", 1.0, writes=True)
    wal = Path(f"{path}-wal")
    connection.execute("CREATE TABLE grown (x)")
    assert not local_database.bound_wal(connection, path)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM grown").fetchall()
    connection.executemany("INSERT INTO grown VALUES (?)", [(b"x" * 10_000,)] * 100)
    assert local_database.bound_wal(connection, path)  # tried in vain, and gave up soon
    connection.execute("INSERT INTO grown VALUES (1)")
    assert wal.stat().st_size > 1_000_000
    reader.execute("COMMIT")
    assert local_database.bound_wal(connection, path)
    connection.execute("INSERT INTO grown VALUES (2)")
    assert wal.stat().st_size <= 100_000
    reader.close()
    connection.close()


async def test_a_full_disk_appends_nothing_and_is_survived(log: LocalLog) -> None:
    writer = log._log.writer
    await log.append(records("t", ["before"]))

    def limit(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 3}")

    await writer.run(limit)
    with pytest.raises(EventLogError, match="no space left"):
        await log.append([Record("t", "k", b"x" * 1000)] * 100)
    await writer.run(lambda connection: connection.execute("PRAGMA max_page_count = 1000000").fetchone())
    assert await log.append(records("t", ["after"])) == [(AT, 1)]
    assert await _values(log, 2) == ["before", "after"]


async def test_unknown_topics_and_partitions_name_those_there_are(log: LocalLog) -> None:
    with pytest.raises(UnknownTopicError, match=r"unknown topic 'x'; topics of this log: t\. Create"):
        await log.append(records("x", ["a"]))
    with pytest.raises(UnknownTopicError, match=r"t\[1\].*0 to 0"):
        await log.append(records("t", ["a"], partition=1))
    with pytest.raises(EventLogError, match="at least 1"):
        await log.create_topics([TopicSpec("none", 0)])


async def test_a_record_of_just_the_limit_fits(log: LocalLog) -> None:
    headers = {"ce_type": b"t", "a": b"bc"}  # 7 + 1 + 1 + 2 bytes
    fits = Record("t", "☺", b"x" * (100_000 - 3 - 11), headers)
    await log.append([fits])
    with pytest.raises(RecordTooLargeError, match=r"100001 bytes.*100000"):
        await log.append([Record("t", "☺", fits.value + b"x", headers)])


async def test_what_repeats_from_record_to_record_is_stored_once(log: LocalLog, path: Path) -> None:
    shared = {"ce_specversion": b"1.0", "ce_type": b"unstable_stream.step.v1", "content-type": b"x/y"}
    noise = random.Random(0).randbytes(300)  # deflate makes nothing of it
    sent = [
        Record("t", "a-run/an-environment", noise + b"%d" % number, {"ce_id": b"%04d" % number} | shared, 7)
        for number in range(1000)
    ]
    await log.append(sent)
    # Another process finds the sample in the log.
    async with LocalLog.open(path, synchronous="NORMAL") as other:
        await other.append(sent[:1])
        stored = await read(await other.consumer(["t"]), 1001)
    assert [(r.key, r.value, r.headers) for r in stored] == [
        (r.key, r.value, r.headers) for r in [*sent, sent[0]]
    ]
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM header_layouts").fetchone() == (1,)
    (row_bytes,) = connection.execute(
        "SELECT sum(length(key) + length(headers) + length(value)) FROM records_1"
    ).fetchone()
    assert row_bytes <= 1001 * 25  # two repetitions, and two numbers
    connection.close()


async def test_deleted_records_are_named_and_offsets_stay(log: LocalLog) -> None:
    await log.append([Record("t", "k", b"%d" % n, timestamp_ms=n) for n in (10, 20, 15, 30, 25)])
    lagging = await log.consumer(["t"])
    behind = await log.consumer(["t"], group="g")
    await read(behind, 5)
    await behind.commit({AT: 1})
    await behind.close()

    await log.delete_before(await log.offsets_for_time("t", 30))
    assert await log.beginning_offsets("t") == {AT: 3}
    assert await _values(log, 2) == ["30", "25"]
    assert await log.offsets_for_time("t", 20) == {AT: 3}
    with pytest.raises(OffsetOutOfRangeError, match=r"t\[0\]@0.*offsets 3 up to .* 5"):
        await lagging.poll()
    await lagging.seek(await log.beginning_offsets("t"))
    assert len(await read(lagging, 2)) == 2
    resumed = await log.consumer(["t"], group="g")
    with pytest.raises(OffsetOutOfRangeError, match=r"t\[0\]@1"):
        await resumed.poll()
    await resumed.seek({AT: 3})
    assert len(await read(resumed, 2)) == 2

    await log.delete_before({AT: 5})
    with pytest.raises(OffsetOutOfRangeError, match=r"t\[0\]@6"):
        await log.delete_before({AT: 6})
    assert await log.append(records("t", ["next"])) == [(AT, 5)]
    assert await log.offsets_for_time("t", 10) == {AT: 5}


async def test_a_source_is_erased_and_readers_pass_over_it_to_the_end(log: LocalLog) -> None:
    """Erased records are the first, the last and more than a poll reads at once; offsets stay."""
    mine, other = ({"ce_source": source} for source in (b"/runs/mine", b"/runs/other"))
    for headers, count in ((mine, 30), (other, 2), (mine, 30), ({}, 1), (mine, 30)):
        await log.append([Record("t", "k", b"%d" % n, headers, timestamp_ms=n) for n in range(count)])
    before = await log.sizes()
    assert [(key, before[key][0]) for key in sorted(before)] == [
        (("t", b""), 1),
        (("t", b"/runs/mine"), 90),
        (("t", b"/runs/other"), 2),
    ]
    assert before["t", b""][1] == len(b"0") + len("k")
    await log.erase(b"/runs/mine", kept=["t"])
    assert await log.sizes() == before
    await log.erase(b"/runs/mine")
    await log.erase(b"/runs/nobody")
    assert ("t", b"/runs/mine") not in await log.sizes()
    consumer = await log.consumer(["t"])
    found = []
    while consumer.positions()[AT] < 93:
        found += [record.offset for record in await consumer.poll(max_records=4, timeout_s=0)]
    assert found == [30, 31, 62]
    assert await log.end_offsets("t") == {AT: 93}
    assert await log.offsets_for_time("t", 29) == {AT: 29}
    assert await log.append(records("t", ["next"])) == [(AT, 93)]
    assert [record.value for record in await read(consumer, 1)] == [b"next"]


async def test_positions_beyond_the_end_tell_of_another_log(log: LocalLog) -> None:
    await log.append(records("t", ["a"]))
    consumer = await log.consumer(["t"], group="g")
    await read(consumer, 1)
    await consumer.commit({AT: 7})
    await consumer.close()
    resumed = await log.consumer(["t"], group="g")
    with pytest.raises(OffsetOutOfRangeError, match="older copy"):
        await resumed.poll()


@pytest.mark.parametrize(("version", "lacks"), [(1, ("identity", "states")), (2, ("states",)), (3, ())])
async def test_a_log_of_an_earlier_schema_is_brought_up_to_date(
    tmp_path: Path, version: int, lacks: tuple[str, ...]
) -> None:
    path = tmp_path / "log.sqlite"
    shared, own = {"ce_type": b"t"}, {"ce_id": b"1"}
    async with LocalLog.open(path) as log:
        await log.create_topics([TopicSpec("t", 1)])
    connection = sqlite3.connect(path, isolation_level=None)
    for table in lacks:
        connection.execute(f"DROP TABLE {table}")
    connection.execute("ALTER TABLE header_layouts DROP COLUMN sample")
    # Records were stored as they are, but for headers that repeat.
    connection.execute("""INSERT INTO header_layouts VALUES (1, '[["ce_type","dA=="],["ce_id",null]]')""")
    connection.execute(
        "INSERT INTO records_1 VALUES (0, 5, 0, 'k', 1, ?, ?)", (msgspec.msgpack.encode([b"1"]), b"kept")
    )
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    async with LocalLog.open(path) as log:
        log_id = await log.log_id()
        assert await log.saved("scope") == {}
        consumer = await log.consumer(["t"])
        old = StoredRecord("t", 0, 0, "k", b"kept", shared | own, 5)
        assert await consumer.poll() == [old]
        await log.append([Record("t", "k", b"new", shared | own, 6)])  # the layout has no sample yet
        assert await consumer.poll() == [msgspec.structs.replace(old, offset=1, value=b"new", timestamp_ms=6)]
    async with LocalLog.open(path) as log:
        assert await log.log_id() == log_id


def test_a_file_that_is_no_log_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"these are not the bytes you are looking for" * 100)
    (tmp_path / "directory").mkdir()
    asyncio.run(LocalLog.open(tmp_path / "newer").close())
    for name, sql in (("another", "CREATE TABLE mine (x)"), ("newer", "PRAGMA user_version = 99")):
        with contextlib.closing(sqlite3.connect(tmp_path / name)) as connection:
            connection.execute(sql)
    for name, says in (
        ("garbage", "not an event log"),
        ("directory", "cannot be opened"),
        ("another", "not an event log .*expected 0x75736c67"),
        ("newer", "schema version 99.*upgrade"),
    ):
        with pytest.raises(EventLogError, match=rf"{tmp_path}/{name}\b.*{says}"):
            LocalLog.open(tmp_path / name)


async def test_a_damaged_log_is_reported_as_corrupt(path: Path) -> None:
    async with LocalLog.open(path) as log:
        await log.create_topics([TopicSpec("t", 1)])
        await log.append([Record("t", "k", b"x" * 1000)] * 200)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * (size // 2))
    async with LocalLog.open(path) as log:
        consumer = await log.consumer(["t"])
        with pytest.raises(EventLogError, match="corrupt"):
            await read(consumer, 200)


async def test_a_damaged_record_is_named(log: LocalLog, path: Path) -> None:
    await log.create_topics([TopicSpec("t", 1)])
    await log.append([Record("t", "k", b"x", {"ce_id": str(number).encode()}) for number in range(3)])
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute('UPDATE records_1 SET value = substr(value, 1, 2) WHERE "offset" = 1')
        connection.commit()
    consumer = await log.consumer(["t"])
    with pytest.raises(EventLogError, match=r"^record t\[0\]@1 of the log is damaged: .*; restore a backup$"):
        await read(consumer, 3)


async def test_a_cancelled_close_closes_all_that_is_open(tmp_path: Path) -> None:
    process = psutil.Process()
    before = process.num_fds()
    log = LocalLog.open(tmp_path / "log.sqlite")
    await log.create_topics([TopicSpec("games", 1)])
    consumer = await log.consumer(["games"])
    await consumer.poll(timeout_s=0.01)  # has a socket from now on
    assert process.num_fds() > before
    closing = asyncio.create_task(log.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert process.num_fds() == before


@pytest.mark.parametrize("opened", [LocalLog.open, open_log_at, opened_log])
def test_acknowledged_records_are_on_disk_unless_somebody_chose_otherwise(
    opened: Callable[..., object],
) -> None:
    assert inspect.signature(opened).parameters["synchronous"].default == "FULL"
    assert RunConfig.model_fields["synchronous"].default == "FULL"


def test_a_log_that_others_are_making_is_no_foreign_file(tmp_path: Path) -> None:
    def open_anew(number: int) -> None:
        path = str(tmp_path / f"{number // 6}.sqlite")
        local_database.open_database(path, "NORMAL", DEADLINE_S, writes=False).close()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(open_anew, range(600)))
