"""A learner that starts again behind another producer's open transaction waits for what it had published."""

import asyncio
from pathlib import Path

from tests.services.workers.test_learner_service import BATCH, append, config, service, steps
from tests.simulation.log import SimulatedLog, Store
from unstable_stream.events import Checkpoint, LearnerUpdate
from unstable_stream.log.reading import events_to_end
from unstable_stream.log.topics import load_topics


async def test_what_is_acknowledged_and_cannot_be_read_yet_is_not_published_again(tmp_path: Path) -> None:
    store = Store(tmp_path, transaction_markers=True)
    log = SimulatedLog(store)
    await log.create_topics(list(load_topics().values()))
    await append(log, steps(3 * BATCH))
    held = [at for topic in (Checkpoint.TOPIC, LearnerUpdate.TOPIC) for at in await log.end_offsets(topic)]
    for at in held:
        await store.hold_back(at)

    assert await service(tmp_path, config(iterations=1)).train(log, asyncio.Event()) == 1
    restarted = service(tmp_path, config(iterations=1))
    for at in held:
        asyncio.get_running_loop().call_later(0.3, store.let_go, at)
    assert await restarted.train(SimulatedLog(store), asyncio.Event()) == 1
    topics = (Checkpoint.TOPIC, LearnerUpdate.TOPIC)
    published = [event.event_id async for _, event in events_to_end(log, topics)]
    assert len(published) == len(set(published)) == 3, "the initial policy, the update and its checkpoint"
    await store.local.close()
