"""Removing runs as a user does it: what is refused, what goes, what stays, and how the space comes back."""

import os
import shutil
import time
from pathlib import Path

import msgspec
import pytest

import unstable_stream as us
from tests.archive.history import made_up_run
from tests.history.proofs.recorded_run import record_run
from tests.places import append, ask, on_log
from unstable_stream.api.archived import find_runs
from unstable_stream.api.dropping import drop_run
from unstable_stream.api.place import Place
from unstable_stream.api.removal import bytes_in, look_at_runs, remove_runs
from unstable_stream.api.serving import archive
from unstable_stream.api.starting import examples
from unstable_stream.archive import query
from unstable_stream.errors import RunError
from unstable_stream.events import Event, RunFinished, RunStarted
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.reading import events_to_end

pytestmark = pytest.mark.longer


def _begun(run_id: str, **changed: object) -> list[Event]:
    began, *rest = made_up_run(run_id, updates=1)
    assert isinstance(began, RunStarted)
    return [msgspec.structs.replace(began, **changed), *rest]


def _events_by_run(data: Path) -> dict[str, int]:
    async def read(log: LocalLog) -> dict[str, int]:
        found: dict[str, int] = {}
        async for _, event in events_to_end(log, list(await log.topics())):
            found[event.run_id] = found.get(event.run_id, 0) + 1
        return found

    return on_log(data, read)


def test_a_run_that_others_begin_from_or_play_is_refused_and_all_go_together(tmp_path: Path) -> None:
    place = Place.at(tmp_path)
    append(tmp_path, made_up_run("run-a"))
    append(tmp_path, _begun("run-fork", parent_run_id="run-a", parent_update=1))
    path = str(tmp_path / "checkpoints" / "run-a" / "ckpt-000001-0")
    fixed = [{"name": "old", "kind": "adapter", "path": path}]
    append(tmp_path, _begun("run-rival", config={"model_pool": {"fixed": fixed}}))
    append(tmp_path, _begun("run-other"))
    archive(place)
    refused = ask(tmp_path, "rm", "run-a", "--force")
    assert isinstance(refused.exception, RunError)
    assert "run-fork begins from run-a, run-rival plays run-a. Remove them too" in str(refused.exception)
    assert f"unstable-stream rm run-a run-fork run-rival --data {tmp_path}" in str(refused.exception)
    before = _events_by_run(tmp_path)
    told = ask(tmp_path, "rm", "run-a", "run-fork", "run-rival", "--dry-run")
    assert told.exit_code == 0, told.output
    assert _events_by_run(tmp_path) == before
    declined = ask(tmp_path, "rm", "run-a", "run-fork", "run-rival", answer="n\n")
    assert (declined.exit_code, _events_by_run(tmp_path)) == (1, before)
    done = ask(tmp_path, "rm", "run-a", "run-fork", "run-rival", answer="y\n")
    assert done.exit_code == 0, done.output
    assert "records of 3 runs; " in done.output
    left = _events_by_run(tmp_path)
    assert left["run-other"] == before["run-other"]
    assert all(left[run] == 2 for run in ("run-a", "run-fork", "run-rival"))  # how each began and ended
    rows = query(place.archive, "SELECT DISTINCT run_id FROM events").rows
    assert [row[0] for row in rows] == ["run-other"]
    assert ask(tmp_path, "rm", "run-other", "--force").exit_code == 0


def test_a_run_that_is_alive_is_refused_until_it_has_been_silent(tmp_path: Path) -> None:
    place = Place.at(tmp_path)
    whole = made_up_run()
    assert isinstance(whole[-1], RunFinished)
    now = whole[-1].occurred_at_ms
    append(tmp_path, whole[:-1])
    archive(place)
    (found,) = look_at_runs(place, ["run-a"])  # killed years ago
    assert found.run.records == len(whole) - 1
    late = msgspec.structs.replace(whole[1], event_id="late", occurred_at_ms=int(time.time() * 1000))
    assert late.occurred_at_ms > now
    append(tmp_path, [late])
    archive(place)
    # Also where it went on while the user was asked: nothing is lost.
    (tmp_path / "checkpoints" / "run-a").mkdir(parents=True)
    before = _events_by_run(tmp_path)
    with pytest.raises(RunError, match=r"run run-a has not ended.*within 10 minutes: stop it with Ctrl-C"):
        remove_runs(place, [found])
    assert ((tmp_path / "checkpoints" / "run-a").exists(), _events_by_run(tmp_path)) == (True, before)


