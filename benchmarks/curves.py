"""Draw curves on logarithmic axes as SVG, beside each other."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

_WIDTH: Final = 300
_HEIGHT: Final = 240
_MARGIN: Final = 48
_PANELS_A_ROW: Final = 4


def curves(
    panels: Mapping[str, Sequence[tuple[float, float]]], below: str = "", columns: int = _PANELS_A_ROW
) -> str:
    """Return an SVG with one curve for each title.

    Args:
        panels: the points of each curve, by title; all numbers are above 0.
        below: text under all curves.
        columns: the most curves beside each other.
    """
    columns = min(len(panels), columns)
    width = columns * (_WIDTH + 20)
    height = math.ceil(len(panels) / columns) * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, (title, points) in enumerate(panels.items()):
        row, column = divmod(number, columns)
        parts.append(f'<g transform="translate({column * (_WIDTH + 20) + _MARGIN} {row * _HEIGHT})">')
        parts += [*_panel(title, points), "</g>"]
    parts.append(f'<text x="{width / 2:.0f}" y="{height - 4}" text-anchor="middle">{below}</text></svg>')
    return "\n".join(parts) + "\n"


def _panel(title: str, points: Sequence[tuple[float, float]]) -> list[str]:
    """Return one curve on two logarithmic axes, each a decade wide per tick."""
    left, right = (math.floor(math.log10(min(x for x, _ in points))), math.ceil(math.log10(points[-1][0])))
    values = [math.log10(y) for _, y in points]
    low, high = math.floor(min(values)), math.ceil(max(values) + 1e-9)
    high = max(high, low + 1)

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - left) / max(1, right - left) * (_WIDTH - _MARGIN - 10)
        return across, 30 + (high - y) / (high - low) * (_HEIGHT - 70)

    parts = [f'<text x="0" y="16">{title}</text>']
    for decade in range(low, high + 1):
        _, y = at(left, decade)
        parts.append(f'<line x1="0" x2="{_WIDTH - _MARGIN - 10}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="-6" y="{y + 4:.0f}" text-anchor="end">{10.0**decade:g}</text>')
    for decade in range(left, right + 1):
        x, _ = at(decade, low)
        parts.append(f'<text x="{x:.0f}" y="{_HEIGHT - 20}" text-anchor="middle">1e{decade}</text>')
    places = [at(math.log10(x), math.log10(y)) for x, y in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#2471a3" stroke-width="2"/>')
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#2471a3"/>' for x, y in places]
    return parts
