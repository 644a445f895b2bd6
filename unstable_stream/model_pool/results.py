"""Recent results of the trained model: against each opponent, and in each environment. A fold of outcomes."""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from unstable_stream.events import GameOutcome, SeatResult, are_partners, trained_model

_WINDOW: Final = 200

_Key = TypeVar("_Key")


class ResultsState(msgspec.Struct, frozen=True):
    """The result of :meth:`RecentResults.state`."""

    against: dict[str, list[tuple[str, str | None, list[float]]]]
    """By opponent: environment, trained model and scores."""
    in_env: dict[str, list[float]]
    matches: dict[str, dict[str, int]]


class RecentResults:
    """Results in training games, over a window for each pair of environment and opponent.

    A result is a score: 1 for a win, 0.5 for a draw, 0 for a loss. The trained model changes, so old results
    say little: only the latest ``window`` of each pair count. Mirror self-play has no opponent, and no score.
    """

    def __init__(self, window: int = _WINDOW) -> None:
        """``window`` is the number of games that count, for each environment and opponent."""
        self.window = window
        self._against: dict[str, dict[tuple[str, str | None], deque[float]]] = {}
        """By opponent, and by environment and trained model; the only one of a run has no name."""
        self._in_env: dict[str, deque[float]] = {}
        self.matches: dict[str, Counter[str]] = {}
        """By opponent and environment, the number of games; mirror self-play under the model itself."""

    def add(self, game: GameOutcome) -> None:
        """Take in a training game, once."""
        mine = [seat for seat in game.seats if seat.trained]
        others = one_of_each_side(
            seat
            for seat in game.seats
            if not seat.trained and not any(are_partners(seat, one) for one in mine)
        )
        for uid in {seat.model_uid for seat in others or mine}:
            self.matches.setdefault(uid, Counter())[game.env_id] += 1
        if not mine:
            return
        if len(game.seats) == 1:
            # Nobody to compare with: rewards of puzzles are between 0 and 1, or negative for an invalid move.
            self._take(self._in_env, game.env_id, min(max(mine[0].reward, 0.0), 1.0))
        for seat in others:
            for model in sorted({trained_model(one.model_uid) or "" for one in mine}):
                own = [one for one in mine if (trained_model(one.model_uid) or "") == model]
                self._take(
                    self._against.setdefault(seat.model_uid, {}),
                    (game.env_id, model or None),
                    score_against(own, seat),
                )
            self._take(self._in_env, game.env_id, score_against(mine, seat))

    def against(self, uid: str, env_id: str | None = None) -> tuple[float, int]:
        """Return the mean score against an opponent and the number of its games in the window.

        ``env_id`` ``None``: in all environments. Without a game: ``(0.5, 0)``.
        """
        found = self._against.get(uid, {})
        return _mean(
            [score for (env, _), scores in found.items() if env_id in (None, env) for score in scores]
        )

    def smoothed(self, uid: str, env_id: str | None = None, model: str | None = None) -> float:
        """Return an estimate of the probability to win, between 0 and 1 and never one of them.

        ``model`` is the name of one of several trained models: the estimate is of its own games.

        By Laplace's rule of succession: one win and one loss are added to the games. So an opponent that was
        never met counts as even.
        """
        found = self._against.get(uid, {})
        own = [scores for (env, of), scores in found.items() if of == model and env_id in (None, env)]
        mean, games = _mean([score for scores in own for score in scores])
        return (mean * games + 1.0) / (games + 2.0)

    def in_env(self, env_id: str) -> tuple[float, ...]:
        """Return the latest scores in an environment, against all opponents, oldest first."""
        return tuple(self._in_env.get(env_id, ()))

    def state(self) -> ResultsState:
        """Return the state of the fold."""
        return ResultsState(
            {
                uid: [(env_id, model, list(scores)) for (env_id, model), scores in found.items()]
                for uid, found in self._against.items()
            },
            {env_id: list(scores) for env_id, scores in self._in_env.items()},
            {uid: dict(games) for uid, games in self.matches.items()},
        )

    def load_state(self, state: ResultsState) -> None:
        """Go on from a state of a fold with the same window."""
        self._against = {
            uid: {(env_id, model): deque(scores, maxlen=self.window) for env_id, model, scores in found}
            for uid, found in state.against.items()
        }
        self._in_env = {env_id: deque(scores, maxlen=self.window) for env_id, scores in state.in_env.items()}
        self.matches = {uid: Counter(games) for uid, games in state.matches.items()}

    def _take(self, scores: dict[_Key, deque[float]], key: _Key, score: float) -> None:
        scores.setdefault(key, deque(maxlen=self.window)).append(score)


def one_of_each_side(seats: Iterable[SeatResult]) -> list[SeatResult]:
    """Leave out the seats of a model that plays for a team already: a team wins one game, not several."""
    sides: dict[tuple[int, int | None, str], SeatResult] = {}
    for seat in seats:
        alone = seat.seat if seat.team is None else -1
        sides.setdefault((alone, seat.team, seat.model_uid), seat)
    return list(sides.values())


def score_against(mine: list[SeatResult], opponent: SeatResult) -> float:
    """Return the score of the trained seats against one other seat, the mean of their comparisons."""
    compared = [0.5 * ((one.reward > opponent.reward) - (one.reward < opponent.reward) + 1) for one in mine]
    return sum(compared) / len(compared)


def _mean(scores: list[float]) -> tuple[float, int]:
    return (sum(scores) / len(scores), len(scores)) if scores else (0.5, 0)
