"""How a table is declared: name, type, meaning and origin of each column in one place.

The declarations create the tables, fill them (:mod:`unstable_stream.archive.batch`) and document them
(:mod:`unstable_stream.archive.reference`), so the three cannot disagree.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from unstable_stream.events import Event

__all__ = ["Column", "Item", "Source", "Table", "items_of", "json_text"]

Source: TypeAlias = str | Callable[[Any], object]
"""A dotted attribute path of the row's object, or a function of it. ``Any``: one table, one row class."""


class Item(NamedTuple):
    """A row that comes from a part of an event, e.g. one turn of a trajectory."""

    event: Any
    item: Any
    place: int
    """0-based position within the event."""


def items_of(field: str) -> Callable[[Any], Iterable[Item]]:
    """Return a function that yields one :class:`Item` for each element of the event's sequence ``field``."""

    def explode(event: Any) -> Iterable[Item]:
        return [Item(event, item, index) for index, item in enumerate(getattr(event, field))]

    return explode


def json_text(value: object) -> str:
    """Return ``value`` as JSON text; numbers JSON does not know become ``null``."""
    return msgspec.json.encode(value).decode()


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    sql_type: str
    """DuckDB's name of the type, one of the keys of ``batch.ARROW_TYPES``."""
    doc: str
    """Meaning, unit, and what ``NULL`` stands for if it can be ``NULL``."""
    source: Source = ""
    """Where the value comes from; by default the attribute of the column's name."""
    packed: bool = False
    """The source gives bytes: a packed array (:mod:`unstable_stream.events.arrays`), or UTF-8 for text."""

    def getter(self) -> Callable[[Any], object]:
        """Return the function that takes the column's value from a row's object."""
        if callable(self.source):
            return self.source
        return attrgetter(self.source or self.name)

    @property
    def quoted(self) -> str:
        """The name as it must be written in SQL."""
        return f'"{self.name}"'


@dataclass(frozen=True, slots=True)
class Table:
    """One typed table, filled from one or more event families."""

    name: str
    doc: str
    events: tuple[type[Event], ...]
    columns: tuple[Column, ...]
    explode: Callable[[Any], Iterable[object]] | None = None
    """Rows of an event; ``None``: the event itself is the one row."""

    def create_sql(self) -> str:
        """Return the statement that creates the table. No indexes: they would cost more than they save."""
        columns = ", ".join(f"{column.quoted} {column.sql_type}" for column in self.columns)
        return f'CREATE TABLE IF NOT EXISTS "{self.name}" ({columns})'
