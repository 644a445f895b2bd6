"""Services of a run whose events were deleted say which offsets are gone, and touch nothing."""

import asyncio
from pathlib import Path

import pytest

from tests.log.harness import topics_of_one_partition
from tests.services.workers.pretend_engine import PretendEngine
from tests.services.workers.test_learner_service import append, new_log, published, service, steps
from tests.services.workers.test_learner_service import config as learner_config
from tests.services.workers.test_rollout import checkpoint, collect, config, publish, started, update, worker
from unstable_stream.errors import ServiceError
from unstable_stream.events import GameOutcome
from unstable_stream.runs.config import parse_config


async def test_a_learner_whose_checkpoints_were_deleted(tmp_path: Path) -> None:
    """It must not take the directories of published checkpoints for leftovers, nor begin anew."""
    async with new_log(tmp_path) as log:
        await log.create_topics(topics_of_one_partition())
        await append(log, steps())
        assert await service(tmp_path, learner_config(iterations=2)).train(log, asyncio.Event()) == 2
        directories = sorted(tmp_path.glob("checkpoints/*/ckpt-*"))
        for topic in ("checkpoints", "learner-updates"):
            await log.delete_before(await log.end_offsets(topic))
        learner = service(tmp_path, learner_config(iterations=3))
        with pytest.raises(ServiceError, match=r"checkpoints\[0\]: offsets 0 to 2 are gone"):
            await learner.train(log, asyncio.Event())
        assert await published(log) == ([], [])
        learner.close()
        assert set(directories) <= set(tmp_path.glob("checkpoints/*/ckpt-*"))


async def test_a_collector_whose_outcomes_were_deleted(tmp_path: Path) -> None:
    """It must not take finished games for unfinished ones."""
    async with new_log(tmp_path) as log:
        await log.create_topics(topics_of_one_partition())
        settings = parse_config(config().model_dump(mode="json"), ["evaluation.opponents=[]"])
        games = [started(index) for index in range(3)]
        await publish(log, checkpoint(0), *games)
        assert await worker(log, PretendEngine()).play(games, {}) == 3
        last = settings.learner.iterations
        await publish(log, *(checkpoint(n) for n in range(1, last + 1)), *map(update, range(1, last + 1)))
        await log.delete_before(await log.end_offsets(GameOutcome.TOPIC))
        engine = PretendEngine()
        with pytest.raises(ServiceError, match=r"game-outcomes\[0\]: offsets 0 to 2 are gone"):
            await collect(log, engine, settings)
        assert engine.asked == 0
