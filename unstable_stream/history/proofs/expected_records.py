"""Compare the events expected from their causes with the recorded ones: by digest, then field by field."""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from unstable_stream.events import Event, encode_event
from unstable_stream.events.id_sets import body_digest
from unstable_stream.history.proofs.ledger import RecordIndex
from unstable_stream.history.proofs.reports import SHOWN, Check
from unstable_stream.log.port import EventLog, StoredRecord, TopicPartition
from unstable_stream.log.reading import read_record

_BATCH: Final = 1000
# Events are looked up in the index together: sorting in C is faster than searching in Python.


class Expected(NamedTuple):
    """A record that is expected from its causes."""

    event_id: str
    digest: bytes | None
    """Digest of the compared content; ``None``: it cannot be recomputed, so any content is accepted."""
    body: Callable[[], bytes]
    """Returns the compared content as JSON; called only for differences."""
    cause: str
    """``topic[partition]@offset`` of its cause."""
    due: bool = True
    """True if the record must exist now; otherwise a missing record is pending."""
    key: str = ""
    """Record key; needed for compacted topics."""

    @classmethod
    def of(cls, event: Event, cause: StoredRecord, *, due: bool = True) -> "Expected":
        """Return the record of an event, whole."""
        body = encode_event(event)
        return cls(event.event_id, body_digest(body), lambda: body, str(cause), due, event.key)


@dataclass
class DerivedCheck:
    """Checks expected events against an index of the recorded ones."""

    check: Check
    """Receives the counts and differences."""
    index: RecordIndex
    """The recorded events, all of which are in it when the first is compared."""
    comparable: Callable[[StoredRecord], bytes] = attrgetter("value")
    """Returns the compared content of a record, as JSON."""
    trimmed: bool = False
    """Retention has deleted part of the topic, so a missing record may have existed."""
    compacted: bool = False
    """Only the newest record of a key must still exist."""
    replayed: bool = False
    """An event may exist twice with different content, if one of them is as expected."""
    extras: bool = False
    """There may be records that are not expected."""
    _ticked: bytearray = field(default_factory=bytearray, init=False)
    _next_of: dict[int, int] = field(default_factory=dict, init=False)
    _open: list[Expected] = field(default_factory=list, init=False)
    _absent_newest: dict[str, Expected] = field(default_factory=dict, init=False)
    _unequal: list[tuple[Expected, int]] = field(default_factory=list, init=False)

    def expect(self, expected: Expected) -> None:
        """Add one expected event."""
        self._open.append(expected)
        if len(self._open) >= _BATCH:
            self._compare()

    def _compare(self) -> None:
        if not self._ticked:
            self.index.seal()
            self._ticked = bytearray(len(self.index))
            repeated = (*self.index.duplicates, *self.index.conflicts)
            self._next_of = {earlier: later for later, earlier in repeated}
        slots = self.index.find([expected.event_id for expected in self._open])
        for expected, slot in zip(self._open, slots, strict=True):
            if slot < 0:
                self._apply_absent(expected)
                continue
            if self._absent_newest.pop(expected.key, None) is not None:
                self.check.gone += 1
            self.check.compared += expected.digest is not None
            if not self._tick(expected, slot) and expected.digest is not None:
                if len(self._unequal) < SHOWN:
                    self._unequal.append((expected, slot))
                else:
                    self.check.differing += 1
        self._open.clear()

    def _tick(self, expected: Expected, slot: int) -> bool:
        """Mark all records of the event as checked; return whether one of them is as expected.

        A game whose worker died may have been played twice, so that its records come in pairs.
        """
        equal = False
        current: int | None = slot
        while current is not None:
            self._ticked[current] = 1
            equal = equal or self.index.body_digest(current) == expected.digest
            current = self._next_of.get(current)
        return equal

    def _apply_absent(self, expected: Expected) -> None:
        if not expected.due:
            self.check.pending += 1
        elif self.trimmed:
            self.check.gone += 1
        elif self.compacted:
            if expected.key in self._absent_newest:
                self.check.gone += 1
            self._absent_newest[expected.key] = expected
        else:
            self._report_absent(expected)

    def _report_absent(self, expected: Expected) -> None:
        what = f"no record on {self.index.topic} follows from it"
        self.check.differs(expected.cause, expected.event_id, what)

    async def finish(self, log: EventLog) -> None:
        """Compare the rest, and describe the first differences."""
        self._compare()
        for expected in self._absent_newest.values():
            self._report_absent(expected)
        for expected, slot in self._unequal:
            record = await self._recorded(log, slot)
            bodies, source = (
                (self.comparable(record), expected.body()),
                f"what follows from {expected.cause}",
            )
            if not self.check.compare(str(record), expected.event_id, *bodies, source=source):
                self.check.differs(str(record), expected.event_id, "has the right values in other bytes")
        for later, earlier in () if self.replayed else self.index.conflicts:
            where = self.index.where(earlier)
            await self._report(log, later, f"the same event is at {where} with other content")
        for slot, ticked in () if self.extras else enumerate(self._ticked):
            if not ticked:
                await self._report(log, slot, "follows from nothing in the log")

    async def _report(self, log: EventLog, slot: int, what: str) -> None:
        """Count a record that should not be there; describe it if it is one of the first."""
        if not self.check.wants_more:
            self.check.differing += 1
            return
        record = await self._recorded(log, slot)
        self.check.differs(str(record), record.headers.get("ce_id", b"?").decode(errors="replace"), what)

    async def _recorded(self, log: EventLog, slot: int) -> StoredRecord:
        partition, offset = self.index.position(slot)
        return await read_record(log, TopicPartition(self.index.topic, partition), offset)
