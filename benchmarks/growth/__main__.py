"""What a trained step costs, as one thing of a run grows: games before, games in flight, environments, …

``python -m benchmarks.growth`` plays short runs, each in one process of its own, in which all is real but the
work of the model: the engine and the learner of :mod:`benchmarks.ceiling` stand in. From run to run one
number grows and the others stay as they are. The CPU time of the process between two updates is divided by
the steps trained meanwhile, and compared with the run in which that number is smallest.

``--what partitions`` measures one of them, ``--picture docs/images/growth.svg`` draws all of them.
"""

import argparse
import asyncio
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, cast

from rich.console import Console
from rich.table import Table

from benchmarks.between_updates import BetweenUpdates
from benchmarks.curves import curves
from benchmarks.harness import machine, parser
from unstable_stream.log.port import TopicSpec
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.launch.launcher import launch

_GAME: Final = "benchmarks/growth/game.py:Talk"


@dataclass(frozen=True, slots=True)
class Run:
    """A run to measure."""

    in_flight: int = 32
    """Games that are played at once."""
    turns: int = 4
    """Turns of each player in a game."""
    environments: int = 1
    players: int = 2
    checkpoints: int = 1
    """Checkpoints that are kept as opponents; above 1 they are drawn by their ratings."""
    plug_ins: int = 0
    partitions: int = 0
    """Of each topic that has several; 0: as declared."""
    batch_size: int = 256
    before: int = 0
    """The least number of updates before counting begins."""

    @property
    def waiting(self) -> int:
        """The most steps that wait for the learner: those of all games in flight, and of as many again."""
        return max(2 * self.batch_size, 2 * self.in_flight * self.players * self.turns)

    @property
    def after(self) -> int:
        """Updates before counting begins: from then on as many steps are played as trained on."""
        return max(self.before, 4 + math.ceil(1.5 * self.waiting / self.batch_size))

    @property
    def updates(self) -> int:
        """Updates of the whole run."""
        return self.after + max(8, math.ceil(self.waiting / self.batch_size))


GROWING: Final[Mapping[str, tuple[Sequence[int], Callable[[int], Run]]]] = {
    "games before": ((100, 1_000, 10_000, 30_000), lambda count: Run(before=count * 8 // 256)),
    "games in flight": ((1, 16, 128, 1_000, 2_000), lambda count: Run(in_flight=count, turns=1)),
    "environments": ((1, 8, 64), lambda count: Run(environments=count)),
    "players": ((2, 4, 8, 16), lambda count: Run(players=count)),
    "checkpoints": (
        (1, 10, 100, 1_000),
        lambda count: Run(checkpoints=count, batch_size=16, in_flight=4, before=count + 8),
    ),
    "plug-ins": ((0, 1, 4, 16), lambda count: Run(plug_ins=count)),
    "partitions": ((1, 8, 64, 256), lambda count: Run(partitions=count)),
}
"""What grows, through which numbers, and the run with one of them."""


class Cost(NamedTuple):
    """What a run cost."""

    step_ms: float
    """Milliseconds of CPU time of a trained step."""
    memory_mb: float
    """The most that the process had."""


async def play(run: Run, model: str, place: Path) -> float:
    """Play a run; return its CPU seconds between two updates for each step trained between them."""
    # Here, so that a test of this module does without PyTorch.
    from benchmarks.ceiling.stand_in import ENGINE, NO_UPDATE

    answers = place / "answers.json"
    answers.write_text(json.dumps([(4, 0.0), (8, 0.0), (12, 0.0)]))
    config = parse_config(
        {
            "model": model,
            "backend": "inline",
            "train_envs": [
                {"env_id": f"{_GAME}(turns={run.turns}, topic={topic})", "num_players": run.players}
                for topic in range(run.environments)
            ],
            "sampling": {"max_tokens": 16},
            "engine": {"type": ENGINE, "answers": str(answers)},
            "algorithm": NO_UPDATE,
            "collector": {"num_workers": run.in_flight, "max_pending_steps": run.waiting},
            "buffer": {"max_buffer_size": 2 * run.waiting},
            "model_pool": {"max_active_lora": run.checkpoints}
            | ({"sample_mode": "match-quality"} if run.checkpoints > 1 else {}),
            "consumers": [
                f"benchmarks/growth/plug_ins.py:counting_{number}" for number in range(run.plug_ins)
            ],
            "evaluation": {"opponents": [], "every": run.updates, "first_last_games": 2},
            "lora": {"lora_rank": 1, "target_modules": ["q_proj"], "last_layers": 1},
            "learner": {
                "iterations": run.updates,
                "batch_size": run.batch_size,
                "mini_batch_size": run.batch_size,
                "mini_batch_tokens": 16_384,
            },
        }
    )
    if run.partitions:
        _declare(run.partitions)
    counted = BetweenUpdates(run.after, run.updates, time.process_time)
    await launch(config, DataDir(place), watch=counted.watch)
    first, last = counted.looks
    return (last - first) / counted.steps


def _declare(partitions: int) -> None:
    """Declare so many partitions, in this process, for the topics that have several."""
    declared = cast("dict[str, TopicSpec]", load_topics())  # what all parts of the run are given again
    for name, spec in declared.items():
        if spec.partitions > 1:
            declared[name] = replace(spec, partitions=partitions)


def _measured(what: str, count: int, model: str) -> Cost:
    """Play a run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.growth", "--child", what, str(count), model]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Cost(*map(float, done.stdout.split()[-2:]))


def _child(what: str, count: int, model: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        seconds = asyncio.run(play(GROWING[what][1](count), model, Path(directory)))
    print(seconds * 1000, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    """Measure, report and draw."""
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2], int(sys.argv[3]), sys.argv[4])
        return
    arguments: argparse.ArgumentParser = parser(str(__doc__).splitlines()[0])
    arguments.set_defaults(rounds=1)
    arguments.add_argument("--what", nargs="+", choices=GROWING, default=list(GROWING))
    arguments.add_argument("--picture", type=Path, help="write the curves here, as SVG")
    options = arguments.parse_args()
    from benchmarks.ceiling.__main__ import build_model

    table = Table(title="What a trained step costs", title_justify="left")
    for heading in ("what grows", "to", "CPU ms a step", "of the smallest", "memory, MB"):
        table.add_column(heading, justify="right")
    found: dict[str, dict[int, Cost]] = {}
    with tempfile.TemporaryDirectory() as directory:
        build_model(Path(directory))
        for what in options.what:
            counts, _ = GROWING[what]
            rounds = [[_measured(what, count, directory) for count in counts] for _ in range(options.rounds)]
            found[what] = {
                count: Cost(*map(statistics.median, zip(*costs, strict=True)))
                for count, costs in zip(counts, zip(*rounds, strict=True), strict=True)
            }
            smallest = found[what][counts[0]]
            for count, cost in found[what].items():
                ratio = cost.step_ms / smallest.step_ms
                table.add_row(
                    what, f"{count:,}", f"{cost.step_ms:.2f}", f"{ratio:.2f}", f"{cost.memory_mb:.0f}"
                )
            table.add_section()
    Console(width=None if Console().is_terminal else 120).print(table)
    if options.picture is not None:
        panels = {
            f"{what}: CPU ms a step": [(count, cost.step_ms) for count, cost in costs.items() if count]
            for what, costs in found.items()
        }
        options.picture.write_text(curves(panels), encoding="utf-8")
    if options.json is not None:
        content = {"title": "growth", "machine": machine(), "step_ms_and_mb": found}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