def test_what_was_begun_is_ended_by_the_same_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place.at(tmp_path)
    append(tmp_path, [*made_up_run("run-a")[:-1], *made_up_run("run-b")])
    archive(place)

    async def join(log: LocalLog) -> None:
        for group in ("learner/run-a", "plugin/lengths/run-a", "plugin/lengths"):
            consumer = await log.consumer(["steps"], group)
            await consumer.poll(5, 0.1)
            await consumer.commit(consumer.positions())

    on_log(tmp_path, join)
    checkpoints = tmp_path / "checkpoints"
    (tmp_path / "elsewhere").mkdir()
    checkpoints.mkdir()
    (checkpoints / "run-a").symlink_to(tmp_path / "elsewhere")
    (checkpoints / "run-b").mkdir()
    drop_run(place, "run-a")  # as by a call that was killed then

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", refused)
        with pytest.raises(RunError, match=r"checkpoints/run-b cannot be deleted: Perm.* rm run-b --data"):
            remove_runs(place, look_at_runs(place, ["run-a", "run-b"]))
    done = ask(tmp_path, "rm", "run-a", "run-b", "--force")
    assert done.exit_code == 0, done.output
    assert list(checkpoints.iterdir()) == []
    assert (tmp_path / "elsewhere").is_dir()
    assert _events_by_run(tmp_path) == {"run-a": 1, "run-b": 2}
    assert [group for group in on_log(tmp_path, LocalLog.groups) if "/" in group] == ["plugin/lengths"]


def test_a_sweep_plays_a_removed_run_again(tmp_path: Path) -> None:
    def planned() -> list[str]:
        sweep = us.sweep(examples()["quickstart"], seeds=[0], data=tmp_path)
        return [state for _, state, _ in sweep.planned()]

    (config,) = us.sweep(examples()["quickstart"], seeds=[0], data=tmp_path)._cells.values()
    append(tmp_path, _begun("run-a", seed=0, config=config.model_dump(mode="json")))
    archive(Place.at(tmp_path))
    assert planned() == ["completed"]
    assert ask(tmp_path, "rm", "run-a", "--force").exit_code == 0
    assert planned() == ["to run"]
    assert us.list_runs(tmp_path) == []


def test_files_that_vanish_meanwhile_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").write_bytes(b"xx")
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda path: [*walk(path), (str(path), [], ["gone"])])
    assert bytes_in(tmp_path) == 2


def test_the_space_comes_back_and_handles_mean_the_runs_that_are_left(tmp_path: Path) -> None:
    place = Place.at(tmp_path)
    on_log(tmp_path, lambda log: record_run(log, "run-first", hosted=False))
    began, *rest, ended = made_up_run("run-second", updates=30)
    now_ms = int(time.time() * 1000)
    began, ended = (msgspec.structs.replace(each, occurred_at_ms=now_ms) for each in (began, ended))
    append(tmp_path, [began, *rest, ended])
    archive(place)
    for kind in ("checkpoints", "logs", "tracking", "what-if"):
        (tmp_path / kind / "run-second" / "one").mkdir(parents=True)
        (tmp_path / kind / "run-second" / "one" / "file").write_bytes(b"x" * 5000)
        (tmp_path / kind / "run-first").mkdir()
    (found,) = look_at_runs(place, ["latest"])
    assert (found.run.run_id, found.checkpoint_bytes, found.other_bytes) == ("run-second", 5000, 15_000)
    size = place.data.log.stat().st_size
    assert found.log_bytes is not None
    assert 0.1 * size < found.log_bytes < size
    done = remove_runs(place, [found])
    assert not done.log_in_use
    assert place.data.log.stat().st_size < size - 0.8 * found.log_bytes
    assert not list(tmp_path.glob("*/run-second"))
    assert len(list(tmp_path.glob("*/run-first"))) == 4
    # The log lists it still, and no handle means it.
    assert us.open_run("latest", data=tmp_path).id == us.open_run("1", data=tmp_path).id == "run-first"
    for handle in ("run-second", "2"):
        with pytest.raises(RunError, match=r"run-second was dropped|no run '2'"):
            us.open_run(handle, data=tmp_path)
    listed = ask(tmp_path, "runs", "--all", "--csv", "--log", "local").stdout.splitlines()
    assert [line.split(",")[3] for line in listed[1:]] == ["completed", "dropped"]
    run = us.open_run("run-first", data=tmp_path)
    assert run.verify(games=False).ok
    # A new run is recorded behind the gap, and an archive that is filled anew has these two.
    append(tmp_path, made_up_run("run-third"))
    assert ask(tmp_path, "archive", "--rebuild").exit_code == 0
    rows = query(place.archive, "SELECT DISTINCT run_id FROM events ORDER BY 1").rows
    assert [row[0] for row in rows] == ["run-first", "run-third"]
    assert find_runs(place.archive, ["run-third"]) == ["run-third"]
    assert query(place.archive, "SELECT count(*) FROM missing_records").rows == [(0,)]
