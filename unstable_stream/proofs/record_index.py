"""An index of positions and digests of a topic's events, for millions of events: 44 bytes each."""

from array import array
from collections.abc import Sequence

from unstable_stream.events.id_sets import DIGEST_BYTES, IdTable
from unstable_stream.log.port import TopicPartition

__all__ = ["RecordIndex"]


class RecordIndex:
    """Event ids to positions and digests. Fill it with :meth:`add`, then :meth:`seal`, then look up.

    A *slot* is a number from 0 that stands for one record.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._ids = IdTable()
        self._body_bytes = bytearray()
        self._partitions = array("i")
        self._offsets = array("q")
        self._sealed = False
        self.duplicates: list[tuple[int, int]] = []
        """Slots of repeated records with the same content, and of the records that they repeat."""
        self.conflicts: list[tuple[int, int]] = []
        """The same for repeated event ids with different content."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, partition: int, offset: int, event_id: str, body_digest: bytes) -> int:
        """Take one record in; return its slot."""
        if self._sealed:
            raise ValueError(f"the index of {self.topic} is sealed: {event_id} would never be found")
        self._ids.add(event_id)
        self._body_bytes += body_digest
        self._partitions.append(partition)
        self._offsets.append(offset)
        return len(self._offsets) - 1

    def seal(self) -> None:
        """Sort; nothing may be added afterwards. Doing it again changes nothing."""
        if self._sealed:
            return
        self._sealed = True
        self._ids.seal()
        for later, earlier in self._ids.repeated():
            same = self.body_digest(earlier) == self.body_digest(later)
            (self.duplicates if same else self.conflicts).append((later, earlier))

    def find(self, event_ids: Sequence[str]) -> list[int]:
        """Return the slot of the first record of each event id, -1 where there is none."""
        return self._ids.find(event_ids)

    def body_digest(self, slot: int) -> bytes:
        """Return the digest of the record."""
        return bytes(self._body_bytes[slot * DIGEST_BYTES : (slot + 1) * DIGEST_BYTES])

    def position(self, slot: int) -> tuple[int, int]:
        """Return partition and offset of the record."""
        return self._partitions[slot], self._offsets[slot]

    def where(self, slot: int) -> str:
        """``topic[partition]@offset`` of the record."""
        partition, offset = self.position(slot)
        return f"{TopicPartition(self.topic, partition)}@{offset}"
