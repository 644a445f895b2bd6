"""How much of a run the processes around the GPUs can carry, and what each costs.

``python -m benchmarks.ceiling`` plays a run on Ray and Kafka (three brokers on loopback, each with a replica
of everything; Java and Maven needed) in which all is real but the work of the model: the engine is
:class:`~benchmarks.ceiling.stand_in.StandIn`, which answers with as many tokens, and after as long, as a
model would, and the learner takes its batches and leaves the weights alone. Between two updates far apart it
takes the CPU time of every process. A process that does one thing at a time carries, on one core, as many
turns as its CPU time for one goes into a second: the process with the least saturates first. Brokers use many
cores; their cost is that of all three.

Two shapes are played: Kuhn poker with a token a turn and trajectories of about 1 KB, and a negotiation of a
language model that writes ``--tokens`` tokens a turn. Lengths spread around the mean as those of language
models do, at 50 tokens a second each. Latencies are divided by ``--faster``: what a turn costs does not
depend on them, and this machine shall not wait for GPUs that it has not.

Counting begins after ``--after`` updates: the first games begin together and end together, and what they
leave is worked off in the updates after. The learner's cost is divided by the steps that it trained on.
"""

import argparse
import asyncio
import json
import math
import os
import secrets
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import transformers
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.between_updates import BetweenUpdates
from benchmarks.ceiling.stand_in import ENGINE, NO_UPDATE
from benchmarks.harness import duckdb_file, kafka_broker
from benchmarks.step_cost import MARK, by_process
from infra.kafka.brokers import why_unavailable
from unstable_stream.events import GameOutcome, Trajectory
from unstable_stream.events.arrays import packed_length
from unstable_stream.log.open import opened_log
from unstable_stream.log.reading import read_to_end, readable_events
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.launch.launcher import launch

_TOKENS_PER_S: Final = 50.0
"""Of one request: 5,000 tokens a second of a GPU that serves a hundred."""
_SPREAD: Final = 0.5
"""Standard deviation of the logarithm of a length."""
_ANSWERS: Final = 499
_PIECES: Final = 8000
_BROKERS: Final = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """A run to play."""

    environment: Mapping[str, Any]
    batch_size: int
    max_tokens: int
    model: str | None = None
    """``None``: two small layers with a tokenizer of 8,000 pieces."""
    moves: tuple[int, ...] = ()
    """Tokens of moves that are always legal."""


SHAPES: Final = {
    # The tiny player's tokens of `[0]` and `[1]`: pass and bet.
    "small": Shape(
        {"env_id": "openspiel:kuhn_poker", "template": "kuhn-board"},
        batch_size=2048,
        max_tokens=1,
        model="tiny-player",
        moves=(24, 25),
    ),
    # It takes any text, and ends after ten turns.
    "large": Shape({"env_id": "SimpleNegotiation-v0", "num_players": 2}, batch_size=2048, max_tokens=4096),
}


@dataclass(frozen=True, slots=True)
class Costs:
    """What was counted between two updates of a run."""

    seconds: dict[str, float]
    """CPU seconds by process."""
    turns: int
    steps: int
    """Steps that the learner trained on."""
    games: int
    turns_per_trajectory: float
    wall_s: float
    trajectory_bytes: float
    """Of one trajectory, as it lies in the log."""
    log_bytes_per_turn: float
    """On a broker's disk, by all topics together."""
    archive_bytes_per_turn: float
    prompt_tokens: float
    completion_tokens: float
    """Means of a turn."""


def assumed_answers(mean: float) -> list[tuple[int, float]]:
    """Return lengths and seconds of answers: quantiles of a log-normal distribution, shuffled evenly."""
    normal = statistics.NormalDist(math.log(mean) - _SPREAD**2 / 2, _SPREAD)
    # A step that shares no factor with their number visits all of them, long and short ones in turn.
    order = [(number * 233) % _ANSWERS for number in range(_ANSWERS)]
    lengths = [max(1, round(math.exp(normal.inv_cdf((place + 0.5) / _ANSWERS)))) for place in order]
    return [(length, length / _TOKENS_PER_S) for length in lengths]


