"""Compare the events expected from their causes with the recorded ones: by digest, then field by field."""

from collections.abc import Callable
from typing import Final, NamedTuple

from unstable_stream.history.proofs.ledger import RecordIndex
from unstable_stream.history.proofs.reports import SHOWN, Check, Difference
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


class DerivedCheck:
    """Checks expected events against an index of the recorded ones."""

    def __init__(
        self,
        check: Check,
        index: RecordIndex,
        *,
        comparable: Callable[[StoredRecord], bytes] = lambda record: record.value,
        trimmed: bool = False,
        compacted: bool = False,
        replayed: bool = False,
        extras: bool = False,
    ) -> None:
        """Start without expected events.

        Args:
            check: receives the counts and differences.
            index: the recorded events, all of which are in it when the first is compared.
            comparable: returns the compared content of a record, as JSON.
            trimmed: retention has deleted part of the topic, so a missing record may have existed.
            compacted: only the newest record of a key must still exist.
            replayed: an event may exist twice with different content, if one of them is as expected.
            extras: there may be records that are not expected.
        """
        self.check = check
        self.index = index
        self._comparable = comparable
        self._trimmed = trimmed
        self._compacted = compacted
        self._replayed = replayed
        self._extras = extras
        self._ticked = bytearray()
        self._next_of: dict[int, int] = {}
        self._open: list[Expected] = []
        self._absent_newest: dict[str, Expected] = {}
        self._unequal: list[tuple[Expected, int]] = []
        self._unexpected: list[int] = []

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
                self.check.differing += 1
                if len(self._unequal) < SHOWN:
                    self._unequal.append((expected, slot))
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
        elif self._trimmed:
            self.check.gone += 1
        elif self._compacted:
            if expected.key in self._absent_newest:
                self.check.gone += 1
            self._absent_newest[expected.key] = expected
        else:
            self._report_absent(expected)

    def _report_absent(self, expected: Expected) -> None:
        self.check.differs(
            Difference(expected.cause, expected.event_id, f"no record on {self.index.topic} follows from it")
        )

    async def finish(self, log: EventLog) -> None:
        """Compare the rest, and describe the first differences."""
        self._compare()
        for expected in self._absent_newest.values():
            self._report_absent(expected)
        for slot in range(len(self.index)):
            if not self._ticked[slot] and not self._extras:
                self.check.differing += 1
                self._unexpected.append(slot)
        for expected, slot in self._unequal:
            if self.check.wants_more:
                self.check.first.append(await self._explain(log, expected, slot))
        conflicts = [] if self._replayed else self.index.conflicts
        self.check.differing += len(conflicts)
        for later, earlier in conflicts:
            where = self.index.where(earlier)
            await self._show(log, later, f"the same event is at {where} with other content")
        for slot in self._unexpected:
            await self._show(log, slot, "follows from nothing in the log")

    async def _show(self, log: EventLog, slot: int, what: str) -> None:
        """Keep it as one of the first differences, if there is room."""
        if self.check.wants_more:
            record = await self._recorded(log, slot)
            event_id = record.headers.get("ce_id", b"?").decode(errors="replace")
            self.check.first.append(Difference(str(record), event_id, what))

    async def _recorded(self, log: EventLog, slot: int) -> StoredRecord:
        partition, offset = self.index.position(slot)
        return await read_record(log, TopicPartition(self.index.topic, partition), offset)

    async def _explain(self, log: EventLog, expected: Expected, slot: int) -> Difference:
        record = await self._recorded(log, slot)
        where, source = str(record), f"what follows from {expected.cause}"
        return Difference.between(
            where, expected.event_id, self._comparable(record), expected.body(), source=source
        ) or Difference(where, expected.event_id, "has the right values in other bytes")
