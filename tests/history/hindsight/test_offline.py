"""A learner trains on replayed steps alone, from log and archive; the run adds up and names its origin."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.history.proofs.recorded_run import events_of
from tests.log.harness import topics_of_one_partition
from tests.services.workers.test_learner_service import BATCH, config, steps
from unstable_stream.errors import ConfigError, LearnerError, RunError
from unstable_stream.events import Checkpoint, LearnerUpdate, RunFinished, RunStarted, Step, event_id, step_id
from unstable_stream.history.hindsight.offline import (
    OfflineProgress,
    find_recorded_run,
    load_offline_config,
    train_offline,
)
from unstable_stream.history.proofs.recompute import replayed_step
from unstable_stream.history.proofs.verify import audit_run, verify_run
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.recording import start_run
from unstable_stream.services.launch.stopping import Stop
from unstable_stream.services.streams.ordered_history import ArchiveHistory, LogHistory, RecordFilter, Slice
from unstable_stream.services.workers.archiver import run_archiver

SOURCE = "learner-test"
WANTED = Slice(filter=RecordFilter(SOURCE))


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as opened:
        await opened.create_topics(topics_of_one_partition())  # a log of an earlier version serves as well
        await start_run(opened, config(), SOURCE)
        await opened.append([record_from_event(step) for step in steps()])
        yield opened


async def outcomes(log: LocalLog) -> list[tuple[str, str]]:
    return [(event.outcome, event.reason) for event in await events_of(log, None, RunFinished)]


@pytest.mark.slow
async def test_a_learner_trains_on_replayed_steps_alone(log: LocalLog, tmp_path: Path) -> None:
    progress = OfflineProgress()
    settings = config(iterations=3)
    run_id = await train_offline(LogHistory(log), WANTED, settings, DataDir(tmp_path), log, progress=progress)
    updates = await events_of(log, run_id, LearnerUpdate)
    assert [update.update for update in updates] == [1, 2, 3]
    assert [len(update.step_ids) for update in updates] == [BATCH] * 3
    used = [name for update in updates for name in update.step_ids]
    origin = {event_id(run_id, "replayed-step", 1, step.event_id): step for step in steps()}
    assert len(set(used)) == len(used)
    assert origin.keys() >= set(used)
    # The batches come in the order of the old run: the last step used is far from the first one published.
    places = {name: place for place, name in enumerate(origin)}
    assert max(places[name] for name in updates[0].step_ids) < settings.max_pending_steps
    published = {step.event_id: step for step in await events_of(log, run_id, Step)}
    for name, step in published.items():
        assert step == replayed_step(origin[name], run_id, 1)
        uid = step_id(step.trajectory_id, step.turn_index)
        assert uid == origin[name].event_id, "the origin can be found"
    assert len({checkpoint.sha256 for checkpoint in await events_of(log, run_id, Checkpoint)}) == 4
    (started,) = await events_of(log, run_id, RunStarted)
    (finished,) = await events_of(log, run_id, RunFinished)
    assert (started.parent_run_id, started.parent_update, started.replays) == (SOURCE, None, True)
    assert (finished.outcome, finished.updates) == ("completed", 3)
    assert progress.updates == 3
    assert progress.published == len(published)
    report = await audit_run(log, run_id)
    assert report.problems == ()
    assert (report.steps.trained, report.games["train"].started) == (3 * BATCH, 0)
    verified = await verify_run(log, run_id, games=False)
    assert verified.ok
    compared = {check.name: check.compared for check in verified.checks}
    assert (compared["steps"], compared["updates"]) == (len(published), 3)
    forged = replayed_step(steps()[0], run_id, 1)
    await log.append([record_from_event(msgspec.structs.replace(forged, event_id="made-up"))])
    assert not (await verify_run(log, run_id, games=False)).ok


@pytest.mark.slow
async def test_an_archive_alone_is_enough_and_epochs_are_told_apart(log: LocalLog, tmp_path: Path) -> None:
    stop = asyncio.Event()
    stop.set()
    await run_archiver(log, tmp_path / "archive.duckdb", stop=stop)
    history = ArchiveHistory(tmp_path / "archive.duckdb")
    recorded = await find_recorded_run(history, "learner")
    assert recorded.run_id == SOURCE
    changes = tmp_path / "offline.toml"
    # 80 steps make five updates of 16; two epochs make ten, so the twelve asked for are not reached.
    changes.write_text('name = "again"\n[learner]\niterations = 12\noptimizer_steps = 1\n')
    settings = load_offline_config(recorded.settings, changes)
    async with LocalLog.open(tmp_path / "new" / "log.sqlite", synchronous="NORMAL") as fresh:
        run_id = await train_offline(history, WANTED, settings, DataDir(tmp_path / "new"), fresh, epochs=2)
        updates = await events_of(fresh, run_id, LearnerUpdate)
        used = {name for update in updates for name in update.step_ids}
        dropped = {drop.step_id for update in updates for drop in update.dropped}
        everything = {
            event_id(run_id, "replayed-step", epoch, step.event_id) for epoch in (1, 2) for step in steps()
        }
        assert used | dropped == everything
        assert dropped == set(), "no more wait than the buffer holds"
        assert len(updates) == 10
        reason = f"10 updates on steps of {SOURCE}: there were no more steps"
        assert await outcomes(fresh) == [("stopped", reason)]
        assert (await audit_run(fresh, run_id)).ok
        verified = await verify_run(fresh, run_id, games=False)
        assert verified.ok
        assert verified.checks[0].skipped == f"the steps of {SOURCE} are not on this log"


@pytest.mark.parametrize(
    "broken",
    [
        "unstable_stream.services.workers.learner.LearnerService",
        # The learner would wait for steps.
        pytest.param("unstable_stream.history.hindsight.offline._publish", marks=pytest.mark.slow),
    ],
)
async def test_what_fails_ends_the_run(
    log: LocalLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*arguments: Any, **named: Any) -> None:
        raise LearnerError("the disk is full")

    monkeypatch.setattr(broken, fail)
    with pytest.raises(LearnerError, match="the disk is full"):
        await train_offline(LogHistory(log), WANTED, config(), DataDir(tmp_path), log)
    assert await outcomes(log) == [("failed", "LearnerError: the disk is full")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_the_learner_loads_ends_it_in_order(
    log: LocalLog, tmp_path: Path, number: signal.Signals
) -> None:
    stop = Stop()
    data, ask = DataDir(tmp_path), lambda run_id: stop.ask(number.name, number)
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        await train_offline(LogHistory(log), WANTED, config(), data, log, stop=stop, on_start=ask)
    assert await outcomes(log) == [("stopped", f"0 updates on steps of {SOURCE}: {number.name}")]


async def test_without_steps_no_run_is_begun(log: LocalLog, tmp_path: Path) -> None:
    wanted = Slice(filter=RecordFilter("somebody-else"))
    with pytest.raises(RunError, match=r"no such steps of run somebody-else.*--source archive"):
        await train_offline(LogHistory(log), wanted, config(), DataDir(tmp_path), log)
    assert await outcomes(log) == []


def recorded() -> dict[str, Any]:
    tree: dict[str, Any] = config().model_dump(mode="json")
    tree["buffer"]["max_staleness"] = 2
    return tree


def test_a_file_says_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "offline.toml"
    path.write_text("[learner]\nlearning_rate = 0.5\n[lora]\nlora_rank = 8\n")
    settings = load_offline_config(recorded(), path, ["learner.iterations=7"])
    learner = settings.learner
    assert (learner.learning_rate, learner.iterations, learner.batch_size) == (0.5, 7, BATCH)
    assert settings.lora.lora_rank == 8
    assert settings.buffer.max_staleness is None


@pytest.mark.parametrize(
    ("text", "top_p", "says"),
    [
        ("[buffer]\nmax_staleness = 3\n", 1.0, r"max_staleness = 3, but the policy versions of replayed"),
        ("[learner]\nsteps = 3\n", 1.0, r"unknown key 'learner.steps'"),
        ("[learner", 1.0, r"not valid TOML"),
        # Steps sampled from a part of the distribution, whatever is sampled from now on.
        ("[sampling]\ntop_p = 1.0\n", 0.9, r"sampled with sampling\.top_p = 0\.9"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, top_p: float, says: str) -> None:
    path = tmp_path / "offline.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_offline_config(recorded() | {"sampling": {"top_p": top_p}}, path)
    with pytest.raises(ConfigError, match="cannot read"):
        load_offline_config(recorded(), tmp_path / "nowhere.toml")
