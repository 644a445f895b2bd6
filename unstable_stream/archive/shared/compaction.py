"""Merge small files: each batch leaves one for every relation, and a reader opens all that it asks for.

Files of about one size are merged once there are several of them, so a row is written anew a few times until
it is in a file that is large enough, however long the archive grows. The old files are deleted hours later
(:meth:`~.table.SharedTable.vacuum`): somebody may still read them.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from unstable_stream.archive.shared.relations import NUMBER, POSITIONS, RELATIONS, conformed
from unstable_stream.archive.shared.standing import read_standings, write_standings
from unstable_stream.archive.shared.table import SharedTable, TableFile

_LARGE: Final = 32 * 1024 * 1024
"""Bytes. A merge has its rows in memory, several times as large as the file."""
_SMALLEST: Final = 64 * 1024
_TIER: Final = 4
"""The files of the next tier are so many times as large."""
_SEVERAL: Final = 8


class Compacted(NamedTuple):
    """The number of files that were merged, and of those they were merged into."""

    before: int
    after: int


def compact(table: SharedTable, *, everything: bool = False) -> Compacted:
    """Merge small files, each group in a commit of its own.

    Args:
        table: the table.
        everything: merge whatever is small, however few.

    Raises:
        ArchiveError: the table cannot be read or written.
    """
    table.refresh()
    before, after = 0, 0
    for relation in RELATIONS:
        for group in list(_groups(table.files(relation), everything)):
            if _merge(table, relation, group):
                before += len(group)
                after += 1
    return Compacted(before, after)


def _groups(files: Sequence[TableFile], everything: bool) -> Iterator[list[TableFile]]:
    """Yield files to merge, together no larger than a large file."""
    tiers: dict[int, list[TableFile]] = {}
    for file in files:
        if file.size < _LARGE / 2:
            tier = 0 if everything else max(0, int(math.log(file.size / _SMALLEST, _TIER)))
            tiers.setdefault(tier, []).append(file)
    for alike in tiers.values():
        if len(alike) < (2 if everything else _SEVERAL):
            continue
        gathered: list[TableFile] = []
        for file in alike:
            if gathered and sum(each.size for each in gathered) + file.size > _LARGE:
                yield gathered
                gathered = []
            gathered.append(file)
        yield gathered


def _merge(table: SharedTable, relation: str, group: Sequence[TableFile]) -> bool:
    """Merge files into one; ``False``: this was not needed, or cannot be done here."""
    if len(group) < 2:
        return False
    # Of a version that may be newer than the one that the group was found in, but has all of it.
    version = table.refresh()
    if not set(group) <= set(table.files(relation)):
        return False
    if relation == POSITIONS:
        # Of each partition the last row counts.
        group = table.files(POSITIONS)
        merged = write_standings(table, read_standings(table))
    else:
        parts = [conformed(relation, table.read(file)) for file in group]
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            return False  # a newer package wrote some, and will merge them
        rows = pa.concat_tables(whole)
        merged = table.write(relation, rows.sort_by(NUMBER))
    while not table.commit([merged], group, upon=version, changes=False):
        version = table.refresh()
        if not set(group) <= set(table.files(relation)):
            return False  # another archiver merged them, or took records out
    table.refresh()
    return True
