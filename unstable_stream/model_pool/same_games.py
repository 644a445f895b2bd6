"""Games that repeat one another: players without chance play the same game for every seed.

Where all games of some players, by seat, are one and the same, move by move, they tell what one of them
tells. So they count once for an interval and for a strength. What they count too much is their surplus.

An outcome holds moves and ranks, not what chance dealt: where all games of some players have the same moves
and ranks in spite of different deals (a policy that always folds), they count once too, and their interval is
too wide.
"""

from dataclasses import dataclass

import msgspec

from unstable_stream.events import GameOutcome
from unstable_stream.events.id_sets import digest


def game_digest(game: GameOutcome) -> int | None:
    """Return 64 bits, signed, that are the same for two games of the same moves and ranks.

    ``None``: no moves are recorded.
    """
    if not game.actions:
        return None
    moves = msgspec.json.encode([game.actions, [each.rank for each in game.seats]])
    return int.from_bytes(digest(moves)[:8], "little", signed=True)


@dataclass
class SameGame:
    """The games of some players in the same seats."""

    players: tuple[str, ...]
    """The environment, then the players in the order of the seats."""
    digest: int | None
    """Of the first game."""
    games: int = 0
    alike: bool = True
    """True if all of them were that game."""

    @property
    def surplus(self) -> float:
        """The share of the games that repeats others."""
        return 1 - 1 / self.games if self.alike and self.games else 0.0


class SameGames:
    """The fold: by players, whether all of their games were one and the same."""

    def __init__(self) -> None:
        self._played: dict[tuple[str, ...], SameGame] = {}

    def add(self, game: GameOutcome) -> SameGame:
        """Count a game once; return what is known of the games of its players."""
        players, moves = (game.env_id, *(each.model_uid for each in game.seats)), game_digest(game)
        same = self._played.setdefault(players, SameGame(players, moves))
        same.games += 1
        same.alike = same.alike and moves is not None and moves == same.digest
        return same

    def repeated(self) -> list[tuple[str, int]]:
        """Return the players all of whose games were one and the same, and how often it was played."""
        return [
            (" and ".join(players[1:]), same.games)
            for players, same in sorted(self._played.items())
            if same.alike and same.games > 1
        ]


class Surplus:
    """The part of one side's games, and of its score in them, that counts too much."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, ...], tuple[SameGame, int, float]] = {}

    def add(self, same: SameGame, score: float) -> None:
        """Count a game of these players, with one side's score."""
        _, games, scores = self._counted.get(same.players, (same, 0, 0.0))
        self._counted[same.players] = (same, games + 1, scores + score)

    def total(self) -> tuple[float, float]:
        """Return how many games, and how much of the score, repeat others."""
        counted = self._counted.values()
        return (
            sum(games * same.surplus for same, games, _ in counted),
            sum(score * same.surplus for same, _, score in counted),
        )
