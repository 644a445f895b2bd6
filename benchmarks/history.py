"""What grows with history: restart time, memory and disk of a processor host, against the games before.

Run ``python -m benchmarks.history``. ``--sizes 10000 100000 1000000 10000000`` needs 14 GB and some ten
minutes of a free core, and ``--picture docs/images/history.svg`` draws it. One log grows to each size in
turn, by small trajectories of one run that count as processed. At each size a host is started in a fresh
process, three times, with 499 trajectories behind its snapshot, the worst moment to die. Measured are the
time to the steps of one new game, imports left out, and the most memory that the process had. Disk is the
log's file and the saved states in it.

The host's state is folded up to a million games. Of all games alike it grows by one number only, the end of
those that are done, which is checked there; beyond, that number is set. ``--log`` goes on with a log that was
made before, at its size, and keeps it.
"""

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.curves import curves
from benchmarks.harness import machine, parser
from benchmarks.restart import _BEHIND, GROUP, RUN, append, prepare, restart
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import TopicPartition
from unstable_stream.services.streams.snapshots import (
    POSITION,
    FoldState,
    pack,
    run_name,
    scope_of,
)

_FOLDED = 1_000_000
_ROUNDS = 3


class Point(NamedTuple):
    """What was measured after so many games."""

    games: int
    restart_s: float
    """Median time to the first new result."""
    memory_mb: float
    """Median of the most resident memory of the process."""
    log_mb: float
    states_kb: float
    """Saved states of the host."""


def _child(path: Path, next_game: int) -> tuple[float, float]:
    """Restart a host in a process of its own; return seconds and megabytes."""
    command = [sys.executable, "-m", "benchmarks.history", "--child", str(path), str(next_game)]
    seconds, kilobytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[
        -2:
    ]
    return float(seconds), float(kilobytes) / 1024


async def _grow(path: Path, first: int, count: int) -> None:
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await append(log, first, count, processed=True)


async def _state(path: Path) -> tuple[TopicPartition, int, FoldState]:
    """Return where the host reads, its committed position and the saved state of its run."""
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        positions = await log.committed_positions(GROUP)
        at, position = max(positions.items(), key=lambda each: each[1])  # one environment, so one partition
        packed = (await log.saved(scope_of(GROUP, at)))[run_name(RUN)]
    saved = msgspec.json.decode(zlib.decompress(packed), type=FoldState)
    return at, position, saved


def _after(state: Mapping[str, Any], games: int) -> dict[str, Any]:
    """Return the state after so many games, from one after fewer."""
    return {**state, "done": [[0, games]]}


async def _save_as_if_folded(path: Path) -> None:
    """Save what folding all games would give."""
    at, position, saved = await _state(path)
    run = pack(position, saved.digest, _after(saved.state, position))
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        producer = await log.producer(scope_of(GROUP, at))
        async with producer.transaction() as transaction:
            states = {POSITION: pack(position), run_name(RUN): run}
            await transaction.save(scope_of(GROUP, at), states)
        await producer.close()


async def _states_bytes(path: Path) -> int:
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        saved = [await log.saved(scope) for scope in await log.saved_names()]
    return sum(len(state) for states in saved for state in states.values())


def _measured(path: Path, games: int) -> Point:
    """Measure at this size; the log gets a few more games on the way."""
    game = games
    if games > _FOLDED:
        asyncio.run(_save_as_if_folded(path))
    _child(path, game)  # folds what was appended, and saves the state
    game += 1
    _, position, saved = asyncio.run(_state(path))
    assert (position, saved.position, saved.state) == (game, game, _after(saved.state, game))
    found = []
    for _ in range(_ROUNDS):
        asyncio.run(_grow(path, game, _BEHIND))
        found.append(_child(path, game + _BEHIND))
        game += _BEHIND + 1
    seconds, memory = zip(*found, strict=True)
    disk = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*") if file.is_file())
    return Point(
        games,
        statistics.median(seconds),
        statistics.median(memory),
        disk / 1e6,
        asyncio.run(_states_bytes(path)) / 1e3,
    )


def picture(points: Sequence[Point]) -> str:
    """Return the three curves as SVG: time and memory are flat, disk is linear."""
    return curves(
        {
            "restart to first result, s": [(point.games, point.restart_s) for point in points],
            "resident memory, MB": [(point.games, point.memory_mb) for point in points],
            "log on disk, MB": [(point.games, point.log_mb) for point in points],
        },
        below="games before",
    )


def main() -> None:
    """Measure, report and draw."""
    if sys.argv[1:2] == ["--child"]:
        seconds = asyncio.run(restart(Path(sys.argv[2]), int(sys.argv[3]), snapshots=True))
        print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    arguments.add_argument("--log", type=Path, help="a log made before; one size only, which is its own")
    arguments.add_argument("--picture", type=Path, help="write the curves here, as SVG")
    options = arguments.parse_args()
    table = Table(title="What grows with history", title_justify="left")
    for heading in ("games before", "restart, s", "memory, MB", "log, MB", "saved states, kB"):
        table.add_column(heading, justify="right")
    points: list[Point] = []
    with tempfile.TemporaryDirectory() as directory:
        path = options.log or Path(directory) / "log.sqlite"
        if options.log is None:
            asyncio.run(prepare(path, 0))
        there = 0
        for size in sorted(options.sizes):
            began = time.perf_counter()
            if options.log is None:
                asyncio.run(_grow(path, there, size - there))
            point = _measured(path, size)
            there = size + 1 + _ROUNDS * (_BEHIND + 1)
            points.append(point)
            print(f"{size:,}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
            table.add_row(
                f"{size:,}",
                f"{point.restart_s:.2f}",
                f"{point.memory_mb:.0f}",
                f"{point.log_mb:,.0f}",
                f"{point.states_kb:.1f}",
            )
    Console(width=None if Console().is_terminal else 120).print(table)
    if options.picture is not None:
        options.picture.write_text(picture(points), encoding="utf-8")
    if options.json is not None:
        content = {"title": "history", "machine": machine(), "points": [each._asdict() for each in points]}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
