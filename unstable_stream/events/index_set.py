"""A set of whole numbers that arrive roughly in order, in memory proportional to its gaps.

Folds use it to recognise games they have seen: indices count up within a run and split, so what has
been seen is a few contiguous ranges (a watermark, and stragglers of the games still in flight),
however long the run is.
"""

from bisect import bisect_right
from collections.abc import Iterable

__all__ = ["IndexSet"]


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
