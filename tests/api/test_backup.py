"""A backup that is made while a run writes is one moment of the run, whole, and goes on like the original."""

import asyncio
import contextlib
import itertools
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import unstable_stream as us
from tests.archive.history import made_up_run
from tests.builders import made
from tests.history.proofs.recorded_run import record_run
from tests.places import append, on_log
from tests.services.workers.test_learner_service import RUN as LEARNER_RUN
from tests.services.workers.test_learner_service import config, new_log, published, service, steps
from unstable_stream.api.backup import back_up
from unstable_stream.api.place import Place
from unstable_stream.api.serving import archive
from unstable_stream.archive import open_archive
from unstable_stream.errors import EventLogError, RunError
from unstable_stream.events import Checkpoint
from unstable_stream.history.proofs.verify import audit_run
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import TopicPartition
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.recording import start_run
from unstable_stream.services.streams.plugins.worker import PluginStates, Saved

RUN = "run-backup"
_OTHER = "run-other"
"""Its checkpoints have files."""


@contextmanager
def _writing(data: Path) -> Iterator[None]:
    """Append to the log without a pause."""
    begun, enough = threading.Event(), threading.Event()

    async def write(log: LocalLog) -> None:
        for number in itertools.takewhile(lambda _: not enough.is_set(), itertools.count()):
            events = made_up_run(f"run-{number}", updates=1)
            await log.append([record_from_event(event) for event in events])
            begun.set()

    thread = threading.Thread(target=on_log, args=(data, write))
    thread.start()
    try:
        assert begun.wait(60)
        yield
    finally:
        enough.set()
        thread.join()


def _checkpoint(data: DataDir, name: str) -> Checkpoint:
    directory = data.checkpoints(_OTHER) / name
    directory.mkdir(parents=True)
    (directory / "adapter_model.safetensors").write_bytes(name.encode())
    named = {"event_id": f"of-{name}", "model_uid": name, "path": str(directory)}
    return made(Checkpoint, run_id=_OTHER, iteration=100, **named)


def test_a_backup_made_while_a_run_writes_is_whole(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")

    on_log(data.root, lambda log: record_run(log, RUN))
    published = [_checkpoint(data, "named"), _checkpoint(data, "lost")]
    published.append(msgspec.structs.replace(published[0], event_id="of-stored", path="s3://bucket/stored"))
    append(data.root, published)
    (data.checkpoints(_OTHER) / "unpublished").mkdir()
    with contextlib.closing(PluginStates(data.root / "plugins" / "mine.sqlite", "log", "group")) as states:
        states.save({TopicPartition("steps", 0): Saved(7, {RUN: b"state"})})
    shutil.rmtree(data.checkpoints(_OTHER) / "lost")
    archive(Place.at(data.root))
    verified = us.open_run(RUN, data=data.root).verify(games=False)
    with _writing(data.root):
        done = back_up(data.root, tmp_path / "copy")
    copy = DataDir(tmp_path / "copy")
    # Those of the other runs have no files.
    assert (done.checkpoints, done.elsewhere) == (1, 1)
    assert [Path(path).name for path in done.missing if str(data.root) in path] == ["lost"]
    (kept,) = copy.checkpoints(_OTHER).iterdir()
    assert (kept / "adapter_model.safetensors").read_bytes() == b"named"
    with contextlib.closing(PluginStates(copy.root / "plugins" / "mine.sqlite", "log", "group")) as states:
        assert states.load(TopicPartition("steps", 0)) == Saved(7, {RUN: b"state"})
    run = us.open_run(RUN, data=copy.root)
    assert run.audit().ok
    assert {check.name: check.compared for check in run.verify(games=False).checks} == {
        check.name: check.compared for check in verified.checks
    }
    # The archive is not ahead of the log, which would be refused, and what it lacks comes.
    archive(Place.at(copy.root))
    with open_archive(copy.archive) as connection:
        ((archived,),) = connection.execute("SELECT sum(next_offset) FROM positions").fetchall()

    async def ends(log: LocalLog) -> int:
        return sum([sum((await log.end_offsets(topic)).values()) for topic in await log.topics()])

    assert archived == on_log(copy.root, ends)


async def test_a_run_goes_on_from_a_backup_wherever_it_is_put(tmp_path: Path) -> None:
    """The events name checkpoints in the directory that is gone."""
    was, now = tmp_path / "was", tmp_path / "elsewhere" / "now"
    async with new_log(was) as log:
        await log.create_topics(list(load_topics().values()))
        await start_run(log, config(iterations=3), LEARNER_RUN)
        await log.append([record_from_event(step) for step in steps()])
        first = service(was, config(iterations=2))
        assert await first.train(log, asyncio.Event()) == 2
        first.close()
    assert (await asyncio.to_thread(back_up, was, tmp_path / "copy")).missing == ()
    shutil.rmtree(was)
    now.parent.mkdir()
    (tmp_path / "copy").rename(now)
    async with new_log(now) as log:
        problems = (await audit_run(log, LEARNER_RUN, located=DataDir(now).located)).problems
        assert not [problem for problem in problems if "checkpoint file" in problem]
        second = service(now, config(iterations=3))
        assert await second.train(log, asyncio.Event()) == 3
        second.close()
        _, checkpoints = await published(log)
        assert all(Path(DataDir(now).located(each.path)).is_dir() for each in checkpoints if each.path)
    assert not was.exists()


def test_a_backup_takes_no_directory_but_its_own_checkpoints(tmp_path: Path) -> None:
    data, other = DataDir(tmp_path / "data"), tmp_path / "others" / RUN / "ckpt-000002-0b"
    own = _checkpoint(data, "ckpt-000001-0a")
    other.mkdir(parents=True)
    # Of a place that the data directory had before: the same checkpoint once more.
    moved = f"/gone/checkpoints/{_OTHER}/ckpt-000001-0a"
    absent = ["\0", "/" + "x" * 300, "/" + "y/" * 3000, str(tmp_path / RUN / "ckpt-000009-0f")]
    paths = [str(own.path), moved, str(other), f"{other}/../ckpt-000002-0b", *absent]
    append(data.root, [msgspec.structs.replace(own, event_id=path, path=path) for path in paths])
    done = back_up(data.root, tmp_path / "copy")
    assert (done.checkpoints, done.elsewhere, set(done.missing)) == (1, 2, set(absent))
    copies = tmp_path / "copy" / "checkpoints"
    assert [path.relative_to(copies) for path in copies.glob("*/*")] == [Path(_OTHER, "ckpt-000001-0a")]


def test_a_backup_replaces_nothing_and_needs_a_log(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(RunError, match="never replaces anything"):
        back_up(tmp_path, tmp_path / "there")
    with pytest.raises(EventLogError):
        back_up(tmp_path / "nothing", tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
