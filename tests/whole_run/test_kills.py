"""kill -9 of one of several learners: the run ends with the weights of learners that nobody killed."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.processes import still_runs
from tests.whole_run.processes import LaunchedRun
from unstable_stream.algorithms.learners.checkpoint import load_checkpoint
from unstable_stream.events import Checkpoint, Event, LearnerUpdate, RunFinished, RunStarted
from unstable_stream.inference.base_model import resolve_model
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.records import event_from_record, record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.placement import Share
from unstable_stream.services.workers.learner import LearnerService

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.mark.long
async def test_a_run_outlives_the_death_of_one_of_its_learners(tmp_path: Path) -> None:
    settings = ["learner.num_learners=2", "learner.iterations=6", "learner.save_every=2"]
    async with LaunchedRun.train(tmp_path / "run", *settings, "learner.dtype=float32") as run:
        await run.until("an update after the first save", lambda seen: len(seen.of(LearnerUpdate)) > 2)
        killed = await run.kill("learner_core import serve")
        await run.until("its end", lambda _: not still_runs(killed))
        assert (await run.find("learner_core import serve")).pid != killed
        assert await run.end() == 0, run.told()
        assert run.left_behind() == []
        (end,) = run.history.of(RunFinished)
        assert (end.outcome, end.updates) == ("completed", 6)
        updates = run.history.of(LearnerUpdate)
        assert [update.update for update in updates] == [1, 2, 3, 4, 5, 6]
        trained = [step for update in updates for step in update.step_ids]
        assert len(trained) == len(set(trained)) == 6 * 96
        await run.prove(end.run_id)
        events = run.history.events
    last = run.history.of(Checkpoint)[-1]
    pair = await undisturbed(tmp_path / "pair", events, num_learners=2)
    assert pair.sha256 == last.sha256
    alone = await undisturbed(tmp_path / "alone", events, num_learners=1)
    weights = [load_checkpoint(Path(str(each.path))).weights for each in (alone, last)]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=2e-4)


async def undisturbed(directory: Path, events: Sequence[Event], *, num_learners: int) -> Checkpoint:
    """Return what learners that nobody kills make of the batches of a run."""
    (start,) = (event for event in events if isinstance(event, RunStarted))
    config = parse_config(start.config)
    learner = config.learner.model_copy(update={"num_learners": num_learners})
    config = config.model_copy(update={"learner": learner})
    async with LocalLog.open(directory / "log.sqlite", synchronous="NORMAL") as log:
        await log.create_topics(list(load_topics().values()))
        # Without a checkpoint, the service trains every recorded batch again, and publishes what it then has.
        await log.append([record_from_event(event) for event in events if not isinstance(event, Checkpoint)])
        service = LearnerService(
            config, start.run_id, DataDir(directory), resolve_model(config.model), Share("learner")
        )
        try:
            assert await service.train(log, asyncio.Event()) == config.learner.iterations
        finally:
            service.close()
        made = [event_from_record(record) async for record in read_to_end(log, (Checkpoint.TOPIC,))]
    last = made[-1]
    assert isinstance(last, Checkpoint)
    assert last.iteration == config.learner.iterations
    return last
