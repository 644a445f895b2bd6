"""The whole loop in one process, without Ray: play, shape, train, play with what was learned, get better."""

import asyncio
import statistics
from pathlib import Path

import pytest

from tests.workers.local_actors import Handle
from unstable_stream.events import Event, GameOutcome
from unstable_stream.inference.transformers.engine import TransformersEngine
from unstable_stream.launch.ray_cluster import resolve_model
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.records import event_from_record
from unstable_stream.log.topics import load_topics
from unstable_stream.proofs.audit import audit_run
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.records import finish_run, read_to_end, start_run
from unstable_stream.streams.processors import run_processors
from unstable_stream.workers.collector import Collector
from unstable_stream.workers.learner import LearnerService
from unstable_stream.workers.rollout import RolloutWorker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RUN = "learns"
UPDATES = 8


def config() -> RunConfig:
    return parse_config(
        {
            "model": "tiny-player",
            "seed": 11,
            "train_envs": [{"env_id": "SimpleTak-v0-train", "template": "simpletak-board"}],
            "sampling": {"max_tokens": 4},
            "lora": {"lora_rank": 16, "lora_alpha": 32},
            "collector": {"num_workers": 64, "num_eval_workers": 64, "max_turns": 40},
            "model_pool": {"sample_mode": "fixed", "fixed": [{"name": "first-legal"}]},
            "evaluation": {
                "opponents": [{"name": "first-legal"}],
                "every": UPDATES,
                "max_eval_games_per_ckpt": 100,
            },
            "buffer": {"max_staleness": 4},
            "learner": {
                "iterations": UPDATES,
                "batch_size": 384,
                "mini_batch_size": 256,
                "optimizer_steps": 2,
                "learning_rate": 3e-3,
            },
        }
    )


async def test_the_reward_rises_against_a_player_that_can_be_beaten(tmp_path: Path) -> None:
    settings = config()
    data = DataDir(tmp_path)
    model = resolve_model(settings.model)
    async with LocalLog.open(data.log, synchronous="NORMAL") as log:
        await log.create_topics(list(load_topics().values()))
        await start_run(log, settings, RUN)
        engine = TransformersEngine(model, num_threads=1)
        worker = RolloutWorker(settings, RUN, str(tmp_path), model, engine)
        stop = asyncio.Event()
        processing = asyncio.ensure_future(run_processors(log, RUN, stop))
        learning = LearnerService(settings, RUN, data, model).train(log, stop)
        collecting = Collector(settings, RUN, [Handle(engine)], [Handle(worker)]).collect(log, stop)
        assert (await asyncio.gather(learning, collecting))[0] == UPDATES
        stop.set()
        await processing
        await engine.close()
        await finish_run(log, RUN, "completed", "")
        report = await audit_run(log, RUN)
        events = [event_from_record(record) async for record in read_to_end(log, (GameOutcome.TOPIC,))]

    assert report.problems == ()
    assert report.updates == UPDATES
    # About -0.3 before and +0.8 after; each mean of 100 games is off by 0.1 at most, two times of three.
    before, after = evaluation(events, 0), evaluation(events, UPDATES)
    assert after > before + 0.5


def evaluation(events: list[Event], version: int) -> float:
    """Mean reward of one checkpoint's 100 evaluation games."""
    rewards = []
    for outcome in events:
        if isinstance(outcome, GameOutcome) and outcome.split == "eval":
            ours = next(seat for seat in outcome.seats if seat.model_uid == outcome.evaluated_uid)
            if ours.policy_version == version:
                rewards.append(ours.reward)
    assert len(rewards) == 100
    return statistics.fmean(rewards)
