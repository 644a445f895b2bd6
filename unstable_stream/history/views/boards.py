"""Draw the board of a game of marks from its moves: TicTacToe, SimpleTak, ConnectFour. Others have texts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from unstable_stream.history.views.transcript import Transcript, TranscriptMove

_NUMBER: Final = re.compile(r"\d+")
_SIZE: Final = re.compile(r"has (\d+) rows and (\d+) columns")
_CELL: Final = re.compile(r"^\|((?: *\w+ *\|)+) *$", re.MULTILINE)
_MARKS: Final = {"TicTacToe": "OX", "SimpleTak": "OX", "ConnectFour": "XO"}


@dataclass(frozen=True, slots=True)
class BoardPicture:
    """A board after a move."""

    columns: int
    cells: Sequence[int | None]
    """The seat whose mark is there, row by row from the top."""
    last: int | None
    """The cell that the move marked; ``None``: it was refused."""
    marks: str
    """The mark of each seat: ``X`` or ``O``."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.cells) // self.columns

    def says(self) -> str:
        """Return the board for who cannot see it, row by row."""
        signs = ["empty" if seat is None else self.marks[seat] for seat in self.cells]
        return "; ".join(
            f"row {row + 1}: {', '.join(signs[row * self.columns : (row + 1) * self.columns])}"
            for row in range(self.rows)
        )


def boards_of(transcript: Transcript) -> list[BoardPicture] | None:
    """Return the board after each move; ``None`` for a game that has none, or moves it does not know."""
    family = (transcript.env_id or "").split("-")[0]
    marks = _MARKS.get(family)
    if marks is None or any(move.seat not in (0, 1) for move in transcript.moves):
        return None
    rows, columns = _size(family, transcript.moves)
    cells: list[int | None] = [None] * (rows * columns)
    boards = []
    for move in transcript.moves:
        at = _cell(family, move, cells, columns) if move.valid else None
        if move.valid and at is None:
            return None
        if at is not None:
            cells[at] = move.seat
        boards.append(BoardPicture(columns, tuple(cells), at, marks))
    return boards


def _size(family: str, moves: Sequence[TranscriptMove]) -> tuple[int, int]:
    seen = next((move.observation for move in moves if move.observation), "")
    if family == "ConnectFour":
        found = _SIZE.search(seen)
        return (int(found[1]), int(found[2])) if found else (6, 7)
    if family == "TicTacToe":
        return 3, 3
    rows = [row.strip("|").count("|") + 1 for row in _CELL.findall(seen)]
    size = rows[0] if rows else 4
    return size, size


def _cell(family: str, move: TranscriptMove, cells: Sequence[int | None], columns: int) -> int | None:
    found = _NUMBER.search(move.action)
    number = int(found[0]) if found else len(cells)
    if family != "ConnectFour":
        return number if number < len(cells) and cells[number] is None else None
    if number >= columns:
        return None
    free = [cell for cell in range(number, len(cells), columns) if cells[cell] is None]
    return free[-1] if free else None
