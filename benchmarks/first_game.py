"""Time to the first game: from the command to the first training game that is recorded, and what it costs.

``python -m benchmarks.first_game`` runs the quickstart in a process of its own, once in each backend and
round, and stops it when the log holds the end of a training game. It reports seconds on the clock, and
core-seconds of all processes of the run: those say something on a busy machine too, since what waits costs
none. Beside them stands what cannot be had for less: the imports of PyTorch and transformers with the tiny
player loaded once, and Ray alone with one actor that answers.

``--against DIR`` measures another checkout in turn, for what a change has done.
"""

import asyncio
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.harness import machine, parser
from benchmarks.step_cost import MARK, by_process
from unstable_stream.events import Checkpoint, Event, GameOutcome, GameStarted, Metrics, RunStarted
from unstable_stream.log.open import open_log_at
from unstable_stream.log.reading import readable_events
from unstable_stream.runs.data_dir import DataDir

_HERE: Final = Path(__file__).resolve().parents[1]
_COMMAND: Final = "from unstable_stream.ui.cli import main; main()"
_DEADLINE_S: Final = 300.0
_POLL_S: Final = 0.05

_IMPORTS: Final = """
import torch, transformers
from unstable_stream.inference.tiny_player import tiny_player_path
transformers.AutoModelForCausalLM.from_pretrained(tiny_player_path())
"""
_RAY: Final = """
import ray
ray.init(address="local", include_dashboard=False, log_to_driver=False)
@ray.remote
class Actor:
    def answer(self): return 1
ray.get(Actor.options(num_cpus=0).remote().answer.remote())
ray.shutdown()
"""


@dataclass(frozen=True, slots=True)
class First:
    """One start of a run."""

    seconds: float
    """Until the first training game had ended."""
    stages: dict[str, float]
    """Seconds until each stage."""
    core_seconds: dict[str, float]
    """Of each kind of process, until the first game was seen in the log."""


async def start(checkout: Path, backend: str, overrides: Sequence[str]) -> First:
    """Start the quickstart of a checkout and stop it after its first game."""
    mark = secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as directory:
        data = DataDir(Path(directory))
        settings = [option for each in (f"backend={backend}", *overrides) for option in ("--set", each)]
        environment = os.environ | {MARK: mark, "PYTHONPATH": str(checkout)}
        output = (data.root / "output.txt").open("wb")
        began = time.time()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _COMMAND, "quickstart", "--quiet", "--data", directory, *settings,
            env=environment, cwd=checkout, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_DEADLINE_S):
                events = await _until_first_game(data, process)
            core_seconds = by_process(mark)
        except (TimeoutError, RuntimeError):
            print((data.root / "output.txt").read_text(encoding="utf-8"), file=sys.stderr)
            raise
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            await process.wait()
            output.close()
    stages: dict[str, float] = {}
    for event in events:
        stages.setdefault(_stage(event), event.occurred_at_ms / 1000 - began)
    stages.pop("", None)
    return First(stages["first game ended"], stages, core_seconds)


async def _until_first_game(data: DataDir, process: asyncio.subprocess.Process) -> list[Event]:
    while not data.log.exists():
        _check(process)
        await asyncio.sleep(_POLL_S)
    await asyncio.sleep(_POLL_S)  # it is being set up
    log = open_log_at("local", data.log)
    events: list[Event] = []
    try:
        wanted = [kind.TOPIC for kind in (RunStarted, Checkpoint, Metrics, GameStarted, GameOutcome)]
        while set(wanted) - set(await log.topics()):
            _check(process)
            await asyncio.sleep(_POLL_S)
        consumer = await log.consumer(wanted)
        while not any(_stage(event) == "first game ended" for event in events):
            _check(process)
            events += readable_events(await consumer.poll(timeout_s=_POLL_S))
        await consumer.close()
    finally:
        await log.close()
    return events


def _check(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        raise RuntimeError(f"the run ended with status {process.returncode} before its first game")


def _stage(event: Event) -> str:
    if isinstance(event, RunStarted):
        return "run recorded"
    if isinstance(event, Checkpoint):
        return "initial policy published"
    if isinstance(event, Metrics) and event.source.startswith("engine"):
        return "engine ready"
    if isinstance(event, GameStarted) and event.split == "train":
        return "first game started"
    if isinstance(event, GameOutcome) and event.split == "train":
        return "first game ended"
    return ""


def alone(code: str) -> tuple[float, float]:
    """Return the seconds and core-seconds of a process that runs this code, its children included."""
    before = os.times()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=_HERE, stderr=subprocess.DEVNULL)
    after = os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return after.elapsed - before.elapsed, cpu


def main() -> None:
    """Start runs in turn, and print medians."""
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.set_defaults(rounds=3)
    arguments.add_argument("--backends", nargs="+", default=["ray", "inline"], choices=("ray", "inline"))
    arguments.add_argument("--against", type=Path, default=None, help="another checkout, measured in turn")
    arguments.add_argument("--set", action="append", default=[], help="key=value of the configuration")
    options = arguments.parse_args()
    checkouts = {"ours": _HERE} | ({"against": options.against.resolve()} if options.against else {})
    runs: dict[tuple[str, str], list[First]] = {}
    limits: dict[str, list[tuple[float, float]]] = {}
    for turn in range(options.rounds):
        for backend in options.backends:
            for name, checkout in sorted(checkouts.items(), reverse=turn % 2 == 1):
                first = asyncio.run(start(checkout, backend, options.set))
                runs.setdefault((backend, name), []).append(first)
        for name, code in (("PyTorch, transformers, tiny player", _IMPORTS), ("Ray, one actor", _RAY)):
            limits.setdefault(name, []).append(alone(code))
    _show(runs, limits)
    if options.json is not None:
        content = {
            "title": "first game",
            "machine": machine(),
            "runs": {
                f"{backend}, {name}": [
                    {"seconds": one.seconds, "stages": one.stages, "core_seconds": one.core_seconds}
                    for one in measured
                ]
                for (backend, name), measured in runs.items()
            },
            "alone": limits,
        }
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _show(runs: dict[tuple[str, str], list[First]], limits: dict[str, list[tuple[float, float]]]) -> None:
    console = Console(width=None if Console().is_terminal else 120)
    table = Table(title="To the first game, medians", title_justify="left")
    for heading in ("what", "seconds", "lowest", "core-seconds"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for (backend, name), measured in runs.items():
        seconds = [one.seconds for one in measured]
        spent = statistics.median(sum(one.core_seconds.values()) for one in measured)
        table.add_row(
            f"{backend}, {name}", f"{statistics.median(seconds):.1f}", f"{min(seconds):.1f}", f"{spent:.1f}"
        )
        for stage in measured[0].stages:
            at = [one.stages[stage] for one in measured if stage in one.stages]
            table.add_row(f"    {stage}", f"{statistics.median(at):.1f}", f"{min(at):.1f}", "")
        for process in sorted({name for one in measured for name in one.core_seconds}):
            spent = statistics.median(one.core_seconds.get(process, 0.0) for one in measured)
            table.add_row(f"    {process}", "", "", f"{spent:.1f}")
    for name, found in limits.items():
        elapsed, spent = (statistics.median(values) for values in zip(*found, strict=True))
        table.add_row(f"alone: {name}", f"{elapsed:.1f}", "", f"{spent:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
