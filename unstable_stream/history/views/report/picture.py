"""Draw a chart as SVG, for a paper: lines with their bands, axes, and the names of the lines."""

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from unstable_stream.history.views.report.charts import Chart, Series

_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#8c564b")
"""After Okabe and Ito (2008), so that the colour-blind tell them apart."""
_DASHES: Final = ("", "7 4", "2 3", "9 3 2 3")
_WIDTH: Final = 640
_HEIGHT: Final = 300
_LEFT: Final = 58
_RIGHT: Final = 26
_TOP: Final = 12
_BOTTOM: Final = 42
_NAMES: Final = 312
"""The place at which the names of the lines begin."""
_LINE_OF_NAMES: Final = 18
_TICKS: Final = 5


def svg_of(chart: Chart) -> str:
    """Return the picture of a chart of lines, which needs no other file; without points only its axes."""
    ys = [y for line in chart.series for values in (line.y, line.low or (), line.high or ()) for y in values]
    across = _ticks([float(x) for line in chart.series for x in line.x])
    up = _ticks([y for y in ys if y is not None] + [0.0] * (chart.percent or chart.from_zero))

    def place(x: float, y: float) -> str:
        right = _LEFT + (_WIDTH - _LEFT - _RIGHT) * (x - across[0]) / (across[-1] - across[0])
        return f"{right:.1f},{_TOP + (_HEIGHT - _TOP - _BOTTOM) * (up[-1] - y) / (up[-1] - up[0]):.1f}"

    parts = []
    for y in up:
        (x0, at), (x1, _) = (place(x, y).split(",") for x in (across[0], across[-1]))
        said = f"{100 * y:.10g} %" if chart.percent else f"{y:.6g}"
        parts.append(f'<line x1="{x0}" x2="{x1}" y1="{at}" y2="{at}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{float(at) + 4:.1f}" text-anchor="end">{said}</text>')
    floor = _HEIGHT - _BOTTOM + 16
    for x in across:
        at = place(x, up[0]).split(",")[0]
        parts.append(f'<text x="{at}" y="{floor}" text-anchor="middle">{x:,.10g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{floor + 18}" text-anchor="middle">{escape(chart.x_title)}</text>')
    turned = f'transform="rotate(-90 13 {_HEIGHT / 2 - 12})" text-anchor="middle"'
    parts.append(f'<text x="13" y="{_HEIGHT / 2 - 12}" {turned}>{escape(chart.y_title)}</text>')
    axes, bands, parts = parts, [], []  # lines lie over bands
    for number, line in enumerate(chart.series):
        colour, dash = _COLOURS[line.colour % len(_COLOURS)], _DASHES[line.dash % len(_DASHES)]
        look = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        if edge := " ".join(place(*point) for point in _band(line)):
            bands.append(f'<polygon points="{edge}" fill="{colour}" fill-opacity="0.15"/>')
        points = " ".join(place(float(x), y) for x, y in zip(line.x, line.y, strict=True) if y is not None)
        parts.append(f'<polyline points="{points}" fill="none" {look}/>')
        below = _NAMES + _LINE_OF_NAMES * number
        parts.append(f'<line x1="{_LEFT}" x2="{_LEFT + 30}" y1="{below}" y2="{below}" {look}/>')
        parts.append(f'<text x="{_LEFT + 38}" y="{below + 4}">{escape(line.name)}</text>')
    height = _NAMES + _LINE_OF_NAMES * len(chart.series)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif"'
    head += ' font-size="12"><rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, *axes, *bands, *parts, "</svg>\n"])


def _band(line: Series) -> list[tuple[float, float]]:
    """Return the outline of the band of a line; nothing if it has none."""
    known = [
        (float(x), low, high)
        for x, low, high in zip(line.x, line.low or (), line.high or (), strict=False)
        if low is not None and high is not None
    ]
    return [(x, high) for x, _, high in known] + [(x, low) for x, low, _ in reversed(known)]


def _ticks(values: Sequence[float]) -> list[float]:
    """Return round numbers, some five, that span the values; 0 and 1 without any."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    rough = (high - low or abs(high) or 1.0) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * number for number in range(first, max(last, first + 1) + 1)]
