"""The position of each partition, as the relation ``positions`` keeps it."""

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from unstable_stream.archive.shared.relations import POSITIONS, as_rows, first_number
from unstable_stream.archive.shared.table import SharedTable, TableFile
from unstable_stream.archive.writing import LogPartition
from unstable_stream.errors import ArchiveBusyError

_OFFSET_BITS: Final = 40


class WriterStanding(NamedTuple):
    """The position of a partition; of two the larger is the later one."""

    mark: int
    """The number of the table's application transaction; it only grows. Its lower bits are the offset, those
    above count how often an older package had set the position back.
    """
    slot: int

    @property
    def next_offset(self) -> int:
        """The offset of the next record to archive."""
        return self.mark & (1 << _OFFSET_BITS) - 1

    def moved_to(self, next_offset: int) -> "WriterStanding":
        """Return the standing with another offset."""
        return WriterStanding(self.mark - self.next_offset + next_offset, self.slot)

    @property
    def first_number(self) -> int:
        """The record number of offset 0."""
        return first_number(self.slot)


def position_name(place: LogPartition) -> str:
    """Return the name of the application transaction of a partition."""
    return f"{place.topic}/{place.partition}/{place.log_id}"


def read_standings(table: SharedTable) -> dict[LogPartition, WriterStanding]:
    """Return the standing of every partition that has one, in the version of the table that is known."""
    found: dict[LogPartition, WriterStanding] = {}
    for file in table.files(POSITIONS):
        # ``Any``: the values of a row.
        rows: list[dict[str, Any]] = table.read(file)[POSITIONS].to_pylist()
        for row in rows:
            place = LogPartition(row["log_id"], row["topic"], row["partition"])
            standing = WriterStanding(row["times_set_back"] << _OFFSET_BITS | row["next_offset"], row["slot"])
            if place not in found or standing > found[place]:
                found[place] = standing
    return found


def write_standings(table: SharedTable, standings: Mapping[LogPartition, WriterStanding]) -> TableFile:
    """Write a file with these standings."""
    rows = [
        {
            **place._asdict(),
            "slot": standing.slot,
            "times_set_back": standing.mark >> _OFFSET_BITS,
            "next_offset": standing.next_offset,
        }
        for place, standing in standings.items()
    ]
    return table.write(POSITIONS, as_rows(POSITIONS, rows))


def give_slots(
    table: SharedTable, places: Collection[LogPartition], timeout_s: float
) -> dict[LogPartition, WriterStanding]:
    """Give a slot to each of these partitions that has none; return all standings then.

    Raises:
        ArchiveBusyError: others committed all the time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        version = table.refresh()
        standings = read_standings(table)
        given: dict[LogPartition, WriterStanding] = {}
        for place in sorted(set(places) - standings.keys()):
            given[place] = WriterStanding(0, _next_slot([*standings.values(), *given.values()]))
        if not given or table.commit([write_standings(table, given)], upon=version):
            return {**standings, **given}
        if time.monotonic() >= deadline:
            raise crowded(table, timeout_s)


def crowded(table: SharedTable, timeout_s: float) -> ArchiveBusyError:
    """Return the error of one whose commits were all made after somebody else's."""
    return ArchiveBusyError(
        f"others committed to the archive {table.archive} all the time for {timeout_s:g} s; try again"
    )


def _next_slot(standings: Iterable[WriterStanding]) -> int:
    """Return a slot that no partition has."""
    return max((standing.slot for standing in standings), default=-1) + 1
