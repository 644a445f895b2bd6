"""Put the charts of learner updates on another axis: games played, or hours since the start."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from unstable_stream.archive import query
from unstable_stream.archive_address import ArchiveAddress
from unstable_stream.views.report.charts import BY_UPDATE, BY_VERSION, Chart, Section, Series

__all__ = ["AXES", "Clock", "along", "read_clock"]

AXES: Final[Mapping[str, str]] = {
    "update": BY_UPDATE,
    "games": "training games played",
    "hours": "hours since the start",
}
"""Name to the axis's title."""

_CLOCK: Final = """
    WITH played AS (
        SELECT finished_at, count(*) OVER (ORDER BY finished_at) AS games
        FROM game_outcomes WHERE run_id = $run AND split = 'train'
    )
    SELECT u."update", coalesce(p.games, 0) AS games,
        (epoch(u.occurred_at) - epoch(r.started_at)) / 3600 AS hours
    FROM (FROM updates WHERE run_id = $run) AS u JOIN runs AS r USING (run_id)
    ASOF LEFT JOIN played AS p ON u.occurred_at >= p.finished_at
"""

Clock = Mapping[int, tuple[float, float]]
"""Update to training games and hours; ``0`` is the start."""


def read_clock(archive: ArchiveAddress, run_id: str) -> Clock:
    """Return when the updates of a run were made, in training games and hours since it started."""
    rows = query(archive, _CLOCK, {"run": run_id}).rows
    return {0: (0.0, 0.0)} | {update: (float(games), float(hours)) for update, games, hours in rows}


def along(axis: str, sections: Sequence[Section], clocks: Sequence[Clock]) -> list[Section]:
    """Return the sections with their charts by update drawn along ``axis``, one of :data:`AXES`.

    A run's clock is at the place of the run. A point whose update the clock does not know is left out: a
    fork's updates before it began.
    """
    if axis == "update":
        return list(sections)
    unit = list(AXES).index(axis) - 1
    return [
        replace(section, charts=[_chart(chart, AXES[axis], unit, clocks) for chart in section.charts])
        for section in sections
    ]


def _chart(chart: Chart, title: str, unit: int, clocks: Sequence[Clock]) -> Chart:
    if chart.kind != "line" or chart.x_title not in (BY_UPDATE, BY_VERSION):
        return chart
    series = [_series(each, unit, clocks[each.run]) for each in chart.series]
    return replace(chart, x_title=title, series=series)


def _series(series: Series, unit: int, clock: Clock) -> Series:
    kept = [place for place, x in enumerate(series.x) if not isinstance(x, str) and int(x) in clock]
    return replace(
        series,
        x=[clock[int(series.x[place])][unit] for place in kept],
        y=[series.y[place] for place in kept],
        low=None if series.low is None else [series.low[place] for place in kept],
        high=None if series.high is None else [series.high[place] for place in kept],
        counts=None if series.counts is None else [series.counts[place] for place in kept],
    )
