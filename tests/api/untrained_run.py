"""A run of the tiny player that has only its initial policy: enough to play against."""

import asyncio

from unstable_stream.api.place import Place
from unstable_stream.api.settings import make_config
from unstable_stream.api.topics import create_topics
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.recording import initial_checkpoint, start_run


def record_untrained_run(place: Place, run_id: str) -> None:
    """Record its start and its checkpoint on the log of a new place."""
    config = make_config(
        {"model": "tiny-player", "train_envs": ["SimpleTak-v0-train"], "learner.iterations": 1}
    )

    async def record() -> None:
        async with place.opened_log() as log:
            await start_run(log, config, run_id)
            await log.append([record_from_event(initial_checkpoint(config, run_id))])

    create_topics(place)
    asyncio.run(record())
