"""Hold charts as plain numbers with one sentence of explanation, and turn rows into their lines.

A chart does not know how it is drawn. Its numbers are also what the page gives as a table, so they can be
read without a picture and checked by hand.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from unstable_stream.history.views.report.reading import Row, RunFacts

BY_UPDATE = "learner update"
BY_VERSION = "policy version (learner updates so far)"
MOST_POINTS = 300
"""Longer series are thinned: a screen has no more places for points."""


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


@dataclass(frozen=True, slots=True)
class Section:
    """Charts that belong together."""

    title: str
    says: str
    charts: Sequence[Chart] = field(default=())


def line_name(runs: Sequence[RunFacts], facts: RunFacts, *parts: str | None) -> str:
    """Name a series by whatever tells it from the others: run and model only if there are several."""
    return " · ".join([*([facts.label] if len(runs) > 1 else []), *filter(None, parts)]) or facts.label


def environment_name(runs: Sequence[RunFacts], env_id: str) -> str:
    """Return the environment's name if the report is about several."""
    return env_id if len({row["env_id"] for facts in runs for row in facts.curve}) > 1 else ""


def line_style(runs: Sequence[RunFacts], run: int, place: int) -> dict[str, int]:
    """Colour tells runs apart; where there is one run only, it tells its lines apart."""
    look = {"colour": run, "dash": place} if len(runs) > 1 else {"colour": place, "dash": 0}
    return look | {"run": run}


def thin(rows: Sequence[Row]) -> Sequence[Row]:
    """Return an even selection with the first and the last, if there are too many rows for one line."""
    if len(rows) <= MOST_POINTS:
        return rows
    return [rows[round(place * (len(rows) - 1) / (MOST_POINTS - 1))] for place in range(MOST_POINTS)]


def line(
    name: str,
    rows: Iterable[Row],
    x: str,
    y: str,
    style: dict[str, int],
    *,
    band: tuple[str, str] | None = None,
) -> Series:
    kept = thin([row for row in rows if row[y] is not None])
    low, high = band or ("", "")
    return Series(
        name,
        [row[x] for row in kept],
        [finite(row[y]) for row in kept],
        [finite(row[low]) for row in kept] if band else None,
        [finite(row[high]) for row in kept] if band else None,
        [row["games"] for row in kept] if band and kept and "games" in kept[0] else None,
        **style,
    )


def finite(value: Any) -> float | None:
    """Return the number, ``None`` if it is none: JSON knows no infinity. ``Any``: a column's value."""
    return float(value) if value is not None and math.isfinite(value) else None


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def if_any(chart: Chart) -> list[Chart]:
    return [chart] if any(value is not None for series in chart.series for value in series.y) else []


def time_unit(runs: Sequence[RunFacts]) -> tuple[str, float]:
    """Return the unit in which the longest run is told, and its seconds."""
    longest_s = max(facts.duration_s for facts in runs)
    return (
        ("seconds", 1.0)
        if longest_s < 300
        else ("minutes", 60.0)
        if longest_s < 18_000
        else ("hours", 3600.0)
    )
