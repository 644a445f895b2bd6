"""Restart of a collector: time to its first new game, with and without a snapshot, by length of its own run.

Run ``python -m benchmarks.collector_restart``. A log holds so many finished games of one run. A collector is
started in a fresh process, and the time is measured until a new game is in the log; imports and engines are
left out. Without a snapshot it reads all games and outcomes of the run first. With one it reads what came
after it: here 249 games, so 498 events, fewer than the pace of snapshots, as if it had been killed at the
worst moment. The memory is the most that the process had.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import machine, parser
from unstable_stream.events import Checkpoint, GameOutcome, GameStarted, Seat, SeatResult, event_id, game_id
from unstable_stream.inference.engine import Adapter, AdapterResult, EngineStats
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Record
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.history import run_started
from unstable_stream.runs.recording import start_run
from unstable_stream.services.streams.snapshots import SnapshotPace
from unstable_stream.services.workers.collector import Collector
from unstable_stream.services.workers.exploitability import Measurement

_RUN = "run-restarted"
_ENV = "TicTacToe-v0-train"
_CONFIG = parse_config(
    {
        "model": "tiny-player",
        "train_envs": [{"env_id": _ENV}],
        "collector": {"num_workers": 1},
        "evaluation": {"opponents": []},
    }
)
_BEHIND = SnapshotPace().events // 2 - 1
_BATCH = 2000
_DEADLINE_S = 6 * 3600.0


class _Engine:
    async def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0.0, 0, 0)

    async def adapter_results(self) -> list[AdapterResult]:
        return []


class _Worker:
    """Plays without end."""

    async def play(self, games: Sequence[GameStarted], adapters: Mapping[str, Adapter]) -> int:
        await asyncio.Event().wait()
        return 0

    async def cancel(self, game_ids: Sequence[str], reason: str) -> None: ...

    async def measure(self, wanted: Measurement, adapters: Sequence[Adapter | None]) -> None: ...


def _games(first: int, count: int) -> Iterator[Record]:
    """Yield start and outcome of each game; no step comes of it."""
    for index in range(first, first + count):
        game = game_id(_RUN, "train", index)
        seats = [Seat(seat=seat, model_uid="ckpt-000000", kind="checkpoint") for seat in range(2)]
        started = GameStarted(
            event_id=event_id(_RUN, "game-started", "train", index),
            run_id=_RUN,
            occurred_at_ms=index,
            game_id=game,
            game_index=index,
            split="train",
            env_id=_ENV,
            seed=index,
            seats=tuple(seats),
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
            seats=tuple(
                SeatResult(seat=one.seat, model_uid=one.model_uid, kind=one.kind, reward=0.0, rank=0, turns=3)
                for one in seats
            ),
            reason="draw",
        )
        yield from map(record_from_event, (started, outcome))


async def _append(log: EventLog, first: int, count: int) -> None:
    records = _games(first, count)
    while batch := [record for _, record in zip(range(_BATCH), records, strict=False)]:
        await log.append(batch)


async def _prepare(path: Path) -> None:
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await log.create_topics(list(load_topics().values()))
        await start_run(log, _CONFIG, _RUN)
        first = Checkpoint(
            event_id=event_id(_RUN, "checkpoint", 0),
            run_id=_RUN,
            occurred_at_ms=0,
            model_uid="ckpt-000000",
            iteration=0,
            path=None,
        )
        await log.append([record_from_event(first)])


async def _grow(path: Path, first: int, count: int) -> None:
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await _append(log, first, count)


async def _restart(path: Path, first: int, *, snapshot: bool) -> float:
    """Return the seconds until the next game, of number ``first``, is recorded; it ends at once."""
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        if not snapshot:
            for scope, names in (await log.saved_names()).items():
                async with (await log.producer("bench")).transaction() as transaction:
                    await transaction.save(scope, dict.fromkeys(names, b""))
        reader = await log.consumer([GameStarted.TOPIC], start="end")
        collector = Collector(_CONFIG, _RUN, [_Engine()], [_Worker()], await run_started(log, _RUN))
        stop = asyncio.Event()
        began = time.perf_counter()
        collecting = asyncio.ensure_future(collector.collect(log, stop))
        async with asyncio.timeout(_DEADLINE_S):
            while not await reader.poll(timeout_s=1.0):
                if collecting.done():
                    collecting.result()
        seconds = time.perf_counter() - began
        await _append(log, first, 1)  # that game ends
        stop.set()
        await collecting  # saves the snapshot
    return seconds


def _child(path: Path, first: int, how: str) -> tuple[float, float]:
    """Restart a collector in a process of its own; return seconds and megabytes."""
    command = [sys.executable, "-m", "benchmarks.collector_restart", "--child", str(path), str(first), how]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(printed[-2]), float(printed[-1]) / 1024


def _states_kb(path: Path) -> float:
    async def size() -> int:
        async with LocalLog.open(path, synchronous="NORMAL") as log:
            saved = [await log.saved(scope) for scope in await log.saved_names()]
        return sum(len(state) for states in saved for state in states.values())

    return asyncio.run(size()) / 1e3


def main() -> None:
    """Measure and report."""
    if sys.argv[1:2] == ["--child"]:
        seconds = asyncio.run(_restart(Path(sys.argv[2]), int(sys.argv[3]), snapshot=sys.argv[4] == "with"))
        print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return
    arguments: argparse.ArgumentParser = parser(str(__doc__).splitlines()[0])
    arguments.set_defaults(rounds=3)
    arguments.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    options = arguments.parse_args()
    table = Table(title="Restart of a collector", title_justify="left")
    for heading in ("games before", "without, s", "with, s", "with, MB", "saved states, kB"):
        table.add_column(heading, justify="right")
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log.sqlite"
        asyncio.run(_prepare(path))
        there = 0
        for size in sorted(options.sizes):
            asyncio.run(_grow(path, there, size - there))
            there = size
            found: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
            for _ in range(options.rounds):
                found["without"].append(_child(path, there, "without"))
                asyncio.run(_grow(path, there + 1, _BEHIND))
                found["with"].append(_child(path, there + 1 + _BEHIND, "with"))
                there += 2 + _BEHIND
            results[size] = found
            middle = {
                how: [statistics.median(each) for each in zip(*found[how], strict=True)] for how in found
            }
            table.add_row(
                f"{size:,}",
                f"{middle['without'][0]:.2f}",
                f"{middle['with'][0]:.2f}",
                f"{middle['with'][1]:.0f}",
                f"{_states_kb(path):.1f}",
            )
    Console(width=None if Console().is_terminal else 120).print(table)
    print(json.dumps(results))
    if options.json is not None:
        content = {"title": "collector_restart", "machine": machine(), "seconds_and_mb": results}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
