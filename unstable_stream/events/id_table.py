"""Millions of event ids in 16 bytes each, looked up a thousand at a time."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["DIGEST_BYTES", "IdTable", "digest"]

DIGEST_BYTES: Final = 16


def digest(data: bytes) -> bytes:
    """Return 16 bytes that differ for different data."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


class IdTable:
    """Ids to the numbers in which they were added. Fill it, then :meth:`seal` it, then look up."""

    def __init__(self) -> None:
        self._added = bytearray()
        self._ids: NDArray[np.bytes_] = np.empty(0, dtype=f"S{DIGEST_BYTES}")
        self._order: NDArray[np.intp] = np.empty(0, dtype=np.intp)

    def add(self, event_id: str) -> None:
        """Add one id; one that was added before gets a number of its own too."""
        self._added += digest(event_id.encode())

    def seal(self) -> None:
        """Sort; nothing may be added afterwards."""
        ids = np.frombuffer(bytes(self._added), dtype=f"S{DIGEST_BYTES}")
        # Stable: of several equal ids, the first that was added comes first.
        self._order = np.argsort(ids, kind="stable")
        self._ids = ids[self._order]
        self._added = bytearray()

    def find(self, event_ids: Sequence[str]) -> list[int]:
        """Return the number of each id, the first it was added under; -1 for a stranger."""
        if not len(self._ids) or not event_ids:
            return [-1] * len(event_ids)
        wanted = np.frombuffer(
            b"".join(digest(event_id.encode()) for event_id in event_ids), dtype=f"S{DIGEST_BYTES}"
        )
        places = np.minimum(np.searchsorted(self._ids, wanted), len(self._ids) - 1)
        numbers: list[int] = np.where(self._ids[places] == wanted, self._order[places], -1).tolist()
        return numbers

    def repeated(self) -> Iterator[tuple[int, int]]:
        """Yield pairs of numbers of one id: a later, and the one before it."""
        for place in np.flatnonzero(self._ids[1:] == self._ids[:-1]).tolist():
            yield int(self._order[place + 1]), int(self._order[place])
