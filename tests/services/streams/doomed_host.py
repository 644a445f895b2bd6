"""Both processors of a run, hosted to the end of the log, or killed at a call to it."""

import asyncio
from pathlib import Path

from tests.model_pool.outcomes import RUN
from tests.services.streams.hosted_games import AnyProcessor, drain
from tests.services.streams.tapped_log import Told, at_call, kill_this_process, tapped
from unstable_stream.log.local.log import LocalLog
from unstable_stream.services.streams.processor import ProcessorSpec
from unstable_stream.services.streams.processors import rating_processor, reward_processor
from unstable_stream.services.streams.snapshots import SnapshotPace

PACE = SnapshotPace(events=4, times_its_size=0)


def make_rewards() -> AnyProcessor:
    return reward_processor(
        RUN, [{"type": "RoleAdvantageFormatter", "tau": 0.3}], [{"type": "RewardForFormat", "reward": 0.5}]
    )


def make_ratings() -> AnyProcessor:
    return rating_processor(RUN)


REWARDS = ProcessorSpec("reward-processor", ("trajectories",), lambda run_id, config: make_rewards())
RATINGS = ProcessorSpec("rating-processor", ("game-outcomes",), lambda run_id, config: make_ratings())


async def host_both(path: Path, told: Told = lambda call, about: None) -> None:
    """Host both until their topics are drained."""
    async with LocalLog.open(path) as log:
        await drain(tapped(log, told), REWARDS, RATINGS, pace=PACE, max_records=7)


def die_at(path: Path, fatal: str, occurrence: int) -> None:
    """Host both, and die at a call to the log."""
    asyncio.run(host_both(path, at_call(fatal, occurrence, kill_this_process)))
