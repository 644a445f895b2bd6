"""The position of each partition, as the relation ``positions`` keeps it."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from unstable_stream.archive.newest import Newest, decode_newest, encode_newest
from unstable_stream.archive.shared.relations import POSITIONS, Place, as_rows, first_number
from unstable_stream.archive.shared.table import SharedTable, TableFile

__all__ = ["Standing", "next_slot", "position_name", "read_standings", "write_standings"]

_OFFSET_BITS: Final = 40


class Standing(NamedTuple):
    """The position of a partition; of two the larger is the later one."""

    times_set_back: int
    """The number of times that records were taken out: the same offset is then reached twice."""
    next_offset: int
    """The offset of the next record to archive."""
    slot: int
    newest: Newest
    """The last archived records by content."""

    @property
    def mark(self) -> int:
        """The number of the table's application transaction; it only grows."""
        return self.times_set_back << _OFFSET_BITS | self.next_offset

    @property
    def first_number(self) -> int:
        """The record number of offset 0."""
        return first_number(self.slot)

    @property
    def end_number(self) -> int:
        """The number after the largest that a record of the partition can have."""
        return first_number(self.slot + 1)


def position_name(place: Place) -> str:
    """Return the name of the application transaction of a partition."""
    return f"{place.topic}/{place.partition}/{place.log_id}"


def read_standings(table: SharedTable) -> dict[Place, Standing]:
    """Return the standing of every partition that has one, in the version of the table that is known."""
    found: dict[Place, Standing] = {}
    for file in table.files(POSITIONS):
        # ``Any``: the values of a row.
        rows: list[dict[str, Any]] = table.read(file)[POSITIONS].to_pylist()
        for row in rows:
            place = Place(row["log_id"], row["topic"], row["partition"])
            standing = Standing(
                row["times_set_back"], row["next_offset"], row["slot"], decode_newest(row["newest"])
            )
            if place not in found or standing[:2] > found[place][:2]:
                found[place] = standing
    return found


def write_standings(table: SharedTable, standings: Mapping[Place, Standing]) -> TableFile:
    """Write a file with these standings."""
    rows = [
        {
            **place._asdict(),
            "slot": standing.slot,
            "times_set_back": standing.times_set_back,
            "next_offset": standing.next_offset,
            "newest": encode_newest(standing.newest),
        }
        for place, standing in standings.items()
    ]
    return table.write(POSITIONS, as_rows(POSITIONS, rows))


def next_slot(standings: Iterable[Standing]) -> int:
    """Return a slot that no partition has."""
    return max((standing.slot for standing in standings), default=-1) + 1
