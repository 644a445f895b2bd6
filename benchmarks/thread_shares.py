"""How learner and engine should share the cores: whole runs on Ray with one thread or all for each of them.

``python -m benchmarks.thread_shares`` plays the quickstart, or the run of ``--config FILE``, with each number
of threads in turn, and counts between the first and the last update: trained steps a second and the CPU time
of a step. Engine and learner work at the same time. Seconds need a machine that does nothing else.
"""

import asyncio
import itertools
import json
import os
import secrets
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.harness import machine, parser
from benchmarks.step_cost import MARK, by_process, play


class Shares(NamedTuple):
    """Threads of the learner and of the engine."""

    learner: int
    engine: int


class Cost(NamedTuple):
    """What a run did between its first and its last update."""

    steps_s: float
    """Trained steps a second."""
    step_ms: float
    """Milliseconds of CPU time of a trained step, of all processes."""


def _measured(shares: Shares, model: str, config: Path | None, updates: int, overrides: list[str]) -> Cost:
    mark = os.environ[MARK] = secrets.token_hex(8)
    wanted = (
        *overrides,
        f"learner.num_threads={shares.learner}",
        f"engine.num_threads={shares.engine}",
    )

    def look() -> dict[str, float]:
        return by_process(mark) | {"launcher": time.process_time(), "clock": time.perf_counter()}

    spent = asyncio.run(play(model, updates, wanted, "ray", look, config))
    seconds = spent.seconds.pop("clock")
    return Cost(spent.steps / seconds, sum(spent.seconds.values()) / spent.steps * 1000)


def main() -> None:
    """Measure and report."""
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.set_defaults(rounds=2)
    arguments.add_argument("--model", default="tiny-player", help="base model of the quickstart")
    arguments.add_argument("--config", type=Path, default=None, help="play this run, not the quickstart")
    arguments.add_argument("--updates", type=int, default=8, help="learner updates")
    arguments.add_argument("--set", action="append", default=[], help="key=value of the configuration")
    options = arguments.parse_args()
    cores = os.cpu_count() or 1
    all_shares = [Shares(*threads) for threads in itertools.product((1, cores), repeat=2)]
    found: dict[Shares, list[Cost]] = {shares: [] for shares in all_shares}
    for turn in range(options.rounds):
        # Forth and back, so that a machine that gets slower meanwhile falls on all alike.
        for shares in all_shares[:: -1 if turn % 2 else 1]:
            found[shares].append(
                _measured(shares, options.model, options.config, options.updates, options.set)
            )
    table = Table(title=f"Threads on {cores} cores, {(options.config or Path(options.model)).stem}")
    for heading in ("learner", "engine", "steps/s", "of the first", "CPU ms a step", "of the first"):
        table.add_column(heading, justify="right")
    first = Cost(*map(statistics.median, zip(*found[all_shares[0]], strict=True)))
    for shares, costs in found.items():
        cost = Cost(*map(statistics.median, zip(*costs, strict=True)))
        table.add_row(
            *map(str, shares),
            f"{cost.steps_s:.1f}",
            f"{cost.steps_s / first.steps_s:.2f}",
            f"{cost.step_ms:.2f}",
            f"{cost.step_ms / first.step_ms:.2f}",
        )
    Console(width=None if Console().is_terminal else 100).print(table)
    if options.json is not None:
        content = {
            "title": "threads of learner and engine",
            "machine": machine(),
            "runs": [
                {
                    **shares._asdict(),
                    "steps_s": [c.steps_s for c in costs],
                    "step_ms": [c.step_ms for c in costs],
                }
                for shares, costs in found.items()
            ],
        }
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
