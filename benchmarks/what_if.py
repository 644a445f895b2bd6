"""Rating, shaping and verifying a run again, each against reading the same data bare; and peak memory.

Run ``python -m benchmarks.what_if``. Outcomes are made up inside DuckDB, so that a million of them are there
in seconds; trajectories are those of ``benchmarks.processor_fold``. A rated game of two makes four ratings:
two in its environment, two overall. ``events/s`` are records of all topics that are read.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import duckdb
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Comparison, compare, parser, report
from benchmarks.processor_fold import RUN, outcomes, trajectories
from unstable_stream.archive import ArchiveWriter
from unstable_stream.archive.what_if import open_set
from unstable_stream.events import Event, GameOutcome, GameStarted, Seat, decode_event, event_id, game_id
from unstable_stream.games.environments import Environment
from unstable_stream.games.opponents.scripted import scripted_player
from unstable_stream.games.play import play_game
from unstable_stream.history.hindsight.rederive import rederive
from unstable_stream.history.hindsight.rerate import rerate_from_archive, rerate_from_log
from unstable_stream.history.proofs.play_again import replay
from unstable_stream.history.proofs.verify import verify_run
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.records import event_from_record, record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.model_pool import RatingProcessor, TrueSkill
from unstable_stream.model_pool.systems import Elo, OpenSkill, RatingSystem
from unstable_stream.reward_transformations import RewardProcessor
from unstable_stream.runs.config import RewardConfig, RunConfig, parse_config
from unstable_stream.runs.recording import start_run
from unstable_stream.runs.sections import CollectorConfig

ENV = "TicTacToe-v0-train"
_GAMES_PER_CHECKPOINT = 200
_MEMORY_GAMES = (200_000, 1_000_000)
_NO_TRANSFORMS: dict[str, list[dict[str, str]]] = {"final": [], "step": [], "sampling": []}


def make_archive(path: Path, games: int, players: int) -> None:
    """An archive of outcomes between a checkpoint in seat 0 and fixed opponents; who wins is a hash."""
    with ArchiveWriter(path) as writer:
        writer.write([])
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            f"""INSERT INTO seats BY NAME
            SELECT md5('game' || row // {players}) AS game_id, '{RUN}' AS run_id, 'train' AS split,
                   '{ENV}' AS env_id, (row % {players})::INTEGER AS seat,
                   CASE WHEN row % {players} = 0
                        THEN format('ckpt-{{:06d}}', row // {players} // {_GAMES_PER_CHECKPOINT})
                        ELSE 'fixed-' || row % {players} END AS model_uid,
                   CASE WHEN row % {players} = 0
                        THEN row // {players} // {_GAMES_PER_CHECKPOINT} END::INTEGER AS policy_version,
                   -- The seats finish in turn, and the hash of the game says who first.
                   ((row + hash(row // {players}) % {players}) % {players})::INTEGER AS "rank"
            FROM range({games * players}) AS made(row)"""
        )
        connection.execute(
            f"""INSERT INTO checkpoints BY NAME
            SELECT '{RUN}' AS run_id, format('ckpt-{{:06d}}', n) AS model_uid, n::INTEGER AS iteration,
                   CASE WHEN n > 0 THEN format('ckpt-{{:06d}}', n - 1) END AS parent_uid
            FROM range({games // _GAMES_PER_CHECKPOINT + 1}) AS made(n)"""
        )


def rerate(path: Path, games: int, system: RatingSystem, store: Path | None = None) -> float:
    """Our games a second, and all ratings stored if there is where."""
    began = time.perf_counter()
    if store is None:
        done = rerate_from_archive(path, RUN, system)
    else:
        with open_set(store, replace=True) as out:
            done = rerate_from_archive(path, RUN, system, out=out)
    assert done.games == done.rated == games
    return games / (time.perf_counter() - began)


def read_columns(path: Path, games: int) -> float:
    """The baseline: the same columns to Arrow."""
    began = time.perf_counter()
    with duckdb.connect(str(path), read_only=True) as connection:
        rows = connection.sql(
            f"""SELECT game_id, env_id, model_uid, policy_version, "rank" FROM seats WHERE run_id = '{RUN}'"""
        ).to_arrow_table()
    assert rows.num_rows >= games
    return games / (time.perf_counter() - began)


class MadeUpLog:
    """A local log of a run whose every derived event is true, but whose games nobody played."""

    def __init__(self, path: Path, games: int, shape: tuple[int, int, int, int]) -> None:
        self.path = path
        self.config = parse_config(
            {"model": "none", "train_envs": [{"env_id": ENV}], "rewards": _NO_TRANSFORMS}
        )
        self.events = 0
        asyncio.run(self._fill(games, shape))

    async def _fill(self, games: int, shape: tuple[int, int, int, int]) -> None:
        rewards, ratings = RewardProcessor(RUN), RatingProcessor(RUN)
        made: list[Event] = []
        for body in trajectories(games, *shape):
            event = decode_event(body)
            made += [event, *rewards.handle(event)]
        for body in outcomes(games, 2):
            event = decode_event(body)
            made += [event, *ratings.handle(event)]
        async with LocalLog.open(self.path, synchronous="NORMAL") as log:
            await log.create_topics(list(load_topics().values()))
            await start_run(log, self.config, RUN)
            for first in range(0, len(made), 1000):
                await log.append([record_from_event(event) for event in made[first : first + 1000]])

    def timed(self, work: Callable[[LocalLog], object], topics: Sequence[str]) -> float:
        """Records of these topics a second, if ``work``, a coroutine function, deals with them."""
        return asyncio.run(self._timed(work, topics))

    async def _timed(self, work: Callable[[LocalLog], object], topics: Sequence[str]) -> float:
        async with LocalLog.open(self.path, synchronous="NORMAL") as log:
            records = 0
            for topic in topics:
                records += sum((await log.end_offsets(topic)).values())
            began = time.perf_counter()
            await work(log)  # type: ignore[misc]  # a coroutine function
            return records / (time.perf_counter() - began)


def decode_all(topics: tuple[str, ...]) -> Callable[[LocalLog], object]:
    """The baseline: read and decode."""

    async def work(log: LocalLog) -> None:
        async for record in read_to_end(log, topics):
            event_from_record(record)

    return work


async def _rederive(log: LocalLog, config: RunConfig) -> None:
    rewards = RewardConfig.model_validate(_NO_TRANSFORMS | {"final": [{"type": "WinDrawLossFormatter"}]})
    with open_set(None) as out:
        done = await rederive(log, RUN, config, rewards, out)
    assert done.steps > 0


async def _verify(log: LocalLog) -> None:
    done = await verify_run(log, RUN, games=False)
    # The books of games that nobody played do not balance.
    assert not any(check.differing for check in done.checks)
    assert done.checks[0].compared > 0


async def _rerate_log(log: LocalLog) -> None:
    done = await rerate_from_log(log, RUN, TrueSkill())
    assert done.changed == 0


def on_logs(directory: Path, rounds: int) -> list[Comparison]:
    """What reads a log, against reading and decoding it."""
    results: list[Comparison] = []
    for name, games, shape in (
        ("tiny player", 2000, (5, 60, 12, 3)),
        ("language model", 300, (6, 500, 250, 4)),
    ):
        made = MadeUpLog(directory / f"{name}.sqlite", games, shape)
        rows: list[tuple[str, Callable[[LocalLog], object], tuple[str, ...]]] = [
            ("rederive", partial(_rederive, config=made.config), ("trajectories",)),
            ("verify", _verify, ("trajectories", "steps", "game-outcomes", "ratings")),
        ]
        if not results:
            rows.append(("rerate from the log", _rerate_log, ("game-outcomes", "ratings")))
        results += [
            compare(
                f"{what}, {name}",
                partial(made.timed, work, topics),
                partial(made.timed, decode_all(topics), topics),
                unit="events/s",
                rounds=rounds,
                target=0.5 if what == "verify" else None,
            )
            for what, work, topics in rows
        ]
    return results


def played_games(count: int) -> list[GameOutcome]:
    """Real games between scripted players."""
    played = []
    for index in range(count):
        started = GameStarted(
            event_id=event_id(RUN, "game-started", "eval", index),
            run_id=RUN,
            occurred_at_ms=0,
            game_id=game_id(RUN, "eval", index),
            game_index=index,
            split="eval",
            env_id=ENV,
            seed=index,
            seats=(
                Seat(seat=0, model_uid="random-legal", kind="scripted"),
                Seat(seat=1, model_uid="random-legal", kind="scripted"),
            ),
        )
        players = {seat: scripted_player("random-legal", ENV) for seat in (0, 1)}
        game = asyncio.run(play_game(started, players, max_turns=50, now_ms=lambda: 0))
        played.append(game.outcome)
    return played


def replay_all(games: Sequence[GameOutcome]) -> float:
    """Ours: play again and recompute every record, a game at a time."""
    began = time.perf_counter()
    for game in games:
        assert replay(game, CollectorConfig(max_turns=50)).outcome is None
    return len(games) / (time.perf_counter() - began)


def step_all(games: Sequence[GameOutcome]) -> float:
    """The baseline: the same moves in the bare environment."""
    began = time.perf_counter()
    for game in games:
        environment = Environment(ENV)
        environment.reset(2, game.seed)
        for action in game.actions:
            environment.observe()
            environment.step(action.action)
        environment.close()
    return len(games) / (time.perf_counter() - began)


def peak_megabytes(path: Path) -> dict[str, float]:
    """Highest resident memory of a fresh process, before and after it rates an archive and stores the set."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.what_if", "--measure-memory", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measure_memory(path: Path) -> None:
    with duckdb.connect() as connection:
        connection.sql("SELECT 1").to_arrow_table()
    before = _peak_megabytes()
    with tempfile.TemporaryDirectory() as scratch, open_set(Path(scratch) / "set") as out:
        done = rerate_from_archive(path, RUN, TrueSkill(), out=out)
    print(json.dumps({"before": before, "after": _peak_megabytes(), "seconds": done.seconds}))


def _peak_megabytes() -> float:
    # Not getrusage: a child inherits its parent's peak there.
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("no VmHWM in /proc/self/status: peak memory is measured on Linux only")


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--games", type=int, default=100_000, help="made-up games of two players")
    arguments.add_argument("--measure-memory", type=Path, help="internal: rate this archive, print the peak")
    options = arguments.parse_args()
    if options.measure_memory:
        _measure_memory(options.measure_memory)
        return
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        two, four = directory / "two.duckdb", directory / "four.duckdb"
        few = options.games // 50
        make_archive(two, options.games, 2)
        make_archive(four, few, 4)
        rows: list[tuple[str, Path, int, RatingSystem, Path | None]] = [
            ("rerate, TrueSkill, 2 players", two, options.games, TrueSkill(), None),
            ("the same, every rating stored", two, options.games, TrueSkill(), directory / "set"),
            ("rerate, Elo, 2 players", two, options.games, Elo(), None),
            ("rerate, TrueSkill, 4 players", four, few, TrueSkill(), None),
            ("rerate, OpenSkill, 4 players", four, few, OpenSkill(), None),
        ]
        results = [
            compare(
                name,
                partial(rerate, path, games, system, store),
                partial(read_columns, path, games),
                unit="games/s",
                rounds=options.rounds,
            )
            for name, path, games, system, store in rows
        ]
        results += on_logs(directory, options.rounds)
        played = played_games(200)
        results.append(
            compare(
                "verify, games played again",
                partial(replay_all, played),
                partial(step_all, played),
                unit="games/s",
                rounds=options.rounds,
            )
        )
        table = Table(title="Peak memory of a fresh process, every rating stored", title_justify="left")
        for heading in ("games of two", "before", "after", "seconds"):
            table.add_column(heading, justify="right")
        for games in _MEMORY_GAMES:
            path = directory / f"{games}.duckdb"
            make_archive(path, games, 2)
            found = peak_megabytes(path)
            megabytes = (f"{found[name]:,.0f} MB" for name in ("before", "after"))
            table.add_row(f"{games:,}", *megabytes, f"{found['seconds']:.1f}")
            path.unlink()
    report("What-if and verification against reading bare", results, options.json)
    Console().print(table)


if __name__ == "__main__":
    main()
