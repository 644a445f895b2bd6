"""Records that are too large for their topic: files beside the checkpoints, and whole to every reader."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infra.s3.server import S3Server
from tests.archive.history import made_up_run
from tests.log.harness import DEADLINE_S, LogHarness, read
from tests.stores.gate import Gate
from unstable_stream.errors import (
    EventDecodeError,
    RecordTooLargeError,
    SpilledValueError,
    StoreError,
    StoreUnavailableError,
)
from unstable_stream.events import RunStarted
from unstable_stream.log import spill
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Record, StoredRecord, TopicPartition, TopicSpec
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.records import event_from_record, record_from_event, source_header
from unstable_stream.log.spill import Pointer, pointer_in, spilling, whole_records
from unstable_stream.log.topics import TOPICS_DIR
from unstable_stream.stores import Store

RUN = "run-spill"
HEADERS = {"ce_source": source_header(RUN), "ce_id": b"1"}
LIMIT = 2_000

on_both = pytest.mark.parametrize("harness", ["local", "kafka"], indirect=True)


def large(topic: str, number: int = 0, size: int = 5_000) -> Record:
    """A record beyond the limit that neither repeats nor compresses."""
    value = b"".join(hashlib.sha256(b"%d %d" % (number, piece)).digest() for piece in range(size // 32 + 1))
    return Record(topic, "k", value[:size], HEADERS, 1_000 + number)


def files(checkpoints: Path) -> list[Path]:
    return sorted(checkpoints.glob(f"{RUN}/spilled/*"))


def plain(record: StoredRecord | Record) -> tuple[Any, ...]:
    return record.topic, record.key, record.value, dict(record.headers), record.timestamp_ms


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[EventLog]:
    """A log with a topic ``t`` of a low limit."""
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as inner:
        await inner.create_topics([TopicSpec("t", 1, max_message_bytes=LIMIT)])
        yield inner


def test_the_golden_pointer_means_what_it_meant() -> None:
    golden = (TOPICS_DIR / "golden" / "spilled" / "pointer.v1.json").read_bytes().rstrip(b"\n")
    digest = hashlib.sha256(b"value").hexdigest()
    uri = f"s3://bucket/runs/run-golden/spilled/{digest}"
    found = pointer_in(StoredRecord("t", 0, 0, "k", golden, {"ce_dataref": uri.encode()}, 0))
    assert found == Pointer(1, uri, digest, 5)
    assert msgspec.json.encode(found) == golden


@on_both
async def test_a_batch_with_large_records_is_read_as_it_was_appended(
    harness: LogHarness, tmp_path: Path
) -> None:
    inner, topic = harness.opened[0], await harness.topic(max_message_bytes=LIMIT)
    log = spilling(inner, tmp_path)
    batch = [large(topic, 1), Record(topic, "k", b"small", HEADERS, 1_002), large(topic, 3)]
    places = await log.append(batch)
    assert [at for at, _ in places] == [TopicPartition(topic, 0)] * 3
    assert [plain(record) for record in await read(await log.consumer([topic]), 3)] == list(map(plain, batch))

    # On the topic there are pointers, which say where the values are.
    raw = await read(await inner.consumer([topic]), 3)
    pointers = [pointer_in(record) for record in raw]
    assert raw[1].value == b"small"
    assert pointers[1] is None
    assert files(tmp_path) == sorted(Path(each.uri) for each in pointers if each is not None)
    for record, each in zip(raw, pointers, strict=True):
        if each is not None:
            assert each.uri == f"{tmp_path}/{RUN}/spilled/{each.sha256}"
            assert record.headers == {**HEADERS, "ce_dataref": each.uri.encode()}


@on_both
async def test_a_transaction_spills_and_an_aborted_one_leaves_a_file_that_nothing_names(
    harness: LogHarness, tmp_path: Path
) -> None:
    topic, group = await harness.topic(max_message_bytes=LIMIT), harness.group()
    log = spilling(harness.opened[0], tmp_path)
    await log.append([large(topic, 0)])
    consumer, producer = await log.consumer([topic], group), await log.producer(harness.group())
    await read(consumer, 1)
    aborted = producer.transaction()
    await aborted.__aenter__()
    await aborted.append([large(topic, 1)])
    await aborted.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert len(files(tmp_path)) == 2
    async with producer.transaction() as tx:
        await tx.append([large(topic, 1), large(topic, 2)])
        await tx.commit_positions(consumer, consumer.positions())
    assert len(files(tmp_path)) == 3
    assert [plain(each) for each in await read(consumer, 2)] == [plain(large(topic, n)) for n in (1, 2)]
    assert await log.committed_positions(group) == {TopicPartition(topic, 0): 1}


@on_both
async def test_a_poll_returns_no_more_than_fits_and_the_rest_comes_later(
    harness: LogHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "_BYTES_AT_ONCE", 11_000)
    topic, group = await harness.topic(2, max_message_bytes=LIMIT), harness.group()
    log = spilling(harness.opened[0], tmp_path)
    sent = [msgspec.structs.replace(large(topic, n), partition=n % 2) for n in range(10)]
    await log.append(sent)
    consumer = await log.consumer([topic], group)
    found: list[StoredRecord] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < 10:
            records = await consumer.poll(timeout_s=1.0)
            assert len(records) <= 2
            found += records
            # Positions are those of what was returned, not of what was looked at.
            await consumer.commit()
            for positions in (consumer.positions(), await log.committed_positions(group)):
                for number in (0, 1):
                    count = len([record for record in found if record.partition == number])
                    at_end = count == 5  # where Kafka has a transaction's marker
                    assert positions.get(TopicPartition(topic, number), 0) - count in (0, at_end)
    for number in (0, 1):
        assert [r.value for r in found if r.partition == number] == [r.value for r in sent[number::2]]


async def test_a_kill_between_the_file_and_the_record_leaves_a_file_that_the_next_try_uses(
    local: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = spilling(local, tmp_path / "checkpoints")
    append = local.append

    async def killed(records: Sequence[Record]) -> Any:
        if any(len(record.value) > LIMIT for record in records):
            return await append(records)  # refuses them
        raise ZeroDivisionError

    monkeypatch.setattr(local, "append", killed)
    with pytest.raises(ZeroDivisionError):
        await log.append([large("t")])
    (left,) = files(tmp_path / "checkpoints")
    assert set((await log.end_offsets("t")).values()) == {0}
    monkeypatch.undo()
    await log.append([large("t")])
    assert files(tmp_path / "checkpoints") == [left]
    assert [record.value async for record in read_to_end(log, ["t"])] == [left.read_bytes()]


async def test_what_is_lost_or_damaged_stops_the_reader_until_a_person_has_decided(
    local: EventLog, tmp_path: Path
) -> None:
    log = spilling(local, tmp_path / "checkpoints")
    await log.append([large("t"), Record("t", "k", b"small")])
    (file,) = files(tmp_path / "checkpoints")
    value = file.read_bytes()
    consumer = await log.consumer(["t"])
    file.write_bytes(b"something else")
    with pytest.raises(SpilledValueError, match=rf"t\[0\]@0: .*{file} is damaged: .*backup.*{file}\.lost"):
        await consumer.poll()
    file.unlink()
    with pytest.raises(SpilledValueError, match=rf"t\[0\]@0: .*{file} cannot be read.*ckpt_root.*\.lost"):
        await consumer.poll()
    assert consumer.positions() == {TopicPartition("t", 0): 0}
    file.with_name(f"{file.name}.lost").touch()
    lost, small = [record async for record in read_to_end(log, ["t"])]
    with pytest.raises(EventDecodeError, match=r"t\[0\]@0"):
        event_from_record(lost)
    assert small.value == b"small"
    file.write_bytes(value)
    assert [record.value for record in await read(consumer, 2)] == [value, b"small"]


async def test_a_pointer_of_a_newer_version_is_no_guess_and_a_strange_one_no_pointer(
    local: EventLog, tmp_path: Path
) -> None:
    log = spilling(local, tmp_path)
    header = {"ce_dataref": b"s3://somewhere"}
    strange = [b"", b"{}", b'{"spilled":1,"uri":"/etc/passwd","sha256":"' + b"0" * 64 + b'","size":1}']
    await local.append([Record("t", "k", value, header) for value in (*strange, b'{"spilled":2}')])
    consumer = await log.consumer(["t"])
    assert [record.value for record in await consumer.poll(max_records=3)] == strange
    with pytest.raises(SpilledValueError, match=r"t\[0\]@3: .*version 2.*s3://somewhere"):
        await consumer.poll()


async def test_what_cannot_be_a_file_is_refused(
    local: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "_LARGEST_BYTES", 10_000)
    log = spilling(local, tmp_path / "checkpoints")
    with pytest.raises(RecordTooLargeError, match="has a value of 10001 bytes; at most 10000"):
        await log.append([large("t", size=10_001)])
    (tmp_path / "checkpoints").write_text("no directory")
    with pytest.raises(StoreError, match=r"checkpoints.* cannot be written"):
        await log.append([large("t")])
    with pytest.raises(RecordTooLargeError, match=r"limit is 2000: raise .*unstable_stream\.log\.open"):
        await local.append([large("t")])
    assert set((await log.end_offsets("t")).values()) == {0}


async def test_a_data_directory_that_was_moved_has_its_values(local: EventLog, tmp_path: Path) -> None:
    await spilling(local, tmp_path / "here").append([large("t")])
    (tmp_path / "here").rename(tmp_path / "there")
    moved = spilling(local, tmp_path / "there")
    assert [record.value async for record in read_to_end(moved, ["t"])] == [large("t").value]
    raw = [record async for record in read_to_end(local, ["t"])]
    parts = [part async for part in whole_records(moved, [*raw, *raw])]
    assert [record.value for part in parts for record in part] == [large("t").value] * 2

    (file,) = files(tmp_path / "there")
    file.rename(f"{file}.lost")
    assert [record async for record in read_to_end(moved, ["t"])] == raw


async def _begin(log: EventLog, root: str) -> None:
    """Record a run whose checkpoints go to a store."""
    await log.create_topics([TopicSpec(RunStarted.TOPIC, 1)])
    first = next(event for event in made_up_run(RUN) if isinstance(event, RunStarted))
    config = {"learner": {"ckpt_root": root}}
    await log.append([record_from_event(msgspec.structs.replace(first, config=config))])


@on_both
async def test_hosts_without_a_shared_disk_meet_in_the_store_of_the_run(
    harness: LogHarness, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, topic = harness.opened[0], await harness.topic(max_message_bytes=LIMIT)
    await _begin(inner, s3)
    sent = [large(topic, n) for n in range(3)]
    await spilling(inner, tmp_path / "writer").append(sent)
    assert not (tmp_path / "writer").exists()
    assert len(Store(f"{s3}/{RUN}/spilled").names()) == 3

    monkeypatch.setenv("UNSTABLE_STREAM_CACHE", str(tmp_path / "cache of the reader"))
    reader = spilling(inner, tmp_path / "reader")
    assert [plain(each) for each in await read(await reader.consumer([topic]), 3)] == list(map(plain, sent))
    gone = hashlib.sha256(sent[0].value).hexdigest()
    Store(f"{s3}/{RUN}/spilled").remove(gone)
    assert len(await read(await reader.consumer([topic]), 3)) == 3  # from the cache
    monkeypatch.setenv("UNSTABLE_STREAM_CACHE", str(tmp_path / "cache of another"))
    consumer = await reader.consumer([topic])
    with pytest.raises(SpilledValueError, match=rf"{topic}\[0\]@0: .*{s3}.*{gone} is not in the store"):
        await consumer.poll(timeout_s=DEADLINE_S)
    Store(f"{s3}/{RUN}/spilled").write(f"{gone}.lost", b"")
    assert [r.value for r in (await read(consumer, 3))[1:]] == [record.value for record in sent[1:]]


async def test_a_store_that_is_away_is_waited_for_and_a_closed_consumer_waits_no_more(
    local: EventLog, s3: str, s3_server_of_session: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _begin(local, s3)
    log = spilling(local, tmp_path)
    with Gate(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2])) as gate:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{gate.port}")
        gate.close_now()
        appending = asyncio.create_task(log.append([large("t")]))
        async with asyncio.timeout(DEADLINE_S):
            while not gate.turned_away:
                await asyncio.sleep(0.01)
        assert not appending.done()
        gate.state = "open"
        await asyncio.wait_for(appending, DEADLINE_S)

        gate.close_now()
        consumer, turned_away = await log.consumer(["t"]), gate.turned_away
        polling = asyncio.create_task(consumer.poll())
        async with asyncio.timeout(DEADLINE_S):
            while gate.turned_away == turned_away:
                await asyncio.sleep(0.01)
        await consumer.close()
        with pytest.raises(StoreUnavailableError):
            await asyncio.wait_for(polling, DEADLINE_S)
        gate.state = "open"
        assert [record.value async for record in read_to_end(log, ["t"])] == [large("t").value]
