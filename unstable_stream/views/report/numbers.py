"""Give the numbers of a chart as a table."""

from collections.abc import Sequence

from unstable_stream.views.report.charts import Chart, Matrix
from unstable_stream.views.written import number, share

__all__ = ["numbers_of"]


def numbers_of(chart: Chart) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the columns and rows: one row a point, or one a player of a matrix."""
    return _matrix_table(chart.matrix) if chart.matrix is not None else _series_table(chart)


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
