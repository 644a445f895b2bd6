"""Games played at the same time come out as if each had been played alone."""

import asyncio
import random

from tests.games.builders import GuessingPlayer, make_started, play
from unstable_stream.events import GameOutcome

# Decks, dice, deals and hidden roles: most draw from the global generator while they are played.
ENVIRONMENTS = (
    ("KuhnPoker-v0-train", 2),
    ("PigDice-v0-short-train", 2),
    ("LiarsDice-v0-train", 2),
    ("GermanWhist-v0-train", 2),
    ("2048-v0-train", 1),
    ("SimpleTak-v0-train", 2),
    ("SecretMafia-v0-train", 6),
    ("Poker-v0-small-train", 3),
    ("Snake-v0-train", 3),
    ("ThreePlayerIPD-v0-train", 3),
)
GAMES_EACH = 12


async def one(env_id: str, num_players: int, index: int) -> tuple[GameOutcome, list[str]]:
    player = GuessingPlayer()
    started = make_started(env_id, num_players, index=index, seed=1000 + index)
    played = await play(
        started,
        dict.fromkeys(range(num_players), player),
        max_turns=40,
        now_ms=lambda: 0,
        invalid_moves_allowed=3,
    )
    return played.outcome, player.shown


async def test_interleaved_games_equal_serial_games() -> None:
    games = [
        (env_id, num_players, number * len(ENVIRONMENTS) + position)
        for number in range(GAMES_EACH)
        for position, (env_id, num_players) in enumerate(ENVIRONMENTS)
    ]
    assert len(games) >= 100
    serial = [await one(*game) for game in games]
    random.seed(0)
    interleaved = await asyncio.gather(*(one(*game) for game in games))
    for game, alone, together in zip(games, serial, interleaved, strict=True):
        assert together == alone, game
    # The comparison means something: chance makes games of one environment differ.
    deals = {shown[0] for (env_id, _, _), (_, shown) in zip(games, serial, strict=True) if "Kuhn" in env_id}
    assert len(deals) > 1
    assert sum(len(shown) for _, shown in serial) > 10 * len(games)
