"""Recent results of the trained model: against each opponent, and in each environment. A fold of outcomes."""

from collections import Counter, deque
from typing import Final

from unstable_stream.events import GameOutcome, SeatResult

__all__ = ["RecentResults", "score_against"]

_WINDOW: Final = 200


class RecentResults:
    """Results in training games, over a window for each pair of environment and opponent.

    A result is a score: 1 for a win, 0.5 for a draw, 0 for a loss. The trained model changes, so old results
    say little: only the latest ``window`` of each pair count. Mirror self-play has no opponent, and no score.
    """

    def __init__(self, window: int = _WINDOW) -> None:
        """``window`` is the number of games that count, for each environment and opponent."""
        self.window = window
        self._against: dict[str, dict[str, deque[float]]] = {}
        """By opponent and environment."""
        self._in_env: dict[str, deque[float]] = {}
        self.matches: dict[str, Counter[str]] = {}
        """By opponent and environment, the number of games; mirror self-play under the model itself."""

    def add(self, game: GameOutcome) -> None:
        """Take in a training game, once."""
        mine = [seat for seat in game.seats if seat.trained]
        others = [seat for seat in game.seats if not seat.trained]
        for uid in {seat.model_uid for seat in others or mine}:
            self.matches.setdefault(uid, Counter())[game.env_id] += 1
        if not mine:
            return
        if len(game.seats) == 1:
            # Nobody to compare with: rewards of puzzles are between 0 and 1, or negative for an invalid move.
            self._take(self._in_env, game.env_id, min(max(mine[0].reward, 0.0), 1.0))
        for seat in others:
            score = score_against(mine, seat)
            self._take(self._against.setdefault(seat.model_uid, {}), game.env_id, score)
            self._take(self._in_env, game.env_id, score)

    def against(self, uid: str, env_id: str | None = None) -> tuple[float, int]:
        """Return the mean score against an opponent and the number of its games in the window.

        ``env_id`` ``None``: in all environments. Without a game: ``(0.5, 0)``.
        """
        by_env = self._against.get(uid, {})
        return _mean([score for env, scores in by_env.items() if env_id in (None, env) for score in scores])

    def smoothed(self, uid: str, env_id: str | None = None) -> float:
        """Return an estimate of the probability to win, between 0 and 1 and never one of them.

        By Laplace's rule of succession: one win and one loss are added to the games. So an opponent that was
        never met counts as even.
        """
        mean, games = self.against(uid, env_id)
        return (mean * games + 1.0) / (games + 2.0)

    def in_env(self, env_id: str) -> tuple[float, ...]:
        """Return the latest scores in an environment, against all opponents, oldest first."""
        return tuple(self._in_env.get(env_id, ()))

    def _take(self, scores: dict[str, deque[float]], env_id: str, score: float) -> None:
        scores.setdefault(env_id, deque(maxlen=self.window)).append(score)


def score_against(mine: list[SeatResult], opponent: SeatResult) -> float:
    """Return the score of the trained seats against one other seat, the mean of their comparisons."""
    compared = [0.5 * ((one.reward > opponent.reward) - (one.reward < opponent.reward) + 1) for one in mine]
    return sum(compared) / len(compared)


def _mean(scores: list[float]) -> tuple[float, int]:
    return (sum(scores) / len(scores), len(scores)) if scores else (0.5, 0)
