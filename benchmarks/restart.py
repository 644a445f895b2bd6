"""Restart of a processor host: time to its first new result, with and without snapshots, by length of
history.

Run ``python -m benchmarks.restart``. A log holds so many small trajectories, all of them processed. A host is
started in a fresh process, and the time is measured until the steps of one new game are in the log; imports
are left out. Without a snapshot the host folds the whole history first. With one it folds what came after it:
here 499 trajectories, one fewer than the pace of snapshots, as if it had been killed at the worst moment.

Saving is measured too: the time of processing 2,000 games with snapshots against that without, each with
start and end of a host.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import machine, parser
from unstable_stream.events import Step, Trajectory, Turn, game_id, pack_floats, pack_tokens, trajectory_id
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Record, TopicPartition
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.recording import start_run
from unstable_stream.services.streams.fold_sink import FoldSink
from unstable_stream.services.streams.processors import REWARDS, host_processors
from unstable_stream.services.streams.run_configs import RunDirectory
from unstable_stream.services.streams.snapshots import POSITION, SnapshotPace, scope_of

RUN = "run-restarted"
GROUP = f"{REWARDS.name}/{RUN}"
_ENV = "SimpleTak-v0-train"
_BATCH = 2000
_BEHIND = SnapshotPace().events - 1
_DEADLINE_S = 3600.0


def games(first: int, count: int) -> Iterator[Record]:
    """Yield the trajectory of each game: one turn of four tokens."""
    turn = Turn(
        turn_index=0,
        game_turn=0,
        observation="board",
        prompt="<board>",
        prompt_token_ids=pack_tokens([1, 2, 3, 4]),
        completion="[0]",
        completion_token_ids=pack_tokens([5, 6, 7, 8]),
        logprobs=pack_floats([-0.5] * 4),
        finish_reason="stop",
        action="[0]",
        valid=True,
        policy_version=1,
    )
    for index in range(first, first + count):
        game = game_id(RUN, "train", index)
        yield record_from_event(
            Trajectory(
                event_id=trajectory_id(game, 0),
                run_id=RUN,
                occurred_at_ms=index,
                game_id=game,
                game_index=index,
                split="train",
                env_id=_ENV,
                seed=index,
                seat=0,
                model_uid="ckpt-000001",
                policy_version=1,
                trained=True,
                trained_seats=(0,),
                reward=1.0 - 2.0 * (index % 2),
                reason="win",
                rewards={0: 1.0 - 2.0 * (index % 2), 1: 2.0 * (index % 2) - 1.0},
                turns=(turn,),
            )
        )


async def append(log: EventLog, first: int, count: int, *, processed: bool) -> TopicPartition:
    """Append games; ``processed``: commit the position after them, as their host would have."""
    records = games(first, count)
    at = TopicPartition(Trajectory.TOPIC, 0)
    while batch := [record for _, record in zip(range(_BATCH), records, strict=False)]:
        places = await log.append(batch)
        at = places[-1][0]
    if processed:
        async with (await log.producer("bench")).transaction() as transaction:
            await transaction.commit_positions(GROUP, {at: (await log.end_offsets(at.topic))[at]})
    return at


async def prepare(path: Path, size: int) -> None:
    """Make the log."""
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await log.create_topics(list(load_topics().values()))
        settings = {"model": "tiny-player", "train_envs": [{"env_id": _ENV}]}
        await start_run(log, parse_config(settings), RUN)
        await append(log, 0, size, processed=True)


async def restart(path: Path, next_game: int, *, snapshots: bool) -> float:
    """Return the seconds until the steps of a new game are in the log."""
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        at = await append(log, next_game, 1, processed=False)
        if not snapshots:
            async with (await log.producer("bench")).transaction() as transaction:
                await transaction.save(scope_of(GROUP, at), {POSITION: b""})
        reader = await log.consumer([Step.TOPIC], start="end")
        stop = asyncio.Event()
        began = time.perf_counter()
        async with RunDirectory(log) as runs:
            sink = FoldSink(log, REWARDS, runs, RUN)
            hosting = asyncio.ensure_future(host_processors([sink], stop=stop))
            async with asyncio.timeout(_DEADLINE_S):
                while not await reader.poll(timeout_s=1.0):
                    if hosting.done():
                        hosting.result()
            seconds = time.perf_counter() - began
            stop.set()
            await hosting  # saves the snapshot
        return seconds


async def publish(path: Path, first: int, count: int, pace: SnapshotPace) -> float:
    """Return the seconds that a host takes to process so many new games."""
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await append(log, first, count, processed=False)
        stop = asyncio.Event()
        stop.set()
        began = time.perf_counter()
        async with RunDirectory(log) as runs:
            await host_processors([FoldSink(log, REWARDS, runs, RUN, pace=pace)], stop=stop)
        return time.perf_counter() - began


def _child(path: Path, *arguments: str) -> float:
    command = [sys.executable, "-m", "benchmarks.restart", "--child", str(path), *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def measure(size: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of both ways, and of processing with and without saving."""
    found: dict[str, list[float]] = {"without": [], "with": [], "saving": [], "not saving": []}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log.sqlite"
        asyncio.run(prepare(path, size))
        game = size
        for _ in range(rounds):
            found["without"].append(_child(path, "restart", str(game), "without"))
            game += 1
            asyncio.run(_append_processed(path, game, _BEHIND))
            game += _BEHIND
            found["with"].append(_child(path, "restart", str(game), "with"))
            game += 1
            for what in ("saving", "not saving"):
                found[what].append(_child(path, "publish", str(game), what))
                game += _BATCH
    return found


async def _append_processed(path: Path, first: int, count: int) -> None:
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await append(log, first, count, processed=True)


def _run_child(arguments: list[str]) -> None:
    path, what, first, how = Path(arguments[0]), arguments[1], int(arguments[2]), arguments[3]
    if what == "restart":
        print(asyncio.run(restart(path, first, snapshots=how == "with")))
    else:
        pace = SnapshotPace() if how == "saving" else SnapshotPace(events=10**9, passed=10**9)
        print(asyncio.run(publish(path, first, _BATCH, pace)))


def main() -> None:
    """Measure and report."""
    if sys.argv[1:2] == ["--child"]:
        _run_child(sys.argv[2:])
        return
    arguments: argparse.ArgumentParser = parser(str(__doc__).splitlines()[0])
    arguments.set_defaults(rounds=3)
    arguments.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    options = arguments.parse_args()
    table = Table(title="Restart of a processor host", title_justify="left")
    for heading in ("trajectories", "without / with", "with / with the shortest", "saving / not saving"):
        table.add_column(heading, justify="right")
    results = {}
    shortest = None
    for size in options.sizes:
        found = results[size] = measure(size, options.rounds)
        middle = {name: statistics.median(seconds) for name, seconds in found.items()}
        shortest = shortest or middle["with"]
        table.add_row(
            f"{size:,}",
            f"{middle['without'] / middle['with']:.1f}",
            f"{middle['with'] / shortest:.2f}",
            f"{middle['saving'] / middle['not saving']:.2f}",
        )
    Console(width=None if Console().is_terminal else 120).print(table)
    print(json.dumps(results))
    if options.json is not None:
        content = {"title": "restart", "machine": machine(), "seconds": results}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
