"""Games per second of :func:`play_game` beside bare TextArena on the very same games, one thread, no model.

Run: ``python benchmarks/games_per_second.py [--games 300]``. Prints JSON; times are CPU seconds, best of
several rounds, so that a busy machine changes little.
"""

import argparse
import asyncio
import json
import platform
import time
from collections.abc import Callable

import textarena

from unstable_stream.events import GameOutcome, GameStarted, Seat, event_id, game_id
from unstable_stream.games.opponents.scripted import scripted_player
from unstable_stream.games.play import play_game

ENVIRONMENTS = ("SimpleTak-v0-train", "TicTacToe-v0-train", "ConnectFour-v0-train", "KuhnPoker-v0-train")
ROUNDS = 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=300)
    games = parser.parse_args().games
    results = {env_id: measure(env_id, games) for env_id in ENVIRONMENTS}
    versions = {"python": platform.python_version(), "textarena": textarena.__version__}
    print(
        json.dumps(
            {"machine": platform.processor(), **versions, "games": games, "results": results}, indent=1
        )
    )


def measure(env_id: str, games: int) -> dict[str, float]:
    """Return games per second of bare TextArena, and :func:`play_game`."""
    outcomes = asyncio.run(play_all(env_id, games))
    bare = games / best(lambda: play_bare(outcomes))
    played = games / best(lambda: asyncio.run(play_all(env_id, games)))
    return {
        "bare_textarena": round(bare),
        "play_game_random_legal": round(played),
        "moves_per_game": round(sum(outcome.num_turns for outcome in outcomes) / games, 1),
    }


def best(action: Callable[[], object]) -> float:
    """Return the smallest CPU time of several rounds, in seconds."""
    times = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        action()
        times.append(time.process_time() - begin)
    return min(times)


def play_bare(outcomes: list[GameOutcome]) -> None:
    """Play recorded actions with nothing but TextArena."""
    for outcome in outcomes:
        environment = textarena.make(outcome.env_id)
        environment.reset(num_players=len(outcome.seats), seed=outcome.seed)
        for action in outcome.actions:
            environment.get_observation()
            environment.step(action.action)
        environment.close()


async def play_all(env_id: str, games: int) -> list[GameOutcome]:
    """Play random legal moves in both seats."""
    players = {seat: scripted_player("random-legal", env_id) for seat in range(2)}
    seats = tuple(Seat(seat=seat, model_uid="random-legal", kind="scripted") for seat in range(2))
    outcomes = []
    for index in range(games):
        started = GameStarted(
            event_id=event_id("bench", "game-started", "train", index),
            run_id="bench",
            occurred_at_ms=0,
            game_id=game_id("bench", "train", index),
            game_index=index,
            split="train",
            env_id=env_id,
            seed=index,
            seats=seats,
        )
        played = await play_game(started, players, max_turns=500, now_ms=lambda: time.time_ns() // 1_000_000)
        outcomes.append(played.outcome)
    return outcomes


if __name__ == "__main__":
    main()
