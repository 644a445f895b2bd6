"""Draw every metric that a run has, plug-ins' own too: whatever was reported has a chart."""

from collections.abc import Mapping, Sequence
from typing import Final

from unstable_stream.archive import query
from unstable_stream.archive_address import ArchiveAddress
from unstable_stream.views.report.charts import (
    BY_UPDATE,
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
from unstable_stream.views.report.reading import Row, RunFacts

__all__ = ["metric_sections", "read_metrics"]

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
    SELECT source, name, any_value(by_update) AS by_update, avg("update") AS "update",
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
