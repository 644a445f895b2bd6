"""The learner beside the model's work: CPU time of a step by part, from the log to the saved checkpoint.

``python -m benchmarks.learner_reading``

The learner's service trains on steps that lie in a local log, with the algorithm of ``benchmarks.ceiling``
that leaves the weights alone and the tiny player as its model, which is a row of its own. Each part's time is
that of the thread that does it; what is left of the process's time is the log's (its threads read and check)
and Python's own. In a run on Kafka its client takes the local log's place; that is not measured here.
"""

import asyncio
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model

from benchmarks.ceiling.stand_in import NO_UPDATE
from benchmarks.harness import machine, parser
from unstable_stream.algorithms.buffer import StepBuffer
from unstable_stream.algorithms.learners.standard_learner import StandardLearner
from unstable_stream.events import (
    Step,
    checkpoint_uid,
    game_id,
    pack_floats,
    pack_tokens,
    step_id,
    trajectory_id,
)
from unstable_stream.inference.base_model import resolve_model
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.workers import learner as service

_RUN = "bench"
_TURNS = 5


def made_up_steps(count: int, prompt: int, completion: int) -> list[Step]:
    """Return steps of games with one trained seat and five turns, with random tokens of these numbers."""
    rng = np.random.default_rng(0)
    steps = []
    for number in range(count):
        game = game_id(_RUN, "train", number // _TURNS)
        trajectory = trajectory_id(game, 0)
        reward = float(rng.uniform(-1, 1))
        steps.append(
            Step(
                event_id=step_id(trajectory, number % _TURNS),
                run_id=_RUN,
                occurred_at_ms=number,
                trajectory_id=trajectory,
                game_id=game,
                game_index=number // _TURNS,
                env_id="TicTacToe-v0-train",
                seat=0,
                turn_index=number % _TURNS,
                num_turns=_TURNS,
                model_uid=checkpoint_uid(0),
                policy_version=0,
                prompt_token_ids=pack_tokens(rng.integers(2, 30, prompt).tolist()),
                completion_token_ids=pack_tokens(rng.integers(2, 30, completion).tolist()),
                logprobs=pack_floats([-1.25] * completion),
                raw_reward=reward,
                final_reward=reward,
                reward=reward,
            )
        )
    return steps


class Parts:
    """Adds up the time that a thread spends in functions, without what they call of other parts."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner = 0.0

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a clock around it."""

        def timed(*arguments: Any, **named: Any) -> Any:  # what it wraps takes anything
            outer, self._inner, began = self._inner, 0.0, time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                spent = time.thread_time() - began
                self.seconds[name] += spent - self._inner
                self._inner = outer + spent

        return timed


def measure(updates: int, batch: int, prompt: int, completion: int) -> dict[str, float]:
    """Return CPU seconds of a step by part."""
    config = parse_config(
        {
            "model": "tiny-player",
            "train_envs": [{"env_id": "TicTacToe-v0-train"}],
            "sampling": {"max_tokens": 4},
            "algorithm": NO_UPDATE,
            "learner": {
                "iterations": updates,
                "batch_size": batch,
                "mini_batch_size": batch,
                "mini_batch_tokens": 16_384,
                "num_threads": 1,
            },
        }
    )
    parts = Parts()

    async def train(directory: Path) -> float:
        with_steps = LocalLog.open(directory / "log.sqlite", synchronous="NORMAL")
        async with with_steps as log:
            await log.create_topics(list(load_topics().values()))
            steps = made_up_steps(updates * batch, prompt, completion)
            await log.append([record_from_event(step) for step in steps])
            made = service.LearnerService(
                config, _RUN, DataDir(directory), resolve_model("tiny-player"), has_games=False
            )
            began = time.process_time()
            await made.train(log, asyncio.Event())
            return time.process_time() - began

    changed: list[tuple[Any, str, str]] = [
        (service, "readable_event", "decode"),
        (service, "marks_of", "marks"),
        (StepBuffer, "extend", "buffer"),
        (service, "decide_update", "draw and decide"),
        (StandardLearner, "update", "batches"),
        (Qwen3Model, "forward", "the model's work"),
        (StandardLearner, "save", "save"),
        (StandardLearner, "probe", "proof of the checkpoint"),
        (service, "write_progress", "save"),
        (service, "record_from_event", "write the update"),
    ]
    for owner, attribute, name in changed:
        setattr(owner, attribute, parts.of(name, getattr(owner, attribute)))
    with tempfile.TemporaryDirectory() as directory:
        whole = asyncio.run(train(Path(directory)))
    seconds = {**parts.seconds, "log, and all else": whole - sum(parts.seconds.values())}
    return {name: spent / updates / batch for name, spent in seconds.items()}


def main() -> None:
    """Measure, and print a table."""
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.add_argument("--updates", type=int, default=3)
    arguments.add_argument("--batch", type=int, default=2048, help="steps of an update")
    arguments.add_argument("--prompt", type=int, default=377, help="tokens of a turn")
    arguments.add_argument("--completion", type=int, default=120, help="tokens of a turn")
    options = arguments.parse_args()
    found = measure(options.updates, options.batch, options.prompt, options.completion)
    table = Table(title=f"{options.prompt} + {options.completion} tokens a step", title_justify="left")
    table.add_column("part", min_width=24)
    table.add_column("CPU µs a step", justify="right")
    for name, spent in sorted(found.items(), key=lambda part: -part[1]):
        table.add_row(name, f"{spent * 1e6:,.0f}")
    table.add_row("together", f"{sum(found.values()) * 1e6:,.0f}")
    Console(width=None if Console().is_terminal else 120).print(table)
    if options.json is not None:
        content = {"title": "the learner's reading", "machine": machine(), "seconds_per_step": found}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
