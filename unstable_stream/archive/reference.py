"""Every view and table that a query of the archive can read, with the meaning of its columns."""

from typing import Final, NamedTuple

from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.store import SCHEMA_VERSION
from unstable_stream.archive.tables import TABLES
from unstable_stream.archive.view_files import load_views

__all__ = ["ArchiveRelation", "relations"]

_POSITIONS: Final = {
    "log_id": "The log.",
    "topic": "Topic.",
    "partition": "Partition of the topic.",
    "next_offset": "Offset of the next record to archive.",
}
_MISSING: Final = {
    "log_id": "The log.",
    "topic": "Topic.",
    "partition": "Partition of the topic.",
    "first_offset": "The first missing offset.",
    "next_offset": "The offset after the last missing one.",
    "since_ms": "Time of the newest record that was archived before, Unix milliseconds; `NULL`: none.",
}
_DROPPED: Final = {
    "run_id": "The run.",
    "name": "Its display name.",
    "started_at": "UTC.",
    "dropped_at": "UTC.",
    "records": "The number of records that were taken out.",
}
_VERSION: Final = {
    "version": f"Of the tables; {SCHEMA_VERSION} now.",
    "package_version": "The unstable_stream that last changed the views.",
    "views_digest": "Tells whether the tables and views are those of the package.",
    "archive_id": "Names the archive's consumer group on the log: `archiver-` and this.",
    "next_record": "The next `record_number`; none is used twice.",
    "traced_from": "Records before this number were archived by an older package; their typed rows have no "
    "`record_number`.",
}


class ArchiveRelation(NamedTuple):
    """A table or view, as documented."""

    name: str
    kind: str
    """``table`` or ``view``."""
    doc: str
    columns: dict[str, str]
    """Column name to meaning and unit."""
    example: str = ""
    """A query of it."""


def relations() -> tuple[ArchiveRelation, ...]:
    """Return everything a query can read, views first: they answer most questions."""
    views = [ArchiveRelation(it.name, "view", it.doc, it.columns, it.example) for it in load_views()]
    tables = [
        ArchiveRelation(table.name, "table", table.doc, {column.name: column.doc for column in table.columns})
        for table in (EVENTS, *TABLES)
    ]
    own = [
        ArchiveRelation(
            "positions", "table", "How far the archive has read each partition of each log.", _POSITIONS
        ),
        ArchiveRelation(
            "missing_records",
            "table",
            "Offsets that the log deleted before they were archived: their records are not here. The view "
            "`missing_of_runs` tells which runs they may be of.",
            _MISSING,
        ),
        ArchiveRelation(
            "dropped_runs",
            "table",
            "Runs that were dropped from this archive: nothing else here is of them, and nothing of them is "
            "archived again.",
            _DROPPED,
        ),
        ArchiveRelation("schema_version", "table", "What wrote this file, one row.", _VERSION),
    ]
    return (*views, *tables, *own)
