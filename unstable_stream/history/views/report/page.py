"""Put the report together as one HTML file that contains everything and escapes the models' texts."""

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from unstable_stream.archive import held
from unstable_stream.errors import ReportError
from unstable_stream.history.views.report.charts import Chart, Matrix
from unstable_stream.history.views.report.figures import figure_json, plotly_script
from unstable_stream.history.views.report.reading import before_and_after, labels_of, read_run
from unstable_stream.history.views.report.samples import pick_samples
from unstable_stream.history.views.report.sections import build_sections
from unstable_stream.history.views.written import (
    FILTERS,
    config_differences,
    config_text,
    digest,
    number,
    share,
)
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.version import __version__


class _Picture(NamedTuple):
    """A chart as the template needs it."""

    chart: Chart
    figure: str
    height: int
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_report(
    archive: ArchiveAddress,
    run_ids: Sequence[str],
    output: Path,
    *,
    samples: int = 6,
    tokenizer: str | None = None,
) -> int:
    """Write the report of the runs and return its size in bytes.

    Args:
        archive: the archive.
        run_ids: exact ids, compared in this order.
        output: the file; replaced as a whole.
        samples: most games shown of each run.
        tokenizer: directory of the tokenizer, if the base model is not where the runs found it.

    Raises:
        ReportError: Plotly or Jinja is not installed, or the file cannot be written.
        ArchiveError: the archive cannot be read.
    """
    script = plotly_script()
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise ReportError(
            "a report is laid out with Jinja: pip install 'unstable_stream[analytics]'"
        ) from error
    # To open a shared archive or an export costs, and nobody waits for its readers.
    with contextlib.nullcontext() if Path(archive).is_file() else held(archive):
        labels = labels_of(archive, run_ids)
        runs = [read_run(archive, run, label) for run, label in zip(run_ids, labels, strict=True)]
        games = {run: pick_samples(archive, run, limit=samples, tokenizer=tokenizer) for run in run_ids}
    files = resources.files("unstable_stream.history.views.report") / "templates"
    style, behaviour = ((files / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= FILTERS
    template = environment.from_string((files / "page.html.jinja").read_text(encoding="utf-8"))
    page = template.render(
        runs=runs,
        games=games,
        changes={facts.run_id: before_and_after(facts) for facts in runs},
        sections=[
            (section, [_picture(chart) for chart in section.charts]) for section in build_sections(runs)
        ],
        differences=config_differences([facts.config for facts in runs]),
        configs={facts.run_id: config_text(facts.config) for facts in runs},
        scripts=[script, behaviour],
        script_digests=[digest(script), digest(behaviour)],
        style=style,
        written_at=datetime.now(UTC),
        version=__version__,
    ).encode()
    try:
        output.write_bytes(page)
    except OSError as error:
        raise ReportError(f"cannot write the report to {output}: {error.strerror or error}") from error
    return len(page)


def _picture(chart: Chart) -> _Picture:
    """Return the figure, and its numbers: one row a point, or one a player of a matrix."""
    table = _series_table(chart) if chart.matrix is None else _matrix_table(chart.matrix)
    return _Picture(chart, *figure_json(chart), *table)


def _matrix_table(matrix: Matrix) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [
        [name, *("" if value is None else f"{value:.2f}" for value in line)]
        for name, line in zip(matrix.names, matrix.values, strict=True)
    ]
    return ["player \\ against", *matrix.names], rows


def _series_table(chart: Chart) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    show = share if chart.percent else number
    several = len(chart.series) > 1
    bounds = any(series.low is not None for series in chart.series)
    counts = any(series.counts is not None for series in chart.series)
    first = "player" if chart.kind == "ladder" else chart.x_title
    value = chart.x_title if chart.kind == "ladder" else chart.y_title
    columns = [*(["line"] if several else []), first, value]
    columns += [*(["from", "to"] if bounds else []), *(["games"] if counts else [])]
    rows = []
    for series in chart.series:
        for place, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            row = [*([series.name] if several else []), x if isinstance(x, str) else number(x), show(y)]
            if bounds:
                row += [show(series.low[place] if series.low else None)]
                row += [show(series.high[place] if series.high else None)]
            if counts:
                row += [f"{series.counts[place]:,}" if series.counts else ""]
            rows.append(row)
    return columns, rows
