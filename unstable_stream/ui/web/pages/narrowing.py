"""Narrow and order a query by what was clicked, and say where the ids in its rows lead.

The address of a query has, beside ``q``: ``sort`` and ``desc`` for the order, and for any column filters
``is.COLUMN=TEXT``, ``null.COLUMN=``, ``from.COLUMN=NUMBER`` and ``below.COLUMN=NUMBER``. Names of columns are
looked up among those of the query and quoted; values are parameters. So nothing of them is read as SQL.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode
from uuid import UUID

from starlette.datastructures import QueryParams

from unstable_stream.archive import query
from unstable_stream.archive.read import Cancel, stream
from unstable_stream.errors import ConfigError
from unstable_stream.events.runs import is_checkpoint_uid
from unstable_stream.ui.web.site import Shelf

_FILTERS: Final = {
    "is": "CAST({} AS VARCHAR) = ${}",
    "null": "{} IS NULL",
    "from": "{} >= CAST(${} AS DOUBLE)",
    "below": "{} < CAST(${} AS DOUBLE)",
}
_WHOLE: Final = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?")
_NUMBER: Final = re.compile(rf"{_WHOLE.pattern}|FLOAT|DOUBLE|DECIMAL\(.*\)")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_MOST_VALUES: Final = 12
_BINS: Final = 24
_LONGEST_VALUE: Final = 300


class Narrowed(NamedTuple):
    """A query with the filters and the order of an address."""

    sql: str
    parameters: Sequence[str]
    types: Mapping[str, str]
    """DuckDB's names, by column; empty if nothing asks for them."""


def narrow(
    shelf: Shelf, sql: str, asked: QueryParams, *, cancel: Cancel, of: str = "", most: int = 0
) -> Narrowed:
    """Return the query as the address narrows and orders it; one that it leaves alone is as it was written.

    Args:
        shelf: whose archive is asked.
        sql: as it was written.
        asked: the parameters of the address.
        cancel: ends the look at its columns.
        of: a column that must be there, too.
        most: the most rows; 0: all.

    Raises:
        ConfigError: a filter or the order is of no column of the query, or asks for no number.
        ArchiveError: the query is wrong.
    """
    filters = [
        (kind, column, value)
        for key, value in asked.multi_items()
        for kind, dot, column in [key.partition(".")]
        if dot and kind in _FILTERS
    ]
    sort = asked.get("sort", "")
    if not (filters or sort or of):
        return Narrowed(sql, (), {})
    inner = f"FROM (\n{sql.rstrip().rstrip(';')}\n)"
    with stream(shelf.archive, f"{inner} LIMIT 0", cancel=cancel) as empty:
        types = dict(zip(empty.columns, empty.types, strict=True))
    tests, parameters = [], []
    for kind, column, value in filters:
        if kind != "null":
            parameters.append(value if kind == "is" else str(number(column, value)))
        tests.append(_FILTERS[kind].format(quoted(column, types), len(parameters)))
    if of:
        quoted(of, types)
    where = f" WHERE {' AND '.join(tests)}" if tests else ""
    order = (
        f" ORDER BY {quoted(sort, types)} {'DESC' if asked.get('desc') else 'ASC'} NULLS LAST" if sort else ""
    )
    return Narrowed(f"{inner}{where}{order}{f' LIMIT {most}' if most else ''}", parameters, types)


def quoted(column: str, known: Mapping[str, str]) -> str:
    """Return the name of a column as SQL.

    Raises:
        ConfigError: it is none of those that are known.
    """
    if column not in known:
        raise ConfigError(f"the query has no column {column!r}; it has {', '.join(known)}")
    return '"' + column.replace('"', '""') + '"'


def number(column: str, text: str) -> float:
    """Return the number of a column or setting; raises :class:`ConfigError` if it is none."""
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{column}={text!r}: expected a number") from None


# -- the values of a column --------------------------------------------------------------------------------


class Value(NamedTuple):
    """A value, or a range of numbers, in so many rows."""

    text: str | None
    """``None``: NULL."""
    rows: int
    link: str | None
    """Leaves only its rows; ``None``: it is too long for an address."""


class Facet(NamedTuple):
    """The values of one column in the rows of a query."""

    column: str
    distinct: int
    values: Sequence[Value]
    """The most frequent; none of a number with many values."""
    bins: Sequence[Value]
    """Ranges of equal width of such a number."""
    close: str
    """The address without this facet."""


