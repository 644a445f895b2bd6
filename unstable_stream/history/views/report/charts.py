"""Hold charts as plain numbers with one sentence of explanation, and turn rows into their lines.

A chart does not know how it is drawn. Its numbers are also what the page gives as a table, so they can be
read without a picture and checked by hand.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from unstable_stream.history.views.report.reading import Row, RunFacts

BY_UPDATE = "learner update"
BY_VERSION = "policy version (learner updates so far)"
T = TypeVar("T")
MOST_POINTS = 300
"""Longer series are thinned: a screen has no more places for points."""


class Axis(NamedTuple):
    """An axis along which curves are drawn."""

    title: str
    column: str
    """Of the run's clock."""
    unit: float = 1.0


AXES: Final[Mapping[str, Axis]] = {
    "updates": Axis(BY_UPDATE, "update"),
    "games": Axis("training games played", "games"),
    "tokens": Axis("tokens sampled", "tokens"),
    "seconds": Axis("seconds since the start", "seconds"),
    "hours": Axis("hours since the start", "seconds", 3600.0),
}


def places_along(axis: str, facts: RunFacts) -> dict[int, float]:
    """Return how far a run was at each of its updates, along one of :data:`AXES`."""
    _, column, unit = AXES[axis]
    return {row["update"]: row[column] / unit for row in facts.clock}


@dataclass(frozen=True, slots=True)
class Series:
    """One line: ``x``, ``y`` and, if given, ``low`` and ``high`` have the same length."""

    name: str
    x: Sequence[float | str]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    """Lower end of a band or an error bar."""
    high: Sequence[float | None] | None = None
    counts: Sequence[int] | None = None
    """The number of games, moves or steps behind each point."""
    colour: int = 0
    """Place in the palette."""
    dash: int = 0
    """Place in the list of line styles."""
    run: int = 0
    """Place among the runs shown."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Square table of numbers, row against column; ``None``: nothing known."""

    names: Sequence[str]
    values: Sequence[Sequence[float | None]]
    games: Sequence[Sequence[int]]
    bounds: Sequence[Sequence[tuple[float, float] | None]]
    """The 95 % interval of each value."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture. It holds series or a matrix."""

    key: str
    """Unique in the page."""
    title: str
    says: str
    """One sentence that explains the chart to someone who does not know the project."""
    x_title: str = BY_VERSION
    y_title: str = ""
    series: Sequence[Series] = ()
    matrix: Matrix | None = None
    kind: str = "line"
    """``line``, ``ladder`` or ``matrix``."""
    percent: bool = False
    """The numbers are shares, 0 to 1."""
    from_zero: bool = False
    """The vertical axis starts at zero, as that of shares always does."""
    wide: bool = False
    told: Sequence[str] = ()
    """Sentences that say what it shows."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """The kind of each player that is no checkpoint."""
    more: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Further columns of a ladder, by title."""


@dataclass(frozen=True, slots=True)
class Section:
    """Charts that belong together."""

    title: str
    says: str
    charts: Sequence[Chart]


def line_name(runs: Sequence[RunFacts], facts: RunFacts, *parts: str | None) -> str:
    """Name a series by whatever tells it from the others: run and model only if there are several."""
    return " · ".join([*([facts.label] if len(runs) > 1 else []), *filter(None, parts)]) or facts.label


def line_style(runs: Sequence[RunFacts], run: int, place: int) -> dict[str, int]:
    """Colour tells runs apart; where there is one run only, it tells its lines apart."""
    look = {"colour": run, "dash": place} if len(runs) > 1 else {"colour": place, "dash": 0}
    return look | {"run": run}


def thin(rows: Sequence[T]) -> Sequence[T]:
    """Return an even selection with the first and the last, if there are too many rows for one line."""
    if len(rows) <= MOST_POINTS:
        return rows
    return [rows[round(place * (len(rows) - 1) / (MOST_POINTS - 1))] for place in range(MOST_POINTS)]


def lines(
    runs: Sequence[RunFacts],
    rows_of: Callable[[RunFacts], Iterable[Row]],
    x: str,
    columns: Mapping[str, str],
    by: Sequence[str] = (),
    *,
    band: tuple[str, str] | None = None,
    first: int = 0,
    unit: float = 1.0,
) -> list[Series]:
    """Return the lines of a chart: of each run, of each group of its rows, of each column.

    Args:
        runs: all that the report shows.
        rows_of: returns the rows of one.
        x: the column of the horizontal axis.
        columns: the columns of the vertical axis, each with the end of its line's name.
        by: the columns whose values make groups, and the lines' names.
        band: the columns of the edges of a band.
        first: the place of the first line among those of the chart.
        unit: what the values of ``x`` are divided by.
    """
    several = len({row["env_id"] for facts in runs for row in facts.curve}) > 1
    found = []
    for run, facts in enumerate(runs):
        place = first
        for group, rows in grouped(rows_of(facts), *by).items():
            parts = dict(zip(by, group, strict=True))
            if "opponent" in parts:
                parts["opponent"] = f"against {parts['opponent']}"
            if not several:
                parts.pop("env_id", None)
            for column, words in columns.items():
                name = line_name(runs, facts, *parts.values(), words)
                style = line_style(runs, run, place)
                found.append(_line(name, rows, (x, unit), column, band, style))
                place += 1
    return found


def _line(
    name: str,
    rows: Sequence[Row],
    x: tuple[str, float],
    y: str,
    band: tuple[str, str] | None,
    style: dict[str, int],
) -> Series:
    kept = thin([row for row in rows if row[y] is not None])
    low, high = ([finite(row[edge]) for row in kept] for edge in band) if band else (None, None)
    counts = [row["games"] for row in kept] if band and kept and "games" in kept[0] else None
    column, unit = x
    places = [row[column] if unit == 1 else row[column] / unit for row in kept]
    return Series(name, places, [finite(row[y]) for row in kept], low, high, counts, **style)


def finite(value: Any) -> float | None:
    """Return the number, ``None`` if it is none: JSON knows no infinity. ``Any``: a column's value."""
    return float(value) if value is not None and math.isfinite(value) else None


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def time_unit(runs: Sequence[RunFacts]) -> tuple[str, float]:
    """Return the unit in which the longest run is told, and its seconds."""
    longest_s = max(facts.duration_s for facts in runs)
    if longest_s < 300:
        return "seconds", 1.0
    return ("minutes", 60.0) if longest_s < 18_000 else ("hours", 3600.0)
