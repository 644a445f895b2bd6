"""Games per second of :func:`play_game` beside bare TextArena on the very same games, one thread, no model.

Run ``python -m benchmarks.games_per_second [--games 300]``. Rates are games a second of CPU time.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import textarena

from benchmarks.harness import compare, parser, report
from unstable_stream.events import GameOutcome, GameStarted, Seat, event_id, game_id
from unstable_stream.games.opponents.scripted import scripted_player
from unstable_stream.games.play import play_game

ENVIRONMENTS = ("SimpleTak-v0-train", "TicTacToe-v0-train", "ConnectFour-v0-train", "KuhnPoker-v0-train")


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--games", type=int, default=300)
    options = arguments.parse_args()
    results = []
    for env_id in ENVIRONMENTS:
        outcomes = asyncio.run(play_all(env_id, options.games))
        moves = sum(outcome.num_turns for outcome in outcomes) / options.games
        results.append(
            compare(
                f"{env_id}, {moves:.1f} moves a game",
                partial(timed, options.games, partial(_play, env_id, options.games)),
                partial(timed, options.games, partial(play_bare, outcomes)),
                unit="games/s",
                rounds=options.rounds,
            )
        )
    report(
        "play_game against bare TextArena",
        results,
        options.json,
        versions={"textarena": textarena.__version__},
    )


def timed(games: int, action: Callable[[], object]) -> float:
    """Return games a second of CPU time."""
    began = time.process_time()
    action()
    return games / (time.process_time() - began)


def _play(env_id: str, games: int) -> None:
    asyncio.run(play_all(env_id, games))


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
