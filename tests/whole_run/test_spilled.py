"""A whole run on topics so small that most of what it records becomes files: nothing above the log knows."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import unstable_stream as us
from tests.whole_run.processes import DEADLINE_S
from tests.whole_run.test_checkpoint_store import settings
from unstable_stream.api.backup import back_up
from unstable_stream.api.place import Place
from unstable_stream.api.serving import archive
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.spill import pointer_in
from unstable_stream.log.topics import load_topics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * DEADLINE_S)]

TOPICS = ("trajectories", "game-outcomes", "learner-updates", "steps")


@pytest.fixture
def small_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare topics that take little more than a pointer."""
    declared = load_topics()
    for name in TOPICS:
        monkeypatch.setitem(declared, name, replace(declared[name], max_message_bytes=1_500))


def spilled(data: Path) -> dict[str, set[str]]:
    """Where the values are, by topic."""

    async def look() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        async with LocalLog.open(data / "log.sqlite") as log:
            async for record in read_to_end(log, list(await log.topics())):
                pointer = pointer_in(record)
                if pointer is not None:
                    found.setdefault(record.topic, set()).add(pointer.uri)
        return found

    return asyncio.run(look())


def rows(run: us.Run, table: str) -> list[Any]:
    # Records are numbered in the order of their archiving.
    return sorted(map(str, run.sql(f"SELECT COLUMNS(lambda c: c <> 'record_number') FROM {table}")))


@pytest.mark.usefixtures("small_topics")
@pytest.mark.parametrize("store", [False, True])
def test_a_run_whose_records_are_too_large(
    store: bool, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    run = us.build(ckpt_root=s3 if store else None, data=data, **settings(2))
    run.start()
    found = spilled(data)
    assert found.keys() >= {"trajectories", "learner-updates"}
    root = s3 if store else f"{data.absolute()}/checkpoints"
    assert all(uri.startswith(f"{root}/{run.id}/spilled/") for uris in found.values() for uri in uris)
    assert run.audit().ok
    verified = run.verify()
    assert verified.ok, verified

    tables = ("trajectories", "turns", "steps", "games", "updates")
    live = {table: rows(run, table) for table in tables}
    assert live["turns"]
    archive(Place.at(data), rebuild=True)
    assert {table: rows(run, table) for table in tables} == live

    done = back_up(data, tmp_path / "backup")
    files = sum(map(len, found.values()))
    assert (done.values, done.stored_values, done.missing) == ((0, files, ()) if store else (files, 0, ()))
    shutil.rmtree(data)
    monkeypatch.setenv("UNSTABLE_STREAM_CACHE", str(tmp_path / "cache of another host"))
    restored = us.open_run(run.id, data=tmp_path / "backup")
    assert restored.audit().ok
    assert restored.verify(games=False).ok
