"""Several archivers of one shared archive: they come and go, and each record is archived once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.archive.content import content
from tests.archive.history import made_up_run
from tests.services.workers.archiving import Archiver, archive_all, publish, until
from unstable_stream.archive import ArchiveWriter, Prepared, Written, query
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog
from unstable_stream.log.topics import load_topics

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


async def test_a_member_comes_and_another_goes_while_records_come(
    logs: list[EventLog], tmp_path: Path
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
