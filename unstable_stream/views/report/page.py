"""Put the report together as one HTML file that contains everything and escapes the models' texts."""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstable_stream.errors import ReportError
from unstable_stream.version import __version__
from unstable_stream.views.report.charts import Chart, Matrix
from unstable_stream.views.report.figures import figure_json, plotly_script
from unstable_stream.views.report.reading import RunFacts, before_and_after, read_run
from unstable_stream.views.report.samples import SampleGame, pick_samples
from unstable_stream.views.report.sections import build_sections

if TYPE_CHECKING:
    import jinja2

__all__ = ["render", "write_report"]

_MOST_CHARACTERS = 6000
# Background strengths of a token; the page has a class for each.
_SHADES = 6
_NATS_OF_A_SHADE = 0.9


@dataclass(frozen=True, slots=True)
class _Picture:
    """A chart as the template needs it."""

    chart: Chart
    figure: str
    height: int
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_report(
    archive: Path, run_ids: Sequence[str], output: Path, *, samples: int = 6, tokenizer: str | None = None
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
    runs = [
        read_run(archive, run, label) for run, label in zip(run_ids, _labels(archive, run_ids), strict=True)
    ]
    games = {run: pick_samples(archive, run, limit=samples, tokenizer=tokenizer) for run in run_ids}
    page = render(runs, games, script=script, written_at=datetime.now(UTC)).encode()
    try:
        output.write_bytes(page)
    except OSError as error:
        raise ReportError(f"cannot write the report to {output}: {error.strerror or error}") from error
    return len(page)


def _labels(archive: Path, run_ids: Sequence[str]) -> list[str]:
    """Return each run's name, or its id where names are empty or the same."""
    from unstable_stream.archive import query

    names = dict(query(archive, "SELECT run_id, name FROM runs").rows)
    found = [names.get(run) or run for run in run_ids]
    return found if len(set(found)) == len(found) else list(run_ids)


def render(
    runs: Sequence[RunFacts],
    games: Mapping[str, Sequence[SampleGame]],
    *,
    script: str,
    written_at: datetime,
) -> str:
    """Return the page.

    Args:
        runs: at least one.
        games: sample games by run id.
        script: source of plotly.js.
        written_at: time to put under the page.

    Raises:
        ReportError: Jinja is not installed.
    """
    environment = _environment()
    files = resources.files("unstable_stream.views.report") / "templates"
    style, behaviour = ((files / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return environment.from_string((files / "page.html.jinja").read_text(encoding="utf-8")).render(
        runs=runs,
        games=games,
        changes={facts.run_id: before_and_after(facts) for facts in runs},
        sections=[
            (section, [_picture(chart) for chart in section.charts]) for section in build_sections(runs)
        ],
        differences=_differences(runs),
        configs={facts.run_id: json.dumps(facts.config, indent=2, ensure_ascii=False) for facts in runs},
        scripts=[script, behaviour],
        script_digests=[_digest(script), _digest(behaviour)],
        style=style,
        written_at=written_at,
        version=__version__,
    )


def _environment() -> "jinja2.Environment":
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise ReportError(
            "a report is laid out with Jinja: pip install 'unstable_stream[analytics]'"
        ) from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": _number,
        "share": _share,
        "duration": _duration,
        "moment": _moment,
        "cut": _cut,
        "shade": _shade,
        "probability": _probability,
        "inert": _inert,
        "signed": _signed,
    }
    return environment


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _inert(text: str) -> str:
    """Return JSON that no HTML parser takes for markup; the page marks it as safe."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _picture(chart: Chart) -> _Picture:
    figure, height = figure_json(chart)
    columns, rows = _matrix_table(chart.matrix) if chart.matrix is not None else _series_table(chart)
    return _Picture(chart, figure, height, columns, rows)


def _matrix_table(matrix: Matrix) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [
        [name, *("" if value is None else f"{value:.2f}" for value in line)]
        for name, line in zip(matrix.names, matrix.values, strict=True)
    ]
    return ["player \\ against", *matrix.names], rows


def _series_table(chart: Chart) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the numbers of a chart, one row a point."""
    show = _share if chart.percent else _number
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
            row = [*([series.name] if several else []), x if isinstance(x, str) else _number(x), show(y)]
            if bounds:
                row += [show(series.low[place] if series.low else None)]
                row += [show(series.high[place] if series.high else None)]
            if counts:
                row += [f"{series.counts[place]:,}" if series.counts else ""]
            rows.append(row)
    return columns, rows


def _differences(runs: Sequence[RunFacts]) -> list[tuple[str, list[str]]]:
    """Return the configuration keys that the runs do not share, each with its value in every run."""
    flat = [_flatten(facts.config) for facts in runs]
    keys = sorted({key for one in flat for key in one})
    return [
        (key, [one.get(key, "not set") for one in flat])
        for key in keys
        if len({one.get(key, "not set") for one in flat}) > 1
    ]


def _flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """``Any``: JSON."""
    if not isinstance(value, dict):
        return {prefix: json.dumps(value, ensure_ascii=False)}
    return {
        name: text
        for key, item in value.items()
        for name, text in _flatten(item, f"{prefix}.{key}" if prefix else str(key)).items()
    }


# -- how values are written ----------------------------------------------------------------------------


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4g}".replace("-", "−")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _moment(value: datetime | None) -> str:
    return "–" if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC"


def _cut(text: str) -> str:
    """Return the text, without its middle if it is very long."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    half = _MOST_CHARACTERS // 2
    return f"{text[:half]}\n\n… {len(text) - 2 * half:,} characters left out …\n\n{text[-half:]}"


def _shade(logprob: float) -> int:
    """Return the strength of a token's colour: 0 for a likely token, 5 for an unlikely one."""
    return min(_SHADES - 1, int(-logprob / _NATS_OF_A_SHADE)) if math.isfinite(logprob) else _SHADES - 1


def _probability(logprob: float) -> str:
    percent = 100 * math.exp(min(0.0, logprob))
    return f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.2g} %"
