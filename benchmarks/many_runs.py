"""Many runs on one log: two hosts against one, and what 199 other runs cost one.

Run ``python -m benchmarks.many_runs``. Hosts of the stream processors serve all runs, each in a process of
its own. All records are there before a host starts. Compared are, in turns:

- two hosts against one, with the games of many runs;
- one host with the games of many runs against one with as many games of a single run;
- a service of one run, which reads its outcomes among those of all others: the time that a record of another
  run takes it, against one of its own.

The log is local. What is counted is work and not time, so that other programs change little: the CPU time of
each host, and that of its thread that writes. Hosts with a core each end with the busiest one; but what is
written needs the log's write lock, which one host has at a time. So the rate is the number of records for
each CPU second of the busiest host, or of all writing threads together if that is more.

With ``--clock`` the rate is by the clock, from the first position that is committed to the last, each host
pinned to a core: for a machine that does nothing else.
"""

import asyncio
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from benchmarks.harness import Comparison, compare, parser, report
from benchmarks.processor_fold import SHAPES, outcomes, trajectories
from unstable_stream.events import (
    Event,
    GameOutcome,
    Trajectory,
    decode_event,
    event_id,
    game_id,
    trajectory_id,
)
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog, Record
from unstable_stream.log.reading import of_run, read_on, readable_events, settled_ends
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.recording import start_run
from unstable_stream.services.streams.processors import RATINGS, REWARDS
from unstable_stream.services.streams.service import run_processors

_DEADLINE_S = 600.0
_POLL_S = 0.02
_LOG = "local"
_GROUPS = (REWARDS.name, RATINGS.name)
_CONFIG = parse_config({"model": "tiny-player", "train_envs": [{"env_id": "SimpleTak-v0-train"}]})


def _of_run(event: Event, run_id: str) -> Event:
    """Return the same event of another run, with ids of its own."""
    assert isinstance(event, GameOutcome | Trajectory)
    game = game_id(run_id, event.split, event.game_index)
    own = (
        trajectory_id(game, event.seat)
        if isinstance(event, Trajectory)
        else event_id(run_id, "game-outcome", game)
    )
    return msgspec.structs.replace(event, run_id=run_id, game_id=game, event_id=own)


