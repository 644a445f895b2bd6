"""List the typed tables. A new event family needs one :class:`TableDefinition` here and nothing elsewhere."""

from typing import Final

from unstable_stream.archive.tables import games, operations, training
from unstable_stream.archive.tables.declare import Column, TableDefinition, traced

__all__ = ["TABLES", "Column", "TableDefinition"]

TABLES: Final[tuple[TableDefinition, ...]] = tuple(
    map(traced, (*operations.TABLES[:1], *games.TABLES, *training.TABLES, *operations.TABLES[1:]))
)
"""Every typed table, in the order they are documented."""
