"""Every view and table that a query of the archive can read, with the meaning of its columns."""

from typing import Final, NamedTuple

from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.store import SCHEMA_VERSION
from unstable_stream.archive.tables import TABLES
from unstable_stream.archive.tables.own import DROPPED, MISSING, POSITIONS
from unstable_stream.archive.view_files import load_views

_VERSION: Final = {
    "version": f"Of the tables; {SCHEMA_VERSION} now.",
    "package_version": "The unstable_stream that last changed the views.",
    "views_digest": "Tells whether the tables and views are those of the package.",
    "archive_id": "Names the archive's consumer group on the log: `archiver-` and this.",
    "next_record": "The next `record_number`; none is used twice.",
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
        for table in (EVENTS, *TABLES, POSITIONS, MISSING, DROPPED)
    ]
    version = ArchiveRelation("schema_version", "table", "What wrote this file, one row.", _VERSION)
    return (*views, *tables, version)
