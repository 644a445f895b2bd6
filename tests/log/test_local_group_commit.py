"""Appends that wait side by side are written together: each keeps its places, and its error is its own."""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.log.harness import read
from unstable_stream.errors import EventLogError
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import Record, TopicPartition, TopicSpec


async def _appended_at_once(
    log: LocalLog, path: Path, batches: Sequence[Sequence[Record]]
) -> list[list[tuple[TopicPartition, int]] | BaseException]:
    """Hold the write lock until all batches wait for it, so that they share a commit."""
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    appending = [asyncio.create_task(log.append(batch)) for batch in batches]
    await asyncio.wait(appending, timeout=0.05)
    holder.execute("COMMIT")
    holder.close()
    return await asyncio.gather(*appending, return_exceptions=True)


async def test_every_batch_is_told_its_own_places(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    batches = [
        [
            Record("t", f"key-{number % 5}", b"%d:%d" % (number, place), timestamp_ms=number % 3)
            for place in range(number % 4)
        ]
        for number in range(40)
    ]
    async with LocalLog.open(path, synchronous="NORMAL", busy_timeout_s=60.0) as log:
        await log.create_topics([TopicSpec("t", 3)])
        places = await _appended_at_once(log, path, batches)
        consumer = await log.consumer(["t"])
        found = {
            (TopicPartition("t", record.partition), record.offset): record.value
            for record in await read(consumer, sum(map(len, batches)))
        }
    for batch, told in zip(batches, places, strict=True):
        assert not isinstance(told, BaseException)
        assert [found[place] for place in told] == [record.value for record in batch]
    assert sum((await _ends(path)).values()) == len(found)


async def _ends(path: Path) -> dict[TopicPartition, int]:
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        return dict(await log.end_offsets("t"))


async def test_what_one_batch_cannot_write_fails_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    async with LocalLog.open(path, synchronous="NORMAL", busy_timeout_s=60.0) as log:
        await log.create_topics([TopicSpec("t", 1)])
        with sqlite3.connect(path) as connection:
            connection.execute(
                """CREATE TRIGGER refuse BEFORE INSERT ON records_1 WHEN NEW.key = 'bad'
                   BEGIN SELECT RAISE(ABORT, 'refused'); END"""
            )
        connection.close()
        batches = [
            [Record("t", "good", b"%d" % number), *([Record("t", "bad", b"")] if number == 7 else [])]
            for number in range(20)
        ]
        told = await _appended_at_once(log, path, batches)
        consumer = await log.consumer(["t"])
        values = [int(record.value) for record in await read(consumer, 19)]
    assert [number for number, each in enumerate(told) if isinstance(each, EventLogError)] == [7]
    assert values == [number for number in range(20) if number != 7]
    with pytest.raises(EventLogError, match="refused"):
        raise told[7] if isinstance(told[7], BaseException) else AssertionError(told[7])


async def test_offsets_go_on_where_records_are_deleted_between_appends_of_one_commit(tmp_path: Path) -> None:
    """The table is empty in between: SQLite by itself would begin at 1 again."""
    path, at = tmp_path / "log.sqlite", TopicPartition("t", 0)
    async with LocalLog.open(path, synchronous="NORMAL", busy_timeout_s=60.0) as log:
        await log.create_topics([TopicSpec("t", 1)])
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        work = [
            asyncio.create_task(log.append([Record("t", "k", b"first", timestamp_ms=9)] * 3)),
            asyncio.create_task(log.delete_before({at: 3})),
            asyncio.create_task(log.append([Record("t", "k", b"second", timestamp_ms=9)])),
        ]
        await asyncio.wait(work, timeout=0.05)
        holder.execute("COMMIT")
        holder.close()
        await asyncio.gather(*work)
        assert work[2].result() == [(at, 3)]
        assert [record.value for record in await read(await log.consumer(["t"]), 1)] == [b"second"]
