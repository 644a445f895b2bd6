"""Steps that are all too stale are dropped and recorded, and the run goes on."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.services.workers.test_learner_service import BATCH, RUN, append, begun, config, service, steps
from unstable_stream.events import LearnerUpdate, StepsDropped
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import events_to_end, readable_events
from unstable_stream.runs.config import RunConfig, parse_config


def strict() -> RunConfig:
    """Two updates; steps must be on-policy, and no game starts while 32 are pending."""
    tree = config(iterations=2).model_dump(mode="json", exclude_unset=True)
    return parse_config(
        {**tree, "buffer": {"max_staleness": 0}, "collector": {"max_pending_steps": 2 * BATCH}}
    )


async def dropped(log: EventLog) -> StepsDropped:
    """Wait for the drops."""
    consumer = await log.consumer([StepsDropped.TOPIC])
    async with asyncio.timeout(60):
        while True:
            for event in readable_events(await consumer.poll()):
                if isinstance(event, StepsDropped):
                    await consumer.close()
                    return event


@pytest.mark.parametrize("restarted", [False, True])
async def test_steps_that_are_all_too_stale_are_dropped_and_the_run_goes_on(
    tmp_path: Path, restarted: bool
) -> None:
    late = steps(3 * BATCH)  # of version 0: the first update trains 16, and 32 are left
    fresh = [msgspec.structs.replace(step, policy_version=1) for step in steps(BATCH, first_game=1000)]

    async with begun(tmp_path, late) as log:
        stop = asyncio.Event()
        training = asyncio.create_task(service(tmp_path, strict()).train(log, stop))
        waiting = asyncio.create_task(dropped(log))
        await asyncio.wait({training, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if training.done():
            waiting.cancel()
            training.result()
        drops = await waiting
        assert (drops.update, {drop.reason for drop in drops.dropped}) == (2, {"stale"})
        if restarted:
            stop.set()
            assert await training == 1
            training = asyncio.create_task(service(tmp_path, strict()).train(log, asyncio.Event()))
        await append(log, fresh)
        assert await training == 2
        found = [event async for _, event in events_to_end(log, (LearnerUpdate.TOPIC,), run_id=RUN)]
    updates = [event for event in found if isinstance(event, LearnerUpdate)]
    assert set(updates[1].step_ids) == {step.event_id for step in fresh}
    named = [*updates[0].step_ids, *(drop.step_id for drop in drops.dropped)]
    assert sorted(named) == sorted(step.event_id for step in late)
    assert sum(isinstance(event, StepsDropped) for event in found) == 1
    assert not any(update.dropped for update in updates)