def build_model(path: Path) -> None:
    """Write a model of two small layers, and a tokenizer with 8,000 pieces of this repository's words."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    texts = sorted(str(page) for page in Path("docs").rglob("*.md"))
    backend.train(
        texts, trainers.BpeTrainer(vocab_size=_PIECES, special_tokens=["<|end|>"], show_progress=False)
    )
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>").save_pretrained(path)
    config = transformers.Qwen3Config(
        vocab_size=_PIECES,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)


async def play(shape: Shape, options: argparse.Namespace, bootstrap: str, place: Path) -> Costs:
    """Play a run and return what its processes cost between its first updates and its last."""
    answers = place / "answers.json"
    answers.write_text(json.dumps(assumed_answers(options.tokens)))
    if shape.model is None:
        build_model(place / "model")
    config = parse_config(
        {
            "model": shape.model or str(place / "model"),
            "log": f"kafka://{bootstrap}",
            "backend": "ray",
            "train_envs": [shape.environment],
            "sampling": {"max_tokens": shape.max_tokens},
            "engine": {
                "type": ENGINE,
                "answers": str(answers),
                "moves": shape.moves,
                "faster": options.faster,
            },
            "algorithm": NO_UPDATE,
            "collector": {
                "num_workers": options.games_at_once,
                "num_rollout_workers": options.rollout_workers,
                "max_turns": 40,
            },
            "evaluation": {"every": options.updates, "first_last_games": 2},
            "learner": {
                "iterations": options.updates,
                "batch_size": shape.batch_size,
                "mini_batch_size": shape.batch_size,
                "mini_batch_tokens": 16_384,
            },
        }
    )
    mark = os.environ[MARK]
    counted = BetweenUpdates(
        options.after,
        options.updates,
        lambda: (by_process(mark), time.time_ns() // 1_000_000),
        lambda number: print(f"update {number} of {options.updates}", flush=True),
    )
    data = DataDir(place)
    archive = duckdb_file(data.archive)
    await launch(config, data, watch=counted.watch)
    (first, begin_ms), (last, end_ms) = counted.looks
    spent = {name: seconds - first.get(name, 0.0) for name, seconds in last.items()}
    return await _costs(config.log, data.log, archive, spent, (begin_ms, end_ms), counted.steps)


async def _costs(
    location: str,
    log_file: Path,
    archive: Path,
    spent: Mapping[str, float],
    moments: Sequence[int],
    steps: int,
) -> Costs:
    """Count what happened between two moments."""
    begin_ms, end_ms = moments
    turns = games = 0
    sizes: list[int] = []
    prompts: list[int] = []
    completions: list[int] = []
    written: Counter[str] = Counter()
    all_turns = 0
    async with opened_log(location, log_file) as log:
        async for record in read_to_end(log, [topic.name for topic in load_topics().values()]):
            written[record.topic] += len(record.value)
            if record.topic not in (Trajectory.TOPIC, GameOutcome.TOPIC):
                continue
            for event in readable_events([record]):
                between = begin_ms < event.occurred_at_ms <= end_ms
                if isinstance(event, GameOutcome):
                    games += between
                elif isinstance(event, Trajectory):
                    all_turns += len(event.turns)
                    if between:
                        turns += len(event.turns)
                        sizes.append(len(record.value))
                        prompts += [packed_length(turn.prompt_token_ids) for turn in event.turns]
                        completions += [packed_length(turn.logprobs) for turn in event.turns]
    return Costs(
        seconds={name: seconds for name, seconds in spent.items() if seconds > 0.0},
        turns=turns,
        steps=steps,
        games=games,
        turns_per_trajectory=turns / len(sizes),
        wall_s=(end_ms - begin_ms) / 1000,
        trajectory_bytes=statistics.fmean(sizes),
        log_bytes_per_turn=sum(written.values()) / all_turns,
        archive_bytes_per_turn=archive.stat().st_size / all_turns,
        prompt_tokens=statistics.fmean(prompts),
        completion_tokens=statistics.fmean(completions),
    )


def _show(name: str, costs: Costs) -> None:
    title = (
        f"{name}: {costs.turns / costs.games:.1f} turns a game, {costs.prompt_tokens:.0f} + "
        f"{costs.completion_tokens:.0f} tokens a turn, {costs.trajectory_bytes / 1000:.1f} KB a trajectory, "
        f"{costs.log_bytes_per_turn / 1000:.1f} KB a turn in the log, "
        f"{costs.archive_bytes_per_turn / 1000:.1f} KB in the archive; "
        f"here {costs.turns / costs.wall_s:,.0f} turns/s"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("process", min_width=24)
    table.add_column("CPU ms a turn", justify="right")
    table.add_column("turns/s of a core", justify="right")
    table.add_column("games/s of a core", justify="right")
    for process, seconds in sorted(costs.seconds.items(), key=lambda each: -each[1]):
        # It may train on turns that were played before.
        done = costs.steps if process == "LearnerActor" else costs.turns
        rate = done / seconds
        table.add_row(
            process,
            f"{seconds / done * 1000:.3f}",
            f"{rate:,.0f}",
            f"{rate * costs.games / costs.turns:,.1f}",
        )
    Console(width=None if Console().is_terminal else 120).print(table)


def main() -> None:
    """Play both shapes, and print what each process costs."""
    arguments = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    arguments.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    arguments.add_argument("--updates", type=int, default=12, help="learner updates of each run")
    arguments.add_argument("--after", type=int, default=4, help="updates before counting begins")
    arguments.add_argument("--tokens", type=float, default=120.0, help="mean length of an answer")
    arguments.add_argument("--faster", type=float, default=20.0, help="latencies are divided by it")
    arguments.add_argument("--games-at-once", type=int, default=512)
    arguments.add_argument("--rollout-workers", type=int, default=1)
    options = arguments.parse_args()
    if not 0 < options.after < options.updates:
        arguments.error("--after: expected at least 1, and less than --updates")
    reason = why_unavailable()
    if reason is not None:
        raise SystemExit(f"not measured: {reason}")
    for name in options.shapes:
        os.environ[MARK] = secrets.token_hex(8)  # before the brokers, which are counted, too
        with tempfile.TemporaryDirectory() as directory, kafka_broker(None, brokers=_BROKERS) as bootstrap:
            costs = asyncio.run(play(SHAPES[name], options, bootstrap, Path(directory)))
        _show(name, costs)


if __name__ == "__main__":
    main()
