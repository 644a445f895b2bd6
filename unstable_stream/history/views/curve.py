"""Draw how often a run's checkpoints won evaluation games, by update, as text for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Self

from rich.console import Console, ConsoleOptions
from rich.text import Text

from unstable_stream.history.views.report.reading import read_results
from unstable_stream.history.views.results import Point, against
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.runs.run_view import Matchup

_ASKED_FIRST: Final = "random-legal"
_ROWS: Final = 10
_FEWEST_COLUMNS: Final = 24
_MOST_COLUMNS: Final = 80
_MARGIN: Final = 6
"""Columns of the vertical axis."""
_TOPS: Final = (0.1, 0.2, 0.5, 1.0)
_BRAILLE: Final = 0x2800
# The dots of a character from its lower left to its upper right one: Unicode numbers them otherwise.
_DOTS: Final = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))

_Dots = set[tuple[int, int]]


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run in one environment against one opponent, by update; for Rich."""

    says: str
    """The title of the picture."""
    points: Sequence[Point]

    @classmethod
    def of(cls, curves: Mapping[Matchup, Sequence[Point]]) -> Self | None:
        """Return the curve against random-legal, else that against the first opponent; ``None``: no curve.

        Points are by update, and those of one update make none.
        """
        several = len({met.env_id for met in curves}) > 1
        for met in sorted(curves, key=lambda met: met.opponent != _ASKED_FIRST):
            points = curves[met]
            if points[-1].update > points[0].update:
                said = against(met, several=several)
                return cls(f"evaluation games won {said}, with 95 % intervals", points)
        return None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        columns = max(_FEWEST_COLUMNS, min(_MOST_COLUMNS, options.max_width))
        yield Text("\n".join(self.lines(columns, ascii_only=options.ascii_only)), no_wrap=True)

    def lines(self, columns: int = _MOST_COLUMNS, *, ascii_only: bool = False) -> list[str]:
        """Return the picture's lines, at most ``columns`` wide; with ``ascii_only`` it is of ``*`` and ``|``.

        A character holds 2 by 4 dots. The curve is straight from point to point.
        """
        wide, tall = 2 * (columns - _MARGIN), 4 * _ROWS
        top = next(top for top in _TOPS if top >= max(point.high for point in self.points))
        first, last = self.points[0].update, self.points[-1].update

        def dot(update: int, share: float) -> tuple[int, int]:
            return round((update - first) / (last - first) * (wide - 1)), round(share / top * (tall - 1))

        curve: _Dots = set()
        intervals: _Dots = set()
        for point in self.points:
            across, low = dot(point.update, point.low)
            # Every second dot: the curve stands out.
            intervals |= {(across, up) for up in range(low, dot(point.update, point.high)[1] + 1, 2)}
        for before, after in pairwise(self.points):
            (x0, y0), (x1, y1) = dot(before.update, before.share), dot(after.update, after.share)
            count = max(x1 - x0, abs(y1 - y0), 1)
            curve |= {
                (x0 + round((x1 - x0) * step / count), y0 + round((y1 - y0) * step / count))
                for step in range(count + 1)
            }
        character = _ascii if ascii_only else _braille
        edge, corner, floor = "|+-" if ascii_only else "│└─"
        labels = {dot(first, share)[1] // 4: f"{share:.0%}" for share in (top / 2, top)}
        made = []
        for row in reversed(range(_ROWS)):
            cells = (character(_cell(x, row), curve, intervals) for x in range(columns - _MARGIN))
            made.append(f"{labels.get(row, ''):>{_MARGIN - 1}}{edge}{''.join(cells)}")
        made.append(f"{'0%':>{_MARGIN - 1}}{corner}{floor * (columns - _MARGIN)}")
        ends = f"{first}{'learner update':^{columns - _MARGIN - len(f'{first}{last}')}}{last}"
        made.append(" " * _MARGIN + ends)
        return [line.rstrip() for line in made]


def read_curve(archive: ArchiveAddress, run_id: str) -> Curve | None:
    """Return the curve of a run of an archive, if it was evaluated more than once."""
    curves: dict[Matchup, list[Point]] = {}
    for row in read_results(archive, run_id):
        if not row["together"]:
            points = curves.setdefault(Matchup(row["env_id"], row["opponent"], row["model"]), [])
            points.append(Point(row["version"], row["win_rate"], row["low"], row["high"], row["games"]))
    return Curve.of(curves)


def _cell(column: int, row: int) -> list[tuple[int, int, int]]:
    """Return the dots of a character: across, up, and its bit in Braille."""
    return [
        (2 * column + across, 4 * row + up, bit)
        for across, bits in enumerate(_DOTS)
        for up, bit in enumerate(bits)
    ]


def _braille(cell: list[tuple[int, int, int]], curve: _Dots, intervals: _Dots) -> str:
    bits = sum(bit for x, y, bit in cell if (x, y) in curve or (x, y) in intervals)
    return chr(_BRAILLE + bits) if bits else " "


def _ascii(cell: list[tuple[int, int, int]], curve: _Dots, intervals: _Dots) -> str:
    dots = {(x, y) for x, y, _ in cell}
    return "*" if dots & curve else "|" if dots & intervals else " "
