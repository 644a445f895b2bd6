"""Restart of the learner and of a plug-in's host: time to the first new event, by length of their run.

Run ``python -m benchmarks.service_restart``. A run of so many games, of one step each, is trained on, and a
plug-in with a state counts it. Then each service is started in a fresh process that finds the steps of one
more update, and the games of one more metric, behind the last ones: as if it had been killed just before it
published them. The time is that until they are in the log. Imports and loading the model are left out; the
update itself is not, and is the same at each size. The memory is the most that the process had.
"""

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import machine, parser
from unstable_stream import Context, consumer
from unstable_stream.events import (
    GameOutcome,
    LearnerUpdate,
    Metrics,
    SeatResult,
    Step,
    checkpoint_uid,
    event_id,
    game_id,
    pack_floats,
    pack_tokens,
    step_id,
    trajectory_id,
)
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Record
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.recording import start_run
from unstable_stream.services.streams.plugins.host import run_plugin

_RUN = "run-restarted"
_ENV = "TicTacToe-v0-train"
_BATCH = 2000
"""Games of an update, and of a metric."""
_DEADLINE_S = 6 * 3600.0


def _config(updates: int) -> RunConfig:
    return parse_config(
        {
            "model": "tiny-player",
            "train_envs": [{"env_id": _ENV}],
            "lora": {"lora_rank": 4, "lora_alpha": 8},
            "learner": {"iterations": updates, "batch_size": _BATCH, "mini_batch_size": 500},
            "buffer": {"max_buffer_size": 10 * _BATCH},
        }
    )


@consumer(state=dict)
def counted(event: GameOutcome, context: Context) -> None:
    """Count games."""
    games = context.state["games"] = context.state.get("games", 0) + 1
    if games % _BATCH == 0:
        context.emit("games", games)


def _games(first: int, count: int) -> Iterator[Record]:
    """Yield a step and the outcome of each game."""
    for index in range(first, first + count):
        game = game_id(_RUN, "train", index)
        trajectory = trajectory_id(game, 0)
        reward = float(index % 3 - 1)
        step = Step(
            event_id=step_id(trajectory, 0),
            run_id=_RUN,
            occurred_at_ms=index,
            trajectory_id=trajectory,
            game_id=game,
            game_index=index,
            env_id=_ENV,
            seat=0,
            turn_index=0,
            num_turns=1,
            model_uid=checkpoint_uid(0),
            policy_version=0,
            prompt_token_ids=pack_tokens([2, 3, 4, 5]),
            completion_token_ids=pack_tokens([6 + index % 9]),
            logprobs=pack_floats([-2.0]),
            raw_reward=reward,
            final_reward=reward,
            reward=reward,
        )
        outcome = GameOutcome(
            event_id=event_id(_RUN, "game-outcome", game),
            run_id=_RUN,
            occurred_at_ms=index,
            game_id=game,
            game_index=index,
            split="train",
            env_id=_ENV,
            seed=index,
            seats=(
                SeatResult(
                    seat=0,
                    model_uid=checkpoint_uid(0),
                    kind="checkpoint",
                    reward=reward,
                    rank=0,
                    turns=1,
                    trained=True,
                ),
            ),
            reason="draw",
        )
        yield from map(record_from_event, (step, outcome))


async def _append(log: EventLog, first: int, count: int) -> None:
    records = _games(first, count)
    while batch := [record for _, record in zip(range(_BATCH), records, strict=False)]:
        await log.append(batch)


async def _prepare(data: DataDir) -> None:
    async with LocalLog.open(data.log, synchronous="NORMAL") as log:
        await log.create_topics(list(load_topics().values()))
        await start_run(log, _config(1), _RUN)


async def _serve(data: DataDir, service: str, first: int, count: int, wanted: int) -> float:
    """Append games, and run a service until update or metric number ``wanted`` is there; return seconds.

    As in a run, no more games wait than for two updates.
    """
    stop = asyncio.Event()
    async with LocalLog.open(data.log, synchronous="NORMAL") as log:
        there = min(count, 2 * _BATCH)
        await _append(log, first, there)
        topic = LearnerUpdate.TOPIC if service == "learner" else Metrics.TOPIC
        reader = await log.consumer([topic], start="end")
        serving: asyncio.Future[Any]
        if service == "learner":
            # Here, so that the memory of a plug-in's host is without PyTorch.
            from unstable_stream.inference.base_model import resolve_model
            from unstable_stream.services.workers.learner import LearnerService

            learner = LearnerService(_config(wanted), _RUN, data, resolve_model("tiny-player"))
            began = time.perf_counter()
            serving = asyncio.ensure_future(learner.train(log, stop))
        else:
            began = time.perf_counter()
            serving = asyncio.ensure_future(run_plugin(log, counted, data, stop=stop, run_id=_RUN))
        seen = 0
        async with asyncio.timeout(_DEADLINE_S):
            while seen < count // _BATCH:
                seen += len(await reader.poll(timeout_s=1.0))
                if there < min(count, (seen + 2) * _BATCH):
                    await _append(log, first + there, _BATCH)
                    there += _BATCH
                if serving.done():
                    serving.result()
        seconds = time.perf_counter() - began
        stop.set()
        await serving
    return seconds


def _child(data: DataDir, service: str, first: int, count: int) -> tuple[float, float]:
    """Run a service in a process of its own; return seconds and megabytes."""
    wanted = (first + count) // _BATCH
    command = [sys.executable, "-m", "benchmarks.service_restart", "--child", str(data.root), service]
    done = subprocess.run(
        [*command, str(first), str(count), str(wanted)], check=True, stdout=subprocess.PIPE, text=True
    )
    seconds, kilobytes = done.stdout.split()[-2:]
    return float(seconds), float(kilobytes) / 1024


def main() -> None:
    """Measure and report."""
    if sys.argv[1:2] == ["--child"]:
        root, service, first, count, wanted = sys.argv[2:]
        seconds = asyncio.run(_serve(DataDir(Path(root)), service, int(first), int(count), int(wanted)))
        print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return
    arguments: argparse.ArgumentParser = parser(str(__doc__).splitlines()[0])
    arguments.set_defaults(rounds=3)
    arguments.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    arguments.add_argument("--services", nargs="+", default=["learner", "plug-in"])
    options = arguments.parse_args()
    table = Table(title="Restart of a service", title_justify="left")
    for heading in ("service", "games before", "first new event, s", "MB"):
        table.add_column(heading, justify="right")
    results: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for service in options.services:
        results[service] = {}
        with tempfile.TemporaryDirectory() as directory:
            data = DataDir(Path(directory))
            asyncio.run(_prepare(data))
            there = 0
            for size in sorted(options.sizes):
                count = (size - there) // _BATCH * _BATCH
                _child(data, service, there, count)
                there += count
                found = results[service][size] = []
                for _ in range(options.rounds):
                    found.append(_child(data, service, there, _BATCH))
                    there += _BATCH
                seconds, megabytes = (statistics.median(each) for each in zip(*found, strict=True))
                table.add_row(service, f"{size:,}", f"{seconds:.2f}", f"{megabytes:.0f}")
    Console(width=None if Console().is_terminal else 120).print(table)
    print(json.dumps(results))
    if options.json is not None:
        content = {"title": "service_restart", "machine": machine(), "seconds_and_mb": results}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
