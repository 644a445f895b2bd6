"""Know the runs that were dropped from a shared archive, as its writers must.

How often a run was dropped is an application transaction of the table. It is committed together
with what is done to the rows. So a writer needs to look at one number before each commit, and reads the
relation ``dropped_runs`` only when it has changed.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from unstable_stream.archive.shared.relations import DROPPED
from unstable_stream.archive.shared.table import SharedTable

__all__ = ["DROPS", "Dropped", "read_dropped"]

DROPS: Final = "runs-dropped-or-put-back"
"""The name of the application transaction."""


class Dropped(NamedTuple):
    """The runs that were dropped, at one moment."""

    mark: int
    """The number of times that a run was dropped until then."""
    run_ids: Collection[str]


def read_dropped(table: SharedTable) -> Dropped:
    """Return what was dropped in the version of the table that is known."""
    # The number first. If another thread learns of a newer version in between, it is too small, and the
    # caller finds that before it commits.
    mark = table.position(DROPS) or 0
    found: set[str] = set()
    for file in table.files(DROPPED):
        rows = table.read(file, [f"{DROPPED}.run_id"])
        found.update(row["run_id"] for row in rows[DROPPED].to_pylist())
    return Dropped(mark, sorted(found))