def records(runs: int, games: int) -> list[Record]:
    """Return the records of so many games in all, the runs in turns."""
    each = max(1, games // runs)
    shape = SHAPES["tiny player"]
    played = [decode_event(data) for data in trajectories(each, *shape)]
    ended = [decode_event(data) for data in outcomes(each, 2)]
    made = []
    for index in range(each):
        for run in range(runs):
            events = (*played[2 * index : 2 * index + 2], ended[index])
            made += [record_from_event(_of_run(event, f"run-{run:03}")) for event in events]
    return made


async def fill(log: EventLog, runs: int, games: int) -> None:
    """Start the runs and append their games."""
    await log.create_topics(list(load_topics().values()))
    for run in range(runs):
        await start_run(log, _CONFIG, f"run-{run:03}")
    made = records(runs, games)
    for first in range(0, len(made), 500):
        await log.append(made[first : first + 500])


async def _rewind(log: EventLog) -> None:
    """Let the groups begin again, without any state."""
    for scope, names in (await log.saved_names()).items():
        async with (await log.producer("bench")).transaction() as transaction:
            await transaction.save(scope, dict.fromkeys(names, b""))
    async with (await log.producer("bench")).transaction() as transaction:
        for name, topic in zip(_GROUPS, ("trajectories", "game-outcomes"), strict=True):
            ends = await log.end_offsets(topic)
            await transaction.commit_positions(name, dict.fromkeys(ends, 0))


async def _processed(log: EventLog) -> int:
    return sum([sum((await log.committed_positions(name)).values()) for name in _GROUPS])


async def _host(data: DataDir) -> None:
    """Host the processors until standard input closes."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    before = time.process_time()
    async with opened_log(_LOG, data.log) as log:
        await run_processors(log, None, stop, drain=False)
        writing = sum(
            int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0])
            for thread in threading.enumerate()
            if "write" in thread.name
        )
    print(json.dumps([time.process_time() - before, writing / 1e9]))


async def rate(data: DataDir, hosts: int, *, clock: bool) -> float:
    """Return the records a second that so many hosts process, each with a core of its own."""
    async with opened_log(_LOG, data.log) as log:
        await _rewind(log)
        total = 0
        for topic in ("trajectories", "game-outcomes"):
            total += sum((await log.end_offsets(topic)).values())
        command = [sys.executable, "-m", "benchmarks.many_runs", "--host", str(data.root)]
        with contextlib.ExitStack() as stack:
            started = [
                stack.enter_context(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        preexec_fn=functools.partial(_pin, number) if clock else None,
                    )
                )
                for number in range(hosts)
            ]
            try:
                async with asyncio.timeout(_DEADLINE_S):
                    while not (first := await _processed(log)):
                        await asyncio.sleep(_POLL_S)
                    began = time.perf_counter()
                    while (now := await _processed(log)) < total:
                        await asyncio.sleep(_POLL_S)
                    by_clock = (now - first) / (time.perf_counter() - began)
            finally:
                for one in started:
                    assert one.stdin is not None, "a pipe was asked for"
                    one.stdin.close()
            told = [json.loads(one.stdout.read()) for one in started if one.stdout is not None]
    busiest = max(cpu for cpu, _ in told)
    return by_clock if clock else total / max(busiest, sum(writing for _, writing in told))


def _pin(number: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


async def reading_rate(data: DataDir, run_id: str) -> float:
    """Return the records a second that pass by a service of one run which reads outcomes."""
    async with opened_log(_LOG, data.log) as log:
        ends = await settled_ends(log, ("game-outcomes",))
        consumer = await log.consumer(["game-outcomes"])
        began, seen = time.process_time(), 0
        try:
            async for found in read_on(consumer, ends):
                seen += len(found)
                list(readable_events(of_run(found, run_id)))
        finally:
            await consumer.close()
        return seen / (time.process_time() - began)


def _measured(runs: int, games: int, directory: Path, rounds: int, *, clock: bool) -> list[Comparison]:
    many, one = DataDir(directory / "many"), DataDir(directory / "one")
    for data, count in ((many, runs), (one, 1)):
        data.root.mkdir()
        asyncio.run(_fill_at(data, count, games))
    return [
        compare(
            f"two hosts against one, {runs} runs",
            lambda: asyncio.run(rate(many, 2, clock=clock)),
            lambda: asyncio.run(rate(many, 1, clock=clock)),
            unit="records/s",
            rounds=rounds,
            target=1.3,
        ),
        compare(
            f"one host, {runs} runs against one run",
            lambda: asyncio.run(rate(many, 1, clock=clock)),
            lambda: asyncio.run(rate(one, 1, clock=clock)),
            unit="records/s",
            rounds=rounds,
            target=0.5,
        ),
        compare(
            "records that one run passes by against those it reads",
            lambda: asyncio.run(reading_rate(many, "another")),
            lambda: asyncio.run(reading_rate(one, "run-000")),
            unit="records/s",
            rounds=rounds,
        ),
    ]


async def _fill_at(data: DataDir, runs: int, games: int) -> None:
    async with opened_log(_LOG, data.log) as log:
        await fill(log, runs, games)


def main() -> None:
    """Measure and report."""
    if sys.argv[1:2] == ["--host"]:
        asyncio.run(_host(DataDir(Path(sys.argv[2]))))
        return
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.add_argument("--games", type=int, default=6000, help="in all; three records each")
    arguments.add_argument("--runs", type=int, default=200)
    arguments.add_argument("--clock", action="store_true", help="by the clock, on a machine that is idle")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        results = _measured(options.runs, options.games, Path(directory), options.rounds, clock=options.clock)
    report("Many runs on one log", results, options.json)


if __name__ == "__main__":
    main()
