"""Every view and table that a query can read, with its columns' meaning, and questions people ask of them."""

from typing import Final, NamedTuple

from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.store import SCHEMA_VERSION
from unstable_stream.archive.tables import DROPPED, MISSING, POSITIONS, TABLES
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


class Example(NamedTuple):
    """A question that people ask, and the query that answers it; tests run each as it is."""

    question: str
    sql: str


EXAMPLES: Final = (
    *(Example(view.question, view.example) for view in load_views() if view.question),
    Example(
        "What do models write in games they lose?",
        "SELECT t.game_id, u.turn_index, u.completion FROM turns AS u JOIN trajectories AS t "
        "USING (trajectory_id) WHERE t.reward < 0 LIMIT 5",
    ),
    Example(
        "Which moves does the environment refuse most?",
        "SELECT action, count(*) AS times FROM actions WHERE NOT valid "
        "GROUP BY action ORDER BY times DESC LIMIT 10",
    ),
    Example(
        "How did a metric develop?",
        "SELECT update, value FROM metrics WHERE name = 'learner/loss' ORDER BY update",
    ),
    Example(
        "What did the log hold last?",
        'SELECT topic, "partition", "offset", type, value->>\'$.model_uid\' AS model_uid FROM events '
        "ORDER BY occurred_at DESC LIMIT 5",
    ),
)


def relations() -> tuple[ArchiveRelation, ...]:
    """Return everything a query can read, views first: they answer most questions."""
    views = [ArchiveRelation(it.name, "view", it.doc, it.columns, it.example) for it in load_views()]
    tables = [
        ArchiveRelation(table.name, "table", table.doc, {column.name: column.doc for column in table.columns})
        for table in (EVENTS, *TABLES, POSITIONS, MISSING, DROPPED)
    ]
    version = ArchiveRelation("schema_version", "table", "What wrote this file, one row.", _VERSION)
    return (*views, *tables, version)
