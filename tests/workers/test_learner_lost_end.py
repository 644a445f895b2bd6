"""A learner recognises by content that its log has lost steps it had read, and goes on with what there is."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.log.lost_end import lose_end
from tests.workers.test_learner_service import BATCH, config, new_log, published, service, steps
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics


@pytest.mark.parametrize("lost", [4, 30])
@pytest.mark.parametrize("instead", [0, 12, 80])
async def test_steps_that_took_the_place_of_lost_ones_are_trained_and_the_place_is_named(
    tmp_path: Path, lost: int, instead: int
) -> None:
    async with new_log(tmp_path) as log:
        await log.create_topics(list(load_topics().values()))
        await log.append([record_from_event(step) for step in steps()])
        await service(tmp_path, config(iterations=2)).train(log, asyncio.Event())
        ends = await log.end_offsets("steps")
        at = max(ends, key=lambda each: ends[each])
    lose_end(tmp_path / "log.sqlite", at, ends[at] - lost)
    async with new_log(tmp_path) as log:
        await log.append([record_from_event(step) for step in steps(instead, first_game=100)])
        # Enough to go on with, whatever was lost.
        with capture_logs() as told:
            learner = asyncio.create_task(service(tmp_path, config()).train(log, asyncio.Event()))
            await log.append([record_from_event(step) for step in steps(3 * BATCH, first_game=200)])
            assert await learner == 4
        (named,) = [line["lost"] for line in told if "lost" in line]
        assert f"{at}@{ends[at] - 1}" in named
        there = {record.headers["ce_id"].decode() async for record in read_to_end(log, ("steps",))}
        updates = (await published(log))[0]
    assert [update.update for update in updates] == [1, 2, 3, 4]
    trained = [name for update in updates for name in update.step_ids]
    assert len(trained) == len(set(trained))
    assert {name for update in updates[2:] for name in update.step_ids} <= there
