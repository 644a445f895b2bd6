"""What the event path takes of a run's time: encode, append, read, fold and fill the buffer, per game.

A whole run is played first, with all its parts in this process, and between its first and its last update
the CPU time of the process is taken: engine, games, learner, event path and archive. Then the same code does
the event path of the run's own records once more, alone, and its CPU time is taken, in all threads. Neither
counts waiting, so a busy machine changes little, and no profiler slows what it measures. With ``--data DIR``
a recorded run takes the place of the first part; then the time between its updates is known, and no CPU time.

1. collector: encode and append ``game-started``; read and decode what ended, was rated and was trained;
2. rollout: encode and append trajectories and outcome, game by game;
3. processors: the host reads both, folds rewards and ratings, appends steps and ratings with its positions;
4. learner: read and decode steps, fill the buffer.

The archive is no part of the path from a game to its update: the run pays for it, the event path does not.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.between_updates import BetweenUpdates
from benchmarks.harness import machine, parser
from unstable_stream.algorithms.buffer import StepBuffer
from unstable_stream.api.quickstart import quickstart
from unstable_stream.events import (
    Event,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    RunStarted,
    Step,
    Trajectory,
    decode_event,
)
from unstable_stream.log.open import open_log_at
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import read_to_end, readable_events
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.launch import launcher
from unstable_stream.services.streams.processors import fold_sinks, host_processors
from unstable_stream.services.streams.run_configs import RunDirectory

_PLAYED = ("runs", "games", "trajectories", "game-outcomes", "steps", "learner-updates")


class Recorded:
    """The events of one run."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.started = next(event for event in events if isinstance(event, RunStarted))
        self.config: RunConfig = parse_config(self.started.config)
        self.games = [event for event in events if isinstance(event, GameStarted)]
        self.updates = [event for event in events if isinstance(event, LearnerUpdate)]
        self.steps = sum(isinstance(event, Step) for event in events)
        outcomes = {event.game_id: event for event in events if isinstance(event, GameOutcome)}
        results: dict[str, list[Event]] = {game_id: [] for game_id in outcomes}
        for event in events:
            if isinstance(event, Trajectory) and event.game_id in results:
                results[event.game_id].append(event)
        self.results = [[*results[game_id], outcome] for game_id, outcome in outcomes.items()]
        first, last = self.updates[0].occurred_at_ms, self.updates[-1].occurred_at_ms
        self.seconds = (last - first) / 1000
        """From the first to the last update."""
        self.games_between = sum(first < outcome.occurred_at_ms <= last for outcome in outcomes.values())


async def read_run(data: DataDir, run_id: str | None) -> Recorded:
    """Read a run from its log; ``None``: the only one."""
    log = open_log_at("local", data.log)
    try:
        events = [decode_event(record.value) async for record in read_to_end(log, _PLAYED)]
    finally:
        await log.close()
    runs = {event.run_id for event in events if isinstance(event, RunStarted)}
    if run_id is None and len(runs) != 1:
        raise SystemExit(
            f"{data.log} holds {len(runs)} runs: name one with --run ({', '.join(sorted(runs))})"
        )
    wanted = run_id or next(iter(runs))
    return Recorded([event for event in events if event.run_id == wanted])