def facet(shelf: Shelf, sql: str, asked: QueryParams, *, cancel: Cancel) -> Facet:
    """Return the values of the column ``of``; raises as :func:`narrow` does."""
    of = asked.get("of", "")
    found = narrow(shelf, sql, asked, cancel=cancel, of=of)
    column = quoted(of, found.types)

    def rows(text: str) -> list[tuple[Any, ...]]:
        with stream(shelf.archive, text, found.parameters or None, cancel=cancel) as result:
            return list(result.rows)

    def narrowed(*filters: tuple[str, object]) -> str:
        kept = [pair for pair in asked.multi_items() if pair[0] != "of" and pair[0].partition(".")[2] != of]
        return "?" + urlencode([*kept, *((f"{kind}.{of}", value) for kind, value in filters)])

    def leading(text: str | None) -> str | None:
        if text is None:
            return narrowed(("null", ""))
        return narrowed(("is", text)) if len(text) <= _LONGEST_VALUE else None

    values = rows(
        f"SELECT CAST({column} AS VARCHAR) AS value, count(*) AS times, count(*) OVER () AS different "
        f"FROM ({found.sql}) GROUP BY 1 ORDER BY times DESC, value LIMIT {_MOST_VALUES}"
    )
    distinct = values[0][2] if values else 0
    bins: Sequence[Value] = ()
    if distinct > _MOST_VALUES and _NUMBER.fullmatch(found.types[of]):
        numbers = f"SELECT CAST({column} AS DOUBLE) AS x FROM ({found.sql})"
        bins = _histogram(rows, numbers, narrowed, whole=bool(_WHOLE.fullmatch(found.types[of])))
    close = [pair for pair in asked.multi_items() if pair[0] != "of" and pair != ("facet", of)]
    listed = [] if bins else [Value(text, times, leading(text)) for text, times, _ in values]
    return Facet(of, distinct, listed, bins, "?" + urlencode(close))


def _histogram(
    rows: Callable[[str], list[tuple[Any, ...]]], numbers: str, narrowed: Callable[..., str], *, whole: bool
) -> Sequence[Value]:
    """Count the finite numbers in ranges of equal width; ``whole`` ones are not split. ``Any``: DuckDB's."""
    ((low, high),) = rows(f"SELECT min(x), max(x) FROM ({numbers}) WHERE isfinite(x)")
    if low is None or low == high:
        return ()
    width = math.ceil((high - low + 1) / _BINS) if whole else (high - low) / _BINS
    bins = math.ceil((high - low + 1) / width) if whole else _BINS
    counts = dict(
        rows(
            f"SELECT least(floor((x - {low!r}) / {width!r}), {bins - 1})::INTEGER AS bin, count(*) "
            f"FROM ({numbers}) WHERE isfinite(x) GROUP BY bin"
        )
    )
    found = []
    for place in range(bins):
        first, after = low + width * place, low + width * (place + 1)
        last = after - 1 if whole else after
        text = f"{first:.6g}" if first == last else f"{first:.6g} to {last:.6g}"
        to = [("from", first), *([("below", after)] if place < bins - 1 else [])]
        found.append(Value(text, counts.get(place, 0), narrowed(*to)))
    return found


# -- where ids lead ---------------------------------------------------------------------------------------

_RUNS: Final = ("run_id", "parent_run_id", "ancestor_run_id")
_GAMES: Final = ("game_id", "parent_game_id")


def links(shelf: Shelf, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[int, list[str | None]]:
    """Return the addresses of the ids in the rows, by place of the column. ``Any``: DuckDB's values."""
    only: list[str | None] = []

    def run_of(row: Mapping[str, Any]) -> str | None:
        if isinstance(run := row.get("run_id"), str):
            return run
        if not only:
            known = [
                run for (run,) in query(shelf.archive, "SELECT DISTINCT run_id FROM run_events LIMIT 2").rows
            ]
            only.append(known[0] if len(known) == 1 else None)
        return only[0]

    def link(name: str, value: Any, row: Mapping[str, Any]) -> str | None:
        if name == "update":
            run = run_of(row) if type(value) is int and value > 0 else None
            model = f"{row['model']}/" if isinstance(row.get("model"), str) else ""
            return _why(shelf, f"{run}:update:{model}{value}") if run else None
        if not isinstance(value, str | UUID):
            return None
        value = str(value)
        if name in _RUNS:
            return shelf.href("runs", value)
        if is_checkpoint_uid(value):
            return _why(shelf, f"{run}:{value}") if (run := run_of(row)) else None
        if not _UUID.fullmatch(value):
            return None
        if name in _GAMES:
            return shelf.href("games", value)
        if name == "trajectory_id":
            return shelf.href("games", "of", value)
        return _why(shelf, value)

    found: dict[int, list[str | None]] = {}
    dicts = [dict(zip(columns, row, strict=True)) for row in rows]
    for place, name in enumerate(columns):
        of_column = [link(name, row[place], named) for row, named in zip(rows, dicts, strict=True)]
        if any(of_column):
            found[place] = of_column
    return found


def _why(shelf: Shelf, of: str) -> str:
    return shelf.href("why") + "?" + urlencode({"of": of})
