"""Draw docs/images/collapse.svg from two runs: python docs/images/collapse.py COLLAPSED FORK [DATA]."""

import sys
from pathlib import Path

import unstable_stream as us

WIDTH, HEIGHT, LEFT, TOP = 640, 240, 44, 24
QUERY = "SELECT update, metrics['legal_fraction'] FROM updates WHERE run_id = ? ORDER BY update"


def line(points: list[tuple[int, float]], last: int, colour: str) -> str:
    """Return one curve; an update without games leaves no point."""
    place = " ".join(
        f"{LEFT + (WIDTH - LEFT - 10) * update / last:.1f},{TOP + (HEIGHT - 2 * TOP) * (1 - share):.1f}"
        for update, share in points
    )
    return f'<polyline points="{place}" fill="none" stroke="{colour}" stroke-width="2"/>'


def main(collapsed: str, fork: str, data: str = "unstable-data") -> None:
    """Write the figure beside this file."""
    curves = []
    for run in (collapsed, fork):
        opened = us.open_run(run, data)
        rows = opened.sql(QUERY, [opened.id])
        curves.append([(int(row[0]), float(row[1])) for row in rows if row[1] is not None])
    last = max(update for curve in curves for update, _ in curve)
    ticks = "".join(
        f'<text x="4" y="{TOP + (HEIGHT - 2 * TOP) * (1 - share) + 4:.0f}">{share:.0%}</text>'
        for share in (0.0, 0.5, 1.0)
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="15">legal moves by update, 0 to {last}: collapsed run red, its fork blue'
        f"</text>{ticks}",
        line(curves[0], last, "#c0392b"),
        line(curves[1], last, "#2471a3"),
        "</svg>",
    ]
    Path(__file__).with_suffix(".svg").write_text("\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
