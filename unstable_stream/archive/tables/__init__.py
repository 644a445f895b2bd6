"""List the tables: typed ones, and an archive's notes about itself.

A new event needs one :class:`TableDefinition` in ``typed.py``, no more.
"""

from typing import Final

from unstable_stream.archive.tables.declare import Column, TableDefinition, traced
from unstable_stream.archive.tables.typed import GAMES, OPERATIONS, TRAINING

TABLES: Final[tuple[TableDefinition, ...]] = tuple(
    map(traced, (*OPERATIONS[:1], *GAMES, *TRAINING, *OPERATIONS[1:]))
)
"""Every typed table, in the order they are documented."""

_PARTITION: Final = (
    Column("log_id", "VARCHAR", "The log."),
    Column("topic", "VARCHAR", "Topic."),
    Column("partition", "INTEGER", "Partition of the topic."),
)

POSITIONS: Final = TableDefinition(
    "positions",
    "How far the archive has read each partition of each log.",
    (),
    (*_PARTITION, Column("next_offset", "BIGINT", "Offset of the next record to archive.")),
)

MISSING: Final = TableDefinition(
    "missing_records",
    "Offsets that the log deleted before they were archived: their records are not here. The view "
    "`missing_of_runs` tells which runs they may be of.",
    (),
    (
        *_PARTITION,
        Column("first_offset", "BIGINT", "The first missing offset."),
        Column("next_offset", "BIGINT", "The offset after the last missing one."),
        Column(
            "since_ms",
            "BIGINT",
            "Time of the newest record that was archived before, Unix milliseconds; `NULL`: none.",
        ),
    ),
)

DROPPED: Final = TableDefinition(
    "dropped_runs",
    "Runs that were dropped from this archive: nothing else here is of them, and nothing of them is archived "
    "again.",
    (),
    (
        Column("run_id", "VARCHAR", "The run."),
        Column("name", "VARCHAR", "Its display name."),
        Column("started_at", "TIMESTAMP", "UTC."),
        Column("dropped_at", "TIMESTAMP", "UTC."),
        Column("records", "BIGINT", "The number of records that were taken out."),
    ),
)
