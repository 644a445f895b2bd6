"""Measure the new play that each opponent brings out: n-gram coverage over a rolling window of games."""

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Sequence

__all__ = ["ExplorationTracker"]


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
        self._games: dict[str, deque[frozenset[bytes]]] = {}
        self._counts: dict[str, Counter[bytes]] = {}
        self._novelty: dict[tuple[str, str], deque[float]] = {}

    def add(self, env_id: str, opponents: Iterable[str], actions: Sequence[str]) -> float | None:
        """Take a game in; return its novelty, ``None`` for a game without moves."""
        if not actions:
            return None
        grams = self._grams(actions)
        counts = self._counts.setdefault(env_id, Counter())
        games = self._games.setdefault(env_id, deque())
        novelty = sum(1 for gram in grams if gram not in counts) / len(grams)
        games.append(grams)
        counts.update(grams)
        if len(games) > self.window:
            for gram in games.popleft():
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

    def _grams(self, actions: Sequence[str]) -> frozenset[bytes]:
        n = min(self.n, len(actions))
        # Digests, because one free-text action may be kilobytes; length prefixes keep joins apart.
        moves = [
            hashlib.blake2b(action.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            for action in actions
        ]
        return frozenset(b"".join(moves[i : i + n]) for i in range(len(moves) - n + 1))
