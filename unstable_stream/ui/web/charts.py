"""Give the charts of runs and of all their metrics as JSON, by update, by games or by hours;
``static/charts.js`` draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import msgspec
from starlette.responses import Response

from unstable_stream.archive import query
from unstable_stream.errors import ConfigError
from unstable_stream.history.views.report.charts import (
    BY_UPDATE,
    BY_VERSION,
    MOST_POINTS,
    Chart,
    Section,
    Series,
    finite,
    grouped,
    line_name,
    line_style,
    time_unit,
)
from unstable_stream.history.views.report.reading import (
    Row,
    RunFacts,
    labels_of,
    read_summary,
    with_charts,
    with_results,
)
from unstable_stream.history.views.report.sections import build_sections
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.ui.web.site import Shelf

_LINES: Final = 8
"""Of a metric that every model has, the newest checkpoints and the fixed opponents."""

# What services say of themselves is shown as health.
_METRICS: Final = f"""
    WITH reported AS (
        SELECT source, name, "update", epoch(occurred_at) AS moment, value FROM metrics
        WHERE run_id = $run AND NOT starts_with(name, 'services/') AND isfinite(value)
        UNION ALL
        SELECT 'learner', concat_ws('/', 'update', model, entry.key), "update", epoch(occurred_at),
        entry.value FROM (
            SELECT model, "update", occurred_at, unnest(map_entries(metrics)) AS entry
            FROM updates WHERE run_id = $run
        ) WHERE isfinite(entry.value)
    ), placed AS (
        SELECT source, name, moment, value, "update",
            count("update") OVER name = count(*) OVER name AS by_update,
            ntile({MOST_POINTS}) OVER (name ORDER BY moment) AS bin
        FROM reported WINDOW name AS (PARTITION BY source, name)
    )
    SELECT source, name, any_value(by_update) AS by_update, max("update") AS "update",
        avg(moment) - epoch($start::TIMESTAMP) AS second, avg(value) AS value, min(value) AS low,
        max(value) AS high, count(*) AS reports
    FROM placed GROUP BY source, name, bin ORDER BY source, name, bin
"""


def read_metrics(archive: ArchiveAddress, facts: RunFacts) -> list[Row]:
    """Return at most 300 points of each metric, each the mean of as many reports, in order of time."""
    return query(archive, _METRICS, {"run": facts.run_id, "start": facts.started_at}).dicts()


def metric_sections(runs: Sequence[RunFacts], metrics: Sequence[Sequence[Row]]) -> list[Section]:
    """Return a section for each source, and a chart for each name; models share a chart."""
    clock, unit_s = time_unit(runs)
    charts: dict[tuple[str, str], dict[str, list[tuple[int, Sequence[Row]]]]] = {}
    for run, (facts, rows) in enumerate(zip(runs, metrics, strict=True)):
        models = _shown_models(facts)
        for (source, name), points in grouped(rows, "source", "name").items():
            stem, _, model = name.rpartition("/")
            if model in models:
                name, part = stem, model
            elif any(row["model_uid"] == model for row in facts.models):
                continue
            else:
                part = ""
            charts.setdefault((source, name), {}).setdefault(part, []).append((run, points))
    sections: dict[str, list[Chart]] = {}
    for (source, name), parts in charts.items():
        by_update = all(row["by_update"] for found in parts.values() for _, rows in found for row in rows)
        series = [
            Series(
                line_name(runs, runs[run], part) if part or len(runs) > 1 else name,
                [row["update"] if by_update else row["second"] / unit_s for row in rows],
                [finite(row["value"]) for row in rows],
                low=[finite(row["low"]) for row in rows] if _has_band(rows) else None,
                high=[finite(row["high"]) for row in rows] if _has_band(rows) else None,
                counts=None,
                **line_style(runs, run, place),
            )
            for place, (part, found) in enumerate(parts.items())
            for run, rows in found
        ]
        sections.setdefault(source, []).append(
            Chart(
                f"metric-{source}-{name}",
                name,
                f"Reported by {source}.",
                BY_UPDATE if by_update else f"{clock} since the start",
                "",
                series,
            )
        )
    return [
        Section(f"Reported by {source}", "Every metric of this source.", charts)
        for source, charts in sections.items()
    ]


def _shown_models(facts: RunFacts) -> set[str]:
    fixed = [row["model_uid"] for row in facts.models if row["kind"] != "checkpoint"]
    own = [row["model_uid"] for row in facts.models if row["kind"] == "checkpoint"]
    return {*fixed[:_LINES], *own[-max(1, _LINES - len(fixed)) :]}


def _has_band(rows: Sequence[Mapping[str, float]]) -> bool:
    return any(row["reports"] > 1 for row in rows)


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


class RunRead(NamedTuple):
    """Whatever is drawn of a run."""

    facts: RunFacts
    metrics: Sequence[Row]
    clock: Clock


def summaries(shelf: Shelf, run_ids: Sequence[str]) -> list[RunFacts]:
    """Return what is told of these runs before results and charts, remembered until the archive changes."""
    for run_id in run_ids:
        shelf.run(run_id)
    with shelf.reading() as archive:
        labels = labels_of(archive, run_ids)

    return [
        shelf.remember(("summary", run_id, label), partial(read_summary, run_id=run_id, label=label))
        for run_id, label in zip(run_ids, labels, strict=True)
    ]


def results(shelf: Shelf, run_ids: Sequence[str]) -> list[RunFacts]:
    """Return the same with what their policies won and lost."""
    return [
        shelf.remember(("results", summary.run_id, summary.label), partial(with_results, summary=summary))
        for summary in summaries(shelf, run_ids)
    ]


def read(shelf: Shelf, run_ids: Sequence[str]) -> list[RunRead]:
    """Return what the archive has of these runs, remembered until it changes."""
    return [
        shelf.remember(("run", found.run_id, found.label), partial(_find, found=found))
        for found in results(shelf, run_ids)
    ]


def _find(archive: ArchiveAddress, *, found: RunFacts) -> RunRead:
    facts = with_charts(archive, found)
    return RunRead(facts, read_metrics(archive, facts), read_clock(archive, facts.run_id))


def answer(runs: Sequence[RunRead], axis: str) -> Response:
    """Return the sections of the report, and all metrics, along one of the axes.

    Raises:
        ConfigError: there is no such axis.
    """
    if axis not in AXES:
        raise ConfigError(f"by={axis!r}: expected one of {', '.join(AXES)}")
    facts = [run.facts for run in runs]
    clocks = [run.clock for run in runs]
    sections = along(axis, build_sections(facts), clocks)
    metrics = along(axis, metric_sections(facts, [run.metrics for run in runs]), clocks)
    found = {"sections": sections, "metrics": metrics}
    return Response(msgspec.json.encode(found, enc_hook=str), media_type="application/json")
