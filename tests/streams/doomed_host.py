"""A process that hosts both processors and kills itself at a commit step: ``LOG STEP OCCURRENCE``."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.model_pool.outcomes import RUN
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import TopicPartition
from unstable_stream.streams.host import run_processor
from unstable_stream.streams.partition import Hosting, Processor
from unstable_stream.streams.processors import rating_processor, reward_processor

BATCH = 7


def make_rewards() -> Processor:
    return reward_processor(
        RUN, [{"type": "RoleAdvantageFormatter", "tau": 0.3}], [{"type": "RewardForFormat", "reward": 0.5}]
    )


def make_ratings() -> Processor:
    return rating_processor(RUN)


async def host_both(
    path: Path, on_step: Callable[[str, TopicPartition], None] = lambda step, at: None
) -> None:
    """Host both until their topics are drained."""
    stop = asyncio.Event()
    stop.set()
    async with LocalLog.open(path) as log:
        await asyncio.gather(
            *(
                run_processor(Hosting(log, make, run_id=RUN, on_step=on_step), stop=stop, max_records=BATCH)
                for make in (make_rewards, make_ratings)
            )
        )


def main() -> None:
    path, fatal_step, occurrence = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    reached = Counter[str]()

    def die(step: str, at: TopicPartition) -> None:
        reached[step] += 1
        if step == fatal_step and reached[step] == occurrence:
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(host_both(path, die))


if __name__ == "__main__":
    main()
