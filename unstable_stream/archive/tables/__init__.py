"""List the typed tables. A new event family needs one :class:`Table` here and nothing elsewhere."""

from typing import Final

from unstable_stream.archive.tables import games, operations, training
from unstable_stream.archive.tables.declare import Column, Table, traced

__all__ = ["TABLES", "Column", "Table"]

TABLES: Final[tuple[Table, ...]] = tuple(
    map(traced, (*operations.TABLES[:1], *games.TABLES, *training.TABLES, *operations.TABLES[1:]))
)
"""Every typed table, in the order they are documented."""
