"""Our side: a run as ``unstable-stream train`` starts it, with the settings of ``work``.

The processors rate and shape, the archiver fills the archive, and all is in the log, as in any run. Only the
evaluation is left out, which the ancestor does not do here either.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.whole_run import work
from unstable_stream.events import GameOutcome, LearnerUpdate, Step
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import read_to_end, readable_event, readable_events
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.launch.launcher import launch


def settings(task: work.Task) -> dict[str, Any]:
    """Return the configuration (``Any``: its tables and values, as in a file)."""
    valid, invalid = work.INVALID_MOVE_PENALTY
    engine: dict[str, Any] = {
        "type": task.engine,
        "max_parallel_seq": work.MAX_PARALLEL_SEQ,
        "max_loras": work.MAX_LORAS,
        "max_model_len": work.CONTEXT_TOKENS,
        "num_threads": 1,
        "dtype": "float32",
    }
    if task.engine == "vllm":
        engine["kv_cache_gb"] = work.KV_CACHE_GB
    return {
        "name": "whole-run",
        "model": "tiny-player",
        "train_envs": [{"env_id": work.ENVIRONMENT, "num_players": 2, "template": work.TEMPLATE}],
        "sampling": {"max_tokens": work.MAX_TOKENS, "temperature": 1.0, "top_p": 1.0},
        "lora": {
            "lora_rank": work.LORA_RANK,
            "lora_alpha": work.LORA_ALPHA,
            "target_modules": list(work.PROJECTIONS),
        },
        "engine": engine,
        "collector": {"num_workers": work.GAMES_IN_FLIGHT, "num_eval_workers": 1},
        "evaluation": {"opponents": []},
        "model_pool": {"sample_mode": "mirror"},
        "rewards": {
            "final": [{"type": "RoleAdvantageByEnvFormatter"}],
            "step": [
                {"type": "RewardForFormat", "reward": work.FORMAT_REWARD},
                {"type": "PenaltyForInvalidMove", "reward": valid, "penalty": invalid},
            ],
            "sampling": [{"type": "NormalizeRewardsByEnv", "z_score": True}],
        },
        "buffer": {"max_buffer_size": work.BUFFER_STEPS},
        "learner": {
            "iterations": task.updates,
            "batch_size": work.BATCH_STEPS,
            "mini_batch_size": task.rows,
            "learning_rate": work.LEARNING_RATE,
            "grad_clip": work.GRAD_CLIP,
            "num_threads": 1,
            "dtype": "float32",
        },
    }


async def _run(task: work.Task, directory: Path) -> None:
    config = parse_config(settings(task))
    data = DataDir(directory)
    updates: list[int] = []

    async def watch(log: EventLog, *_: object) -> None:
        consumer = await log.consumer([GameOutcome.TOPIC])
        first: GameOutcome | None = None
        while first is None:
            events = readable_events(await consumer.poll(timeout_s=0.1))
            first = next((event for event in events if isinstance(event, GameOutcome)), None)
        work.tell(task.marks, "game", first.occurred_at_ms / 1000)
        await consumer.close()
        consumer = await log.consumer([LearnerUpdate.TOPIC])
        while True:
            for event in readable_events(await consumer.poll(timeout_s=0.1)):
                if isinstance(event, LearnerUpdate):
                    updates.append(event.occurred_at_ms)
                    at = event.occurred_at_ms / 1000
                    work.tell(task.marks, "update", at, steps=len(event.step_ids))

    await launch(config, data, watch=watch)
    work.tell(task.marks, "end")
    async with opened_log(config.log, data.log, synchronous=config.synchronous) as log:
        events = [readable_event(record) async for record in read_to_end(log, [Step.TOPIC])]
    for at in updates:
        played = sum(event is not None and event.occurred_at_ms <= at for event in events)
        work.tell(task.marks, "batch", at / 1000, played=played)


def main() -> None:
    """Play and train."""
    task = work.read_task()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        asyncio.run(_run(task, Path(directory)))


if __name__ == "__main__":
    main()
