"""Fold recent games: results of the trained model, new play by opponent, and the environments to play next.

:class:`RecentResults` and :class:`ExplorationTracker` fold outcomes; :func:`environment_shares` weighs the
training environments by the results, with one of two signals of the literature on automatic curricula:

- ``win-rate``: ``4 p (1 - p)`` of the probability ``p`` to win, 1 where the model wins half of its games and
  0 where it wins or loses all. It is the variance of a game's result, "learnability" in Rutherford et al.,
  "No Regrets", arXiv:2408.15099.
- ``learning-progress``: the absolute change of the mean score between the older and the newer half of the
  latest games, as in Matiisen et al., "Teacher-Student Curriculum Learning", arXiv:1707.00183. Absolute, so
  that an environment that the model forgets is played again, too.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from unstable_stream.events import GameOutcome, SeatResult, are_partners, trained_model

CurriculumMode: TypeAlias = Literal["fixed", "win-rate", "learning-progress"]

_WINDOW: Final = 200
_MOVE_BYTES: Final = 8
_LEAST_GAMES: Final = 20
"""An environment with fewer scores than this counts as if nothing were known: its signal is 1."""

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


# -- new play -----------------------------------------------------------------------------------------


class ExplorationState(msgspec.Struct, frozen=True):
    """The result of :meth:`ExplorationTracker.state`."""

    games: dict[str, list[bytes]]
    """By environment, the digests of the moves of each game in the window."""
    novelty: list[tuple[str, str, list[float]]]
    """Environment, opponent, and its latest games' novelty."""


class ExplorationTracker:
    """Measures novelty of games by their action n-grams, per environment, in bounded memory.

    The novelty of a game is the share of its distinct n-grams that no game of the window before it
    contained, in [0, 1]; an opponent's is the mean over its last ``recent`` games. A game shorter than
    ``n`` moves is one n-gram; an empty one is left out.
    """

    def __init__(self, n: int = 3, window: int = 512, recent: int = 32) -> None:
        """Set up.

        Args:
            n: moves per n-gram, all seats' moves in order of play.
            window: games per environment against which a game is compared.
            recent: games an opponent's novelty is averaged over.
        """
        self.n = n
        self.window = window
        self.recent = recent
        self._games: dict[str, deque[bytes]] = {}
        """The digests of each game's moves, joined."""
        self._counts: dict[str, Counter[bytes]] = {}
        self._novelty: dict[tuple[str, str], deque[float]] = {}

    def add(self, env_id: str, opponents: Iterable[str], actions: Sequence[str]) -> float | None:
        """Take a game in; return its novelty, ``None`` for a game without moves."""
        if not actions:
            return None
        # Digests, because one free-text action may be kilobytes; of one length, so joins stay apart.
        moves = b"".join(
            hashlib.blake2b(action.encode("utf-8", "surrogatepass"), digest_size=_MOVE_BYTES).digest()
            for action in actions
        )
        grams = self._grams(moves)
        counts = self._counts.setdefault(env_id, Counter())
        games = self._games.setdefault(env_id, deque())
        novelty = sum(1 for gram in grams if gram not in counts) / len(grams)
        games.append(moves)
        counts.update(grams)
        if len(games) > self.window:
            for gram in self._grams(games.popleft()):
                counts[gram] -= 1
                if not counts[gram]:
                    del counts[gram]
        for uid in opponents:
            self._novelty.setdefault((env_id, uid), deque(maxlen=self.recent)).append(novelty)
        return novelty

    def novelty(self, uid: str, env_id: str | None = None) -> float:
        """Return an opponent's recent novelty, over all environments if none is named; 1 if never met."""
        values = [
            value
            for (env, opponent), recent in self._novelty.items()
            if opponent == uid and env_id in (None, env)
            for value in recent
        ]
        return sum(values) / len(values) if values else 1.0

    def coverage(self) -> dict[str, int]:
        """Return the number of distinct n-grams in each environment's window."""
        return {env_id: len(counts) for env_id, counts in sorted(self._counts.items())}

    def state(self) -> ExplorationState:
        """Return the state of the fold."""
        return ExplorationState(
            {env_id: list(games) for env_id, games in self._games.items()},
            [(env_id, uid, list(recent)) for (env_id, uid), recent in self._novelty.items()],
        )

    def load_state(self, state: ExplorationState) -> None:
        """Go on from a state of a tracker with the same settings."""
        self._games = {env_id: deque(games) for env_id, games in state.games.items()}
        self._counts = {
            env_id: Counter(gram for moves in games for gram in self._grams(moves))
            for env_id, games in state.games.items()
        }
        self._novelty = {
            (env_id, uid): deque(recent, maxlen=self.recent) for env_id, uid, recent in state.novelty
        }

    def _grams(self, moves: bytes) -> frozenset[bytes]:
        number = len(moves) // _MOVE_BYTES
        n = min(self.n, number)
        return frozenset(moves[i * _MOVE_BYTES : (i + n) * _MOVE_BYTES] for i in range(number - n + 1))


# -- curricula ----------------------------------------------------------------------------------------


def environment_shares(
    mode: CurriculumMode, weights: Sequence[float], scores: Sequence[Sequence[float]], floor: float
) -> list[float]:
    """Return the probability of each environment's draw.

    Args:
        mode: the signal; ``fixed``: the weights alone.
        weights: the configured weight of each environment, above 0.
        scores: the latest scores of each, in [0, 1], oldest first.
        floor: the share of the games that is drawn by the weights alone, so that none is forgotten.
    """
    by_weight = _normalized(weights)
    if mode == "fixed":
        return by_weight
    signals = [_signal(mode, each) for each in scores]
    wanted = [weight * signal for weight, signal in zip(weights, signals, strict=True)]
    if not any(wanted):
        return by_weight
    return [
        floor * plain + (1.0 - floor) * share
        for plain, share in zip(by_weight, _normalized(wanted), strict=True)
    ]


def _signal(mode: CurriculumMode, scores: Sequence[float]) -> float:
    if len(scores) < _LEAST_GAMES:
        return 1.0
    if mode == "learning-progress":
        half = len(scores) // 2
        return abs(sum(scores[len(scores) - half :]) - sum(scores[:half])) / half
    win = sum(scores) / len(scores)
    return 4.0 * win * (1.0 - win)


def _normalized(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights]
