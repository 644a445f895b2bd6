"""Where each event of a topic is and what its bytes hash to, for millions of events: 44 bytes each."""

import hashlib
from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from unstable_stream.eventlog.port import StoredRecord, TopicPartition

__all__ = ["DIGEST_BYTES", "RecordIndex", "digest"]

DIGEST_BYTES: Final = 16


def digest(data: bytes) -> bytes:
    """Return 16 bytes that differ for different data."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


class RecordIndex:
    """Event ids to positions and digests. Fill it with :meth:`add`, then :meth:`seal`, then look up.

    A *slot* is a number from 0 that stands for one record.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._id_bytes = bytearray()
        self._body_bytes = bytearray()
        self._partitions = array("i")
        self._offsets = array("q")
        self._ids: NDArray[np.bytes_] = np.empty(0, dtype=f"S{DIGEST_BYTES}")
        self._order: NDArray[np.intp] = np.empty(0, dtype=np.intp)
        self.duplicates: list[tuple[int, int]] = []
        """Slots of records whose event id came before with the same content, and of that one before."""
        self.conflicts: list[tuple[int, int]] = []
        """The same of those with other content."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, record: StoredRecord, event_id: str, body_digest: bytes) -> None:
        """Take one record in."""
        self._id_bytes += digest(event_id.encode())
        self._body_bytes += body_digest
        self._partitions.append(record.partition)
        self._offsets.append(record.offset)

    def seal(self) -> None:
        """Sort; nothing may be added afterwards."""
        ids = np.frombuffer(bytes(self._id_bytes), dtype=f"S{DIGEST_BYTES}")
        # Stable: of several records with one id, the first in order of arrival comes first.
        self._order = np.argsort(ids, kind="stable")
        self._ids = ids[self._order]
        self._id_bytes = bytearray()
        for place in np.flatnonzero(self._ids[1:] == self._ids[:-1]).tolist():
            earlier, later = int(self._order[place]), int(self._order[place + 1])
            same = self.body_digest(earlier) == self.body_digest(later)
            (self.duplicates if same else self.conflicts).append((later, earlier))

    def find(self, event_ids: Sequence[str]) -> list[int]:
        """Return the slot of the first record of each event id, -1 where there is none."""
        if not len(self._ids) or not event_ids:
            return [-1] * len(event_ids)
        wanted = np.frombuffer(
            b"".join(digest(event_id.encode()) for event_id in event_ids), dtype=f"S{DIGEST_BYTES}"
        )
        places = np.minimum(np.searchsorted(self._ids, wanted), len(self._ids) - 1)
        slots: list[int] = np.where(self._ids[places] == wanted, self._order[places], -1).tolist()
        return slots

    def body_digest(self, slot: int) -> bytes:
        """The digest given with the record."""
        return bytes(self._body_bytes[slot * DIGEST_BYTES : (slot + 1) * DIGEST_BYTES])

    def position(self, slot: int) -> tuple[int, int]:
        """Partition and offset of the record."""
        return self._partitions[slot], self._offsets[slot]

    def where(self, slot: int) -> str:
        """``topic[partition]@offset`` of the record."""
        partition, offset = self.position(slot)
        return f"{TopicPartition(self.topic, partition)}@{offset}"
