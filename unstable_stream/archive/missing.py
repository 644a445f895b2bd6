"""Tell which records an archive lacks, because the log deleted them before they were archived."""

from typing import NamedTuple

from unstable_stream.archive.read import query
from unstable_stream.archive_address import ArchiveAddress

__all__ = ["Missing", "missing_in_archive"]


class Missing(NamedTuple):
    """A range of offsets of one partition."""

    topic: str
    partition: int
    first_offset: int
    next_offset: int
    """The offset after the last missing one."""

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.first_offset} to {self.next_offset - 1}"


def missing_in_archive(path: ArchiveAddress, run_id: str | None = None) -> list[Missing]:
    """Return what an archive lacks, or what of it may be of one run; empty if it is whole.

    Raises:
        ArchiveBusyError: another process held the archive past the deadline.
        ArchiveError: there is no archive.
    """
    if run_id is None:
        rows = query(path, f"SELECT {_RANGE} FROM missing_records ORDER BY ALL").rows
    else:
        sql = f"SELECT {_RANGE} FROM missing_of_runs WHERE run_id = ? ORDER BY ALL"
        rows = query(path, sql, [run_id]).rows
    return [Missing(*row) for row in rows]


_RANGE = 'topic, "partition", first_offset, next_offset'
