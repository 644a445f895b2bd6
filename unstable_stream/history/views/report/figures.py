"""Turn charts into Plotly figures; colours come from the page and fit its light and dark theme."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from unstable_stream.errors import ReportError
from unstable_stream.history.views.report.charts import Chart, Series

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# After Okabe and Ito (2008), so that the colour-blind tell them apart: without yellow, which is too light on
# white, and with a blue that shows on black.
_PALETTE = ("#1b7fc4", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#8c564b")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_BAND_OPACITY = 0.16
# Orange to blue; the page puts its own colour in the middle, see page.js.
_SCALE = ((0.0, "#d55e00"), (0.5, "#e6e9ed"), (1.0, "#0072b2"))
_LADDER_LINE_PX = 22
_HEIGHT_PX = 340
_MATRIX_CELL_PX = 26
_MOST_WRITTEN = 24
"""Players up to which the numbers fit into the cells of a matrix."""


def plotly_script() -> str:
    """Return the source of plotly.js as the Python package ships it.

    Raises:
        ReportError: Plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise ReportError("a report draws with Plotly: pip install 'unstable_stream[analytics]'") from error
    return str(get_plotlyjs())


def figure_json(chart: Chart) -> tuple[str, int]:
    """Return the figure as JSON and its height in pixels, which the page reserves before it is drawn."""
    from plotly.graph_objects import Figure

    figure = Figure()
    of_kind = {"matrix": _draw_matrix, "ladder": _draw_ladder, "line": _draw_lines}
    height = of_kind[chart.kind](figure, chart)
    font = {"family": "inherit", "size": 13}
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 64, "r": 16, "t": 12, "b": 56},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font=font,
        hoverlabel={"font": font},
    )
    for axes, title in ((figure.update_xaxes, chart.x_title), (figure.update_yaxes, chart.y_title)):
        axes(title={"text": title, "font": {"size": 13}}, zeroline=False, automargin=True)
    return str(figure.to_json()), height


def _colour(series: Series, opacity: float = 1.0) -> str:
    code = _PALETTE[series.colour % len(_PALETTE)]
    red, green, blue = (int(code[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def _draw_lines(figure: "Figure", chart: Chart) -> int:
    number = ".1%" if chart.percent else ".4~g"
    for series in chart.series:
        if series.low is not None and series.high is not None:
            edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
            edge |= {"x": series.x, "legendgroup": series.name}
            figure.add_scatter(y=series.high, **edge)
            fill = {"fill": "tonexty", "fillcolor": _colour(series, _BAND_OPACITY)}
            figure.add_scatter(y=series.low, **fill, **edge)
        figure.add_scatter(
            x=series.x,
            y=series.y,
            name=escape(series.name, quote=False),
            legendgroup=series.name,
            mode="lines+markers" if len(series.x) <= 40 else "lines",
            line={"color": _colour(series), "width": 2, "dash": _DASHES[series.dash % len(_DASHES)]},
            marker={"size": 5},
            customdata=_hover(series),
            hovertemplate=f"%{{y:{number}}}%{{customdata}}",
        )
    figure.update_layout(
        hovermode="x unified",
        showlegend=len(chart.series) > 1,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
    )
    if chart.percent:
        figure.update_yaxes(tickformat=".0%")
    if chart.percent or chart.from_zero:
        figure.update_yaxes(rangemode="tozero")
    return _HEIGHT_PX


def _labels(names: Sequence[float | str]) -> Sequence[str]:
    """Return names as Plotly shows them letter by letter: it takes some markup for markup."""
    return [escape(str(name), quote=False) for name in names]


def _hover(series: Series) -> Sequence[str]:
    """Return what is said of each point beside its value."""
    if series.counts is not None and series.low is not None and series.high is not None:
        return [
            f" ({low:.1%} to {high:.1%}, {count:,} games)" if low is not None and high is not None else ""
            for low, high, count in zip(series.low, series.high, series.counts, strict=True)
        ]
    return [""] * len(series.x)


def _draw_ladder(figure: "Figure", chart: Chart) -> int:
    (series,) = chart.series
    low, high, counts = series.low or [], series.high or [], series.counts or []
    figure.add_scatter(
        x=series.y,
        y=_labels(series.x),
        mode="markers",
        marker={"size": 8, "color": _colour(series)},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [(top or 0) - (mu or 0) for top, mu in zip(high, series.y, strict=True)],
            "arrayminus": [(mu or 0) - (bottom or 0) for bottom, mu in zip(low, series.y, strict=True)],
            "thickness": 1.5,
            "width": 0,
            "color": _colour(series, 0.55),
        },
        customdata=[f"{bottom:.1f}, {count:,} games" for bottom, count in zip(low, counts, strict=True)],
        hovertemplate="%{y}: %{x:.1f}, almost surely at least %{customdata}<extra></extra>",
    )
    figure.update_layout(showlegend=False)
    figure.update_yaxes(type="category", dtick=1)
    return 90 + _LADDER_LINE_PX * max(4, len(series.x))


def _draw_matrix(figure: "Figure", chart: Chart) -> int:
    matrix = chart.matrix
    assert matrix is not None
    figure.add_heatmap(
        x=_labels(matrix.names),
        y=_labels(matrix.names),
        z=matrix.values,
        customdata=matrix.games,
        zmin=0,
        zmax=1,
        colorscale=_SCALE,
        xgap=1,
        ygap=1,
        hoverongaps=False,
        hovertemplate="%{y} against %{x}: %{z:.2f} in %{customdata:,} games<extra></extra>",
        texttemplate="%{z:.2f}" if len(matrix.names) <= _MOST_WRITTEN else None,
        textfont={"size": 10},
        colorbar={"title": {"text": "score", "side": "right"}, "thickness": 12, "outlinewidth": 0},
    )
    look = {"type": "category", "dtick": 1, "showgrid": False}
    figure.update_xaxes(tickangle=-60, **look)
    figure.update_yaxes(autorange="reversed", **look)
    return 170 + _MATRIX_CELL_PX * max(6, len(matrix.names))