async def measure(run: Recorded) -> dict[str, float]:
    """Return CPU seconds by stage for all games of the run, on a fresh log."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        log = open_log_at("local", Path(directory) / "log.sqlite", run.config.synchronous)
        await log.create_topics(list(load_topics().values()))
        await log.append([record_from_event(run.started)])
        seconds["collector: encode, append"] = await _cpu(
            lambda: _append(log, [[game] for game in run.games])
        )
        seconds["rollout: encode, append"] = await _cpu(lambda: _append(log, run.results))
        seconds["processors"] = await _cpu(lambda: _process(log, run.started.run_id))
        await log.append([record_from_event(update) for update in run.updates])
        seconds["collector: read"] = await _cpu(
            lambda: _read(log, ("games", "game-outcomes", "checkpoints", "learner-updates", "ratings"))
        )
        steps = [event for event in await _read(log, ("steps",)) if isinstance(event, Step)]
        if len(steps) != run.steps:
            raise SystemExit(
                f"the processors made {len(steps)} steps of the run's records, the run {run.steps}"
            )
        seconds["learner: read, fill the buffer"] = await _cpu(lambda: _fill(log, run.config))
        await log.close()
    return seconds


async def _append(log: EventLog, batches: Sequence[Sequence[Event]]) -> None:
    for batch in batches:
        await log.append([record_from_event(event) for event in batch])


async def _process(log: EventLog, run_id: str) -> None:
    stop = asyncio.Event()
    stop.set()  # it ends when all is processed
    async with RunDirectory(log) as runs:
        await host_processors(await fold_sinks(log, runs, run_id), stop=stop, drain=True)


async def _read(log: EventLog, topics: Sequence[str]) -> list[Event]:
    consumer = await log.consumer(topics)
    events: list[Event] = []
    while records := await consumer.poll(max_records=2000, timeout_s=0):
        events += readable_events(records)
    await consumer.close()
    return events


async def _fill(log: EventLog, config: RunConfig) -> None:
    buffer = StepBuffer(
        config.max_buffer_size,
        strategy=config.buffer.strategy,
        seed=config.seed,
        max_staleness=config.buffer.max_staleness,
    )
    buffer.extend(event for event in await _read(log, ("steps",)) if isinstance(event, Step))


async def _cpu(work: Callable[[], Awaitable[object]]) -> float:
    began = time.process_time()
    await work()
    return time.process_time() - began


async def play(config: RunConfig, data: DataDir) -> tuple[float, int]:
    """Play a run in this process; return its CPU seconds between the first and the last update, and the steps
    trained meanwhile.
    """
    counted = BetweenUpdates(1, config.learner.iterations, time.process_time)
    await launcher.launch(config, data, backend="inline", watch=counted.watch)
    first, last = counted.looks
    return last - first, counted.steps


def main() -> None:
    """Play or read a run, measure, and print what each stage takes of a game's time."""
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.set_defaults(rounds=3)
    arguments.add_argument("--data", type=Path, default=None, help="data directory of a recorded run")
    arguments.add_argument("--run", default=None, help="its id, if there are several")
    arguments.add_argument("--model", default="tiny-player", help="plays the quickstart, without --data")
    arguments.add_argument("--updates", type=int, default=8, help="learner updates of the quickstart")
    arguments.add_argument("--set", action="append", default=[], help="key=value of its configuration")
    options = arguments.parse_args()
    overrides = (f"learner.iterations={options.updates}", *options.set)
    cpu_seconds = None
    with tempfile.TemporaryDirectory() as directory:
        data = DataDir(options.data or Path(directory))
        if options.data is None:
            config = quickstart(options.model, data=data.root, overrides=overrides).config
            cpu_seconds, _ = asyncio.run(play(config, data))
        run = asyncio.run(read_run(data, options.run))
    rounds = [asyncio.run(measure(run)) for _ in range(options.rounds)]
    # The lowest: whatever else the machine does can only add.
    best = {stage: min(one[stage] for one in rounds) / len(run.results) for stage in rounds[0]}
    per_game = {"wall": run.seconds / run.games_between}
    if cpu_seconds is not None:
        per_game["CPU"] = cpu_seconds / run.games_between
    _show(run, best, per_game)
    if options.json is not None:
        content = {
            "title": "event path",
            "machine": machine(),
            "model": run.config.model,
            "games": len(run.results),
            "seconds_per_game": per_game,
            "event_path_cpu_seconds_per_game": best,
            "shares": {kind: sum(best.values()) / seconds for kind, seconds in per_game.items()},
            "rounds": [sum(one.values()) / len(run.results) for one in rounds],
        }
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _show(run: Recorded, best: Mapping[str, float], per_game: Mapping[str, float]) -> None:
    times = ", ".join(f"{seconds * 1000:,.1f} ms {kind}" for kind, seconds in per_game.items())
    model = Path(run.config.model).name
    title = f"The event path of {len(run.results):,} games with {model}: a game takes {times}"
    table = Table(title=title, title_justify="left")
    table.add_column("stage")
    table.add_column("CPU ms per game", justify="right")
    for kind in per_game:
        table.add_column(f"share of {kind} time", justify="right")
    for stage, seconds in (*best.items(), ("together", sum(best.values()))):
        shares = (f"{seconds / whole:.2%}" for whole in per_game.values())
        table.add_row(stage, f"{seconds * 1000:.2f}", *shares)
    Console(width=None if Console().is_terminal else 120).print(table)


if __name__ == "__main__":
    main()
