"""Give the charts of runs and of all their metrics as JSON, by update, by games or by hours;
``static/charts.js`` draws them."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple

import msgspec
from starlette.responses import Response

from unstable_stream.archive import query
from unstable_stream.errors import ConfigError, did_you_mean
from unstable_stream.history.views.report.charts import (
    AXES,
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
    places_along,
    time_unit,
)
from unstable_stream.history.views.report.groups import EVALUATED, group_chart, group_runs
from unstable_stream.history.views.report.reading import (
    Row,
    RunFacts,
    labels_of,
    read_summary,
    with_charts,
    with_results,
)
from unstable_stream.history.views.report.sections import build_sections
from unstable_stream.history.views.written import write_csv
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.ui.web.site import Shelf

_LINES: Final = 8
"""Of a metric that every model has, the newest checkpoints and the fixed opponents."""
_LONGEST_NAME: Final = 100
"""Of a file, characters."""

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


def along(axis: str, sections: Sequence[Section], runs: Sequence[RunFacts]) -> list[Section]:
    """Return the sections with their charts by update drawn along ``axis``, one of :data:`AXES`.

    A point whose update the clock of its run does not know is left out: a fork's updates before it began.
    """
    if axis == "updates":
        return list(sections)
    clocks = [places_along(axis, facts) for facts in runs]
    return [
        replace(section, charts=[_chart(chart, AXES[axis].title, clocks) for chart in section.charts])
        for section in sections
    ]


def _chart(chart: Chart, title: str, clocks: Sequence[Mapping[int, float]]) -> Chart:
    if chart.kind != "line" or chart.x_title not in (BY_UPDATE, BY_VERSION):
        return chart
    series = [_series(each, clocks[each.run]) for each in chart.series]
    return replace(chart, x_title=title, series=series)


def _series(series: Series, clock: Mapping[int, float]) -> Series:
    kept = [place for place, x in enumerate(series.x) if not isinstance(x, str) and int(x) in clock]
    return replace(
        series,
        x=[clock[int(series.x[place])] for place in kept],
        y=[series.y[place] for place in kept],
        low=None if series.low is None else [series.low[place] for place in kept],
        high=None if series.high is None else [series.high[place] for place in kept],
        counts=None if series.counts is None else [series.counts[place] for place in kept],
    )


class RunRead(NamedTuple):
    """Whatever is drawn of a run."""

    facts: RunFacts
    metrics: Sequence[Row]


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
    return RunRead(facts, read_metrics(archive, facts))


class Drawn(NamedTuple):
    """All charts of a page."""

    sections: Sequence[Section]
    """Those of the report."""
    metrics: Sequence[Section]


def drawn(runs: Sequence[RunRead], axis: str) -> Drawn:
    """Return the sections of the report, and all metrics, along one of the axes.

    Raises:
        ConfigError: there is no such axis.
    """
    if axis not in AXES:
        raise ConfigError(f"by={axis!r}: expected one of {', '.join(AXES)}")
    facts = [run.facts for run in runs]
    sections = along(axis, build_sections(facts, axis), facts)
    metrics = along(axis, metric_sections(facts, [run.metrics for run in runs]), facts)
    return Drawn(sections, [*_group_sections(facts, axis), *metrics])


def _group_sections(runs: Sequence[RunFacts], axis: str) -> list[Section]:
    """Return a section with the means of runs that differ in the seed alone, if there are such runs."""
    groups = group_runs(runs) if runs else []
    if len(groups) == len(runs):
        return []
    reported = [row["metrics"] or {} for facts in runs for row in facts.updates]
    learned = sorted({name for each in reported for name, value in each.items() if finite(value) is not None})
    evaluated = [name for name in EVALUATED if name != "win_rate"]  # the report has it
    charts = [replace(group_chart(groups, axis, name), wide=False) for name in (*evaluated, *learned)]
    says = "Evaluation games, and what the learner measured: the mean of runs that differ in the seed alone."
    return [Section("More by configuration", says, [chart for chart in charts if chart.series])]


def answer(runs: Sequence[RunRead], axis: str) -> Response:
    """Return all charts as JSON; raises as :func:`drawn`."""
    found = drawn(runs, axis)._asdict()
    return Response(msgspec.json.encode(found, enc_hook=str), media_type="application/json")


def download(runs: Sequence[RunRead], axis: str, key: str) -> Response:
    """Return the numbers of one chart as a CSV file.

    Raises:
        ConfigError: there is no such axis or chart.
    """
    found = drawn(runs, axis)
    charts = {chart.key: chart for part in found for section in part for chart in section.charts}
    if key not in charts:
        hint = did_you_mean(key, charts, "charts.json has the keys of all charts")
        raise ConfigError(f"chart={key!r}: there is no such chart of these runs; {hint}")
    file = io.StringIO()
    write_csv(file, *_table(charts[key]))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", key)[:_LONGEST_NAME]
    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    return Response(file.getvalue(), media_type="text/csv", headers=headers)


def _table(chart: Chart) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and rows that a page has under the plot. ``Any``: names and numbers."""
    if chart.matrix is not None:
        names, values = chart.matrix.names, chart.matrix.values
        return ["player", "against", "score", "from", "to", "games"], [
            [names[one], names[other], values[one][other], *bounds, chart.matrix.games[one][other]]
            for one, other in product(range(len(names)), repeat=2)
            if (bounds := chart.matrix.bounds[one][other]) is not None
        ]
    several = len(chart.series) > 1
    edges = any(series.low is not None for series in chart.series)
    counts = any(series.counts is not None for series in chart.series)
    axes = ["player", chart.x_title] if chart.kind == "ladder" else [chart.x_title, chart.y_title or "value"]
    columns = [*["line"] * several, *axes, *["from", "to"] * edges, *chart.more, *["games"] * counts]
    return columns, [
        [
            *[series.name] * several,
            *(x, series.y[at]),
            *(edge and edge[at] for edge in (series.low, series.high) if edges),
            *(texts[at] for texts in chart.more.values()),
            *[series.counts and series.counts[at]] * counts,
        ]
        for series in chart.series
        for at, x in enumerate(series.x)
    ]
