"""Which event ids the archive holds, in 8 bytes each, without asking the file.

An index on ``event_id`` would cost more than the insert itself, and a scan for every batch grows with the
archive. So the writer keeps the ids' 64-bit hashes in memory. Equal hashes are a suspicion, never a proof:
the writer looks up the few suspects in the file.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["HashSet"]


class HashSet:
    """A growing set of 64-bit hashes: a few sorted arrays, each at least twice as long as the next.

    An insert of n into N costs O(n log N) amortised, a lookup O(n log² N); there is no object per member.
    """

    def __init__(self, hashes: NDArray[np.uint64] | None = None) -> None:
        self._levels: list[NDArray[np.uint64]] = []
        if hashes is not None:
            self.add(hashes)

    def __len__(self) -> int:
        return sum(len(level) for level in self._levels)

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Add hashes; adding one twice does no harm."""
        if len(hashes) == 0:
            return
        self._levels.append(np.sort(hashes))
        while len(self._levels) > 1 and len(self._levels[-2]) < 2 * len(self._levels[-1]):
            last = self._levels.pop()
            # A stable sort of two sorted halves is a merge.
            self._levels[-1] = np.sort(np.concatenate((self._levels[-1], last)), kind="stable")

    def contains(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return ``bool[n]``: which of ``hashes`` are members."""
        found = np.zeros(len(hashes), dtype=np.bool_)
        for level in self._levels:
            places = np.searchsorted(level, hashes)
            places[places == len(level)] = 0
            found |= level[places] == hashes
        return found
