"""Several archivers of one shared archive: they come and go, and each record is archived once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.archive.content import content
from tests.archive.history import made_up_run
from unstable_stream.archive import ArchiveWriter, Prepared, Written, query
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import record_from_event
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.log.topics import load_topics
from unstable_stream.services.workers.archiver import run_archiver

_EVENTS = made_up_run()
_TIMEOUT_S = 200


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[list[EventLog]]:
    """The same log, opened by three processes as it were."""
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(opened_log("local", tmp_path / "log.sqlite")) for _ in range(3)
        ]
        await opened[0].create_topics(list(load_topics().values()))
        yield opened


class _Archiver:
    """One member, and what it stored."""

    def __init__(self, log: EventLog, archive: ArchiveAddress) -> None:
        self.stop = asyncio.Event()
        self.records = 0
        self.task = asyncio.create_task(
            run_archiver(
                log, archive, stop=self.stop, flush_interval_s=0.02, max_batch=20, on_flush=self._count
            )
        )

    def _count(self, written: Written) -> None:
        self.records += written.records

    async def end(self) -> None:
        self.stop.set()
        await self.task


async def _archived_by_one(log: EventLog, path: Path) -> dict[str, list[str]]:
    stop = asyncio.Event()
    stop.set()
    await run_archiver(log, path, stop=stop, flush_interval_s=0.02)
    return content(path)


async def _until(archivers: list[_Archiver], records: int) -> None:
    while sum(each.records for each in archivers) < records:
        done = [each.task for each in archivers if each.task.done() and not each.stop.is_set()]
        for task in done:
            task.result()
        await asyncio.sleep(0.02)


async def test_a_member_comes_and_another_goes_while_records_come(
    logs: list[EventLog], tmp_path: Path
) -> None:
    archive = f"delta:{tmp_path / 'shared'}"
    third = len(_EVENTS) // 3
    async with asyncio.timeout(_TIMEOUT_S):
        await logs[2].append([record_from_event(event) for event in _EVENTS[:third]])
        first = _Archiver(logs[0], archive)
        await _until([first], 20)
        # It joins while the first one still stores, and takes over some partitions.
        second = _Archiver(logs[1], archive)
        for event in _EVENTS[third : 2 * third]:
            await logs[2].append([record_from_event(event)])
        await _until([first, second], 2 * third)
        leaving = asyncio.create_task(first.end())
        await logs[2].append([record_from_event(event) for event in _EVENTS[2 * third :]])
        await leaving
        await second.end()
    assert first.records + second.records == len(_EVENTS)
    assert second.records > 0
    assert content(archive) == await _archived_by_one(logs[2], tmp_path / "one.duckdb")


async def test_a_member_that_stores_late_finds_its_partitions_gone(
    logs: list[EventLog], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    await logs[2].append([record_from_event(event) for event in _EVENTS])
    async with asyncio.timeout(_TIMEOUT_S):
        first = _Archiver(logs[0], archive)
        while not late:
            await asyncio.sleep(0.02)
        # Another consumer group: to this one, all partitions are its own.
        monkeypatch.setattr("unstable_stream.services.workers.archiver.GROUP", "another")
        second = _Archiver(logs[1], archive)
        await _until([second], len(_EVENTS))
        other_is_done.set()
        await first.end()
        await second.end()
    assert (first.records, second.records) == (0, len(_EVENTS))
    assert content(archive) == await _archived_by_one(logs[2], tmp_path / "one.duckdb")
    assert query(archive, "SELECT count(*) FROM events").rows == [(len(_EVENTS),)]
