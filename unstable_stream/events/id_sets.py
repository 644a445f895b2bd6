"""Sets and tables of millions of ids, in a few bytes each.

There are three structures, because three questions differ:

- :class:`KeySet`: "was this key there before?", while keys keep coming, in any order. The step buffer keeps
  16-byte digests of ids: two ids with one digest would lose a step, and at 128 bits there are none. The
  archive keeps 8-byte hashes of its events: an equal hash is a suspicion there, looked up in the file.
- :class:`IdTable`: "which record was it?", after all have come: an id leads to the number it was added under.
- :class:`IndexSet`: "was this number there before?", where numbers arrive roughly in order, as games do: a
  few ranges stand for all of them, and a fold's state stays as small as the number of games in flight.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES: Final = 16
DIGEST_TYPE: Final = np.dtype(f"S{DIGEST_BYTES}")
"""Of an array of digests. NumPy pads such items with zero bytes when it compares. That does no harm: all have
their full length."""

_DIGEST: Final = hashlib.blake2b(digest_size=DIGEST_BYTES)

KeyT = TypeVar("KeyT", np.uint64, np.bytes_)


def digest(data: bytes) -> bytes:
    """Return 16 bytes that differ for different data."""
    hashed = _DIGEST.copy()  # half the time of making one
    hashed.update(data)
    return hashed.digest()


def body_digest(body: bytes) -> bytes:
    """Return 16 bytes that differ for different bodies: of a long one in half the time of :func:`digest`.

    Processors have instructions for SHA-256. It is for comparing within a process: what is saved are digests.
    """
    return hashlib.sha256(body).digest()[:DIGEST_BYTES]


def digest_array(digests: Iterable[bytes]) -> NDArray[np.bytes_]:
    """Return digests as ``S16[n]``."""
    return np.frombuffer(b"".join(digests), dtype=DIGEST_TYPE)


class KeySet(Generic[KeyT]):
    """A set of keys that only grows: a few sorted arrays, each at least twice as long as the next.

    An insert of n into N costs O(n log N) amortised, a lookup O(n log² N); there is no object per member.
    """

    def __init__(self, keys: NDArray[KeyT] | None = None) -> None:
        """Start with ``keys``: all that is ever added has their type."""
        self._levels: list[NDArray[KeyT]] = []
        if keys is not None:
            self.add(keys)

    def __len__(self) -> int:
        return sum(len(level) for level in self._levels)

    def add(self, keys: NDArray[KeyT]) -> None:
        """Add keys; adding one twice does no harm, but it is kept and counted twice."""
        if len(keys) == 0:
            return
        self._levels.append(np.sort(keys))
        while len(self._levels) > 1 and len(self._levels[-2]) < 2 * len(self._levels[-1]):
            last = self._levels.pop()
            # A stable sort of two sorted halves is a merge.
            self._levels[-1] = np.sort(np.concatenate((self._levels[-1], last)), kind="stable")

    def merged(self) -> NDArray[KeyT]:
        """Return all keys in order; of an empty set nothing can be returned."""
        return np.sort(np.concatenate(self._levels), kind="stable")

    def without(self, others: "KeySet[KeyT]") -> "KeySet[KeyT]":
        """Return a set of those members that are not in ``others``."""
        made: KeySet[KeyT] = KeySet()
        for level in self._levels:
            made.add(level[~others.contains(level)])
        return made

    def contains(self, keys: NDArray[KeyT]) -> NDArray[np.bool_]:
        """Return ``bool[n]``: which of ``keys`` are members."""
        found = np.zeros(len(keys), dtype=np.bool_)
        for level in self._levels:
            places = np.searchsorted(level, keys)
            places[places == len(level)] = 0
            found |= level[places] == keys
        return found


class IdTable:
    """Ids to the numbers in which they were added. Fill it, then :meth:`seal` it, then look up."""

    def __init__(self) -> None:
        self._added = bytearray()
        self._ids: NDArray[np.bytes_] = np.empty(0, dtype=DIGEST_TYPE)
        self._order: NDArray[np.intp] = np.empty(0, dtype=np.intp)

    def add(self, event_id: str) -> None:
        """Add one id; one that was added before gets a number of its own too."""
        self._added += digest(event_id.encode())

    def seal(self) -> None:
        """Sort; nothing may be added afterwards."""
        ids = np.frombuffer(bytes(self._added), dtype=DIGEST_TYPE)
        # Stable: of several equal ids, the first that was added comes first.
        self._order = np.argsort(ids, kind="stable")
        self._ids = ids[self._order]
        self._added = bytearray()

    def find(self, event_ids: Sequence[str]) -> list[int]:
        """Return the number of each id, the first it was added under; -1 for a stranger."""
        if not len(self._ids) or not event_ids:
            return [-1] * len(event_ids)
        wanted = digest_array(digest(event_id.encode()) for event_id in event_ids)
        places = np.minimum(np.searchsorted(self._ids, wanted), len(self._ids) - 1)
        numbers: list[int] = np.where(self._ids[places] == wanted, self._order[places], -1).tolist()
        return numbers

    def repeated(self) -> Iterator[tuple[int, int]]:
        """Yield pairs of numbers of one id: a later, and the one before it."""
        for place in np.flatnonzero(self._ids[1:] == self._ids[:-1]).tolist():
            yield int(self._order[place + 1]), int(self._order[place])


class IndexSet:
    """Whole numbers kept as sorted, disjoint, non-adjacent half-open ranges."""

    __slots__ = ("_starts", "_stops")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """Start from what :meth:`ranges` returned.

        Raises:
            ValueError: ranges that are empty, overlapping, adjacent or out of order.
        """
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in ranges:
            if start >= stop or (self._stops and start <= self._stops[-1]):
                raise ValueError(f"range {start}..{stop} is empty or not after the ranges before it")
            self._starts.append(start)
            self._stops.append(stop)

    def __contains__(self, index: int) -> bool:
        place = bisect_right(self._starts, index) - 1
        return place >= 0 and index < self._stops[place]

    def __len__(self) -> int:
        return sum(self._stops) - sum(self._starts)

    def add(self, index: int) -> bool:
        """Add ``index``; return whether it was new."""
        starts, stops = self._starts, self._stops
        after = bisect_right(starts, index)
        before = after - 1
        if before >= 0 and index < stops[before]:
            return False
        joins_before = before >= 0 and stops[before] == index
        joins_after = after < len(starts) and starts[after] == index + 1
        if joins_before and joins_after:
            stops[before] = stops.pop(after)
            starts.pop(after)
        elif joins_before:
            stops[before] = index + 1
        elif joins_after:
            starts[after] = index
        else:
            starts.insert(after, index)
            stops.insert(after, index + 1)
        return True

    def ranges(self) -> list[tuple[int, int]]:
        """Return the half-open ranges, in order: a JSON-able picture of the set."""
        return list(zip(self._starts, self._stops, strict=True))
