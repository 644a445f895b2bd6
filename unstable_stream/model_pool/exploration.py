"""Measure the new play that each opponent brings out: n-gram coverage over a rolling window of games."""

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

_MOVE_BYTES: Final = 8


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
