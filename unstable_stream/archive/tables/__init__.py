"""List the typed tables. A new event needs one :class:`TableDefinition` in ``typed.py``, no more."""

from typing import Final

from unstable_stream.archive.tables.declare import Column, TableDefinition, traced
from unstable_stream.archive.tables.typed import GAMES, OPERATIONS, TRAINING

__all__ = ["TABLES", "Column", "TableDefinition"]

TABLES: Final[tuple[TableDefinition, ...]] = tuple(
    map(traced, (*OPERATIONS[:1], *GAMES, *TRAINING, *OPERATIONS[1:]))
)
"""Every typed table, in the order they are documented."""
