"""Give the charts of runs as JSON; ``static/charts.js`` draws them."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from starlette.responses import Response

from unstable_stream.archive_address import ArchiveAddress
from unstable_stream.errors import ConfigError
from unstable_stream.ui.site import Shelf
from unstable_stream.views.report.axes import AXES, Clock, along, read_clock
from unstable_stream.views.report.charts import Section
from unstable_stream.views.report.metrics import metric_sections, read_metrics
from unstable_stream.views.report.reading import (
    Row,
    RunFacts,
    labels_of,
    read_summary,
    with_charts,
    with_results,
)
from unstable_stream.views.report.sections import build_sections

__all__ = ["RunRead", "answer", "read", "results", "summaries"]

_ENCODER: Final = msgspec.json.Encoder(enc_hook=str)


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
    found: dict[str, Any] = {"sections": [*map(_plain, sections)], "metrics": [*map(_plain, metrics)]}
    return Response(_ENCODER.encode(found), media_type="application/json")


def _plain(section: Section) -> dict[str, Any]:
    return {
        "title": section.title,
        "says": section.says,
        "charts": [msgspec.to_builtins(chart, enc_hook=str) for chart in section.charts],
    }
