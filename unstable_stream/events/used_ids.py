"""Remember every step that was used, exactly, in memory of the games that are not done with.

A step that comes again must never be used twice, however late it comes. A set of all ids would grow for ever.
But a game whose steps have all been used needs no ids: its number says enough, and numbers that follow each
other are one range. The number of steps of a game is known from its outcome.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from unstable_stream.events.id_sets import DIGEST_TYPE, IndexSet, KeySet, digest_array

_SETTLE_AT: Final = 100_000


class UsedIds:
    """A set of used ids, as digests, each of a numbered game.

    Args:
        by_game: whether outcomes will be told (:meth:`promise`). Without them it keeps 16 bytes for every id,
            for ever: right for a recomputation that ends, or a run without games of its own.
    """

    def __init__(self, *, by_game: bool = False) -> None:
        self._by_game = by_game
        self._closed = IndexSet()
        self._open: dict[int, set[bytes]] = {}
        """Used ids of games of which more may come."""
        self._promised: dict[int, int] = {}
        """The number of steps of such a game, once its outcome is known."""
        self._unknown: KeySet[np.bytes_] = KeySet()
        """Ids whose game is not known: from recorded updates."""
        self._explained: list[bytes] = []
        """Those of them whose game is known by now."""

    def add(self, used: Iterable[tuple[bytes, int]]) -> None:
        """Add ids with their games."""
        if not self._by_game:
            self.add_unknown([key for key, _ in used])
            return
        for key, game in used:
            if game not in self._closed:
                self._open.setdefault(game, set()).add(key)
                self._close_if_done(game)

    def add_unknown(self, keys: Sequence[bytes]) -> None:
        """Add ids whose games will be known when they, or the outcomes, come."""
        known = self.among_unknown(keys)
        self._unknown.add(digest_array(key for key in dict.fromkeys(keys) if key not in known))

    def among(self, keys: Sequence[bytes], games: Sequence[int]) -> set[bytes]:
        """Return which of ``keys``, each of one of ``games``, were used."""
        found = self.among_unknown(keys)
        if not self._by_game:
            return found
        if found:
            self._explain((key, game) for key, game in zip(keys, games, strict=True) if key in found)
        for key, game in zip(keys, games, strict=True):
            if game in self._closed or key in self._open.get(game, ()):
                found.add(key)
        return found

    def among_unknown(self, keys: Sequence[bytes]) -> set[bytes]:
        """Return which of ``keys`` were added without a game."""
        if not len(self._unknown) or not keys:
            return set()
        hits = np.flatnonzero(self._unknown.contains(digest_array(keys)))
        return {keys[index] for index in hits.tolist()}

    def promise(self, game: int, keys: Sequence[bytes]) -> None:
        """Take in that a game gives just these steps; of two outcomes of one game the first counts."""
        if not self._by_game or game in self._promised or game in self._closed:
            return
        self._promised[game] = len(keys)
        self._explain((key, game) for key in self.among_unknown(keys))
        self._close_if_done(game)

    def settle(self) -> None:
        """Give up the ids without a game whose games have become known."""
        if self._explained:
            self._unknown = self._unknown.without(KeySet(digest_array(self._explained)))
            self._explained.clear()

    def _explain(self, used: Iterable[tuple[bytes, int]]) -> None:
        pairs = list(used)
        self.add(pairs)
        self._explained += [key for key, _ in pairs]
        if len(self._explained) >= _SETTLE_AT:
            self.settle()

    def _close_if_done(self, game: int) -> None:
        promised = self._promised.get(game)
        if promised is not None and len(self._open.get(game, ())) >= promised:
            self._closed.add(game)
            self._open.pop(game, None)
            del self._promised[game]

    def entries(self) -> int:
        """Return how many numbers and ids it holds."""
        ids = sum(len(keys) for keys in self._open.values())
        return 2 * len(self._closed.ranges()) + ids + len(self._promised) + len(self._unknown)

    @property
    def by_game(self) -> bool:
        """Whether outcomes are told."""
        return self._by_game

    def state(self) -> dict[str, Any]:
        """Return it as JSON-able values; :meth:`restored` takes them."""
        self.settle()
        return {
            "closed": self._closed.ranges(),
            "open": {str(game): sorted(key.hex() for key in keys) for game, keys in self._open.items()},
            "promised": {str(game): count for game, count in self._promised.items()},
            "unknown": [key.hex() for key in self._unknown.merged().tolist()] if len(self._unknown) else [],
        }

    @classmethod
    def restored(cls, state: dict[str, Any]) -> "UsedIds":
        """Return what :meth:`state` described."""
        made = cls(by_game=True)
        made._closed = IndexSet((start, stop) for start, stop in state["closed"])
        made._open = {int(game): {bytes.fromhex(key) for key in keys} for game, keys in state["open"].items()}
        made._promised = {int(game): count for game, count in state["promised"].items()}
        made._unknown.add(np.array([bytes.fromhex(key) for key in state["unknown"]], dtype=DIGEST_TYPE))
        return made
