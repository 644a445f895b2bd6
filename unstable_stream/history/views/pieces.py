"""Read boards with pieces of several kinds, chess and checkers, from the texts of TextArena and OpenSpiel."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

_RUN: Final = re.compile(r"[1-8]")
_AS_TEXT: Final = "\N{VARIATION SELECTOR-15}"
"""Else some systems draw a colourful picture."""
_ROW: Final = re.compile(r"^ *([1-8]) \| ([\w. ]{15}) \|$", re.MULTILINE)
_ROW_OF_CHECKERS: Final = re.compile(r"^ *([0-7]) \|([rbRB. ]{24})$", re.MULTILINE)
_FEN: Final = re.compile(r"^()([1-8a-zA-Z]+(?:/[1-8a-zA-Z]+){7}) [wb] ", re.MULTILINE)
_NUMBERED_ROW: Final = re.compile(r"^([1-8])([.o+8*]{8})$", re.MULTILINE)


class BoardPiece(NamedTuple):
    """A kind of piece of one side."""

    seat: int
    glyph: str
    """One character, as text and not as a picture."""
    name: str


def _pieces(kinds: Sequence[str], *sides: tuple[int, str, str, str]) -> dict[str, BoardPiece]:
    """Return the pieces by their letters; a side is seat, name, glyphs, and letters in the order of kinds."""
    return {
        letter: BoardPiece(seat, glyph + _AS_TEXT, f"{side} {kind}")
        for seat, side, glyphs, letters in sides
        for letter, glyph, kind in zip(letters, glyphs, kinds, strict=True)
    }


def _chess(white: int) -> dict[str, BoardPiece]:
    kinds = ("king", "queen", "rook", "bishop", "knight", "pawn")
    sides = (white, "white", "♔♕♖♗♘♙", "KQRBNP"), (1 - white, "black", "♚♛♜♝♞♟", "kqrbnp")
    return _pieces(kinds, *sides)


def _checkers(first: str, second: str) -> dict[str, BoardPiece]:
    return _pieces(("man", "king"), (0, "seat 0's", "●♛", first), (1, "seat 1's", "●♛", second))


@dataclass(frozen=True, slots=True)
class PieceGame:
    """The way in which the texts of one game show its board."""

    row: re.Pattern[str]
    """Matches the number of a row, if it has one, and its cells; all rows at once where it has none."""
    pieces: Mapping[str, BoardPiece]
    letters: bool = True
    """Cells are called by letter and number; otherwise by row and column."""

    def read(self, text: str) -> tuple[list[BoardPiece | None], list[str]] | None:
        """Return the last board of a text, row by row from the top, and how its cells are called."""
        found = self.row.findall(text)
        if found and "/" in found[-1][1]:  # Forsyth-Edwards notation
            whole = _RUN.sub(lambda run: "." * int(run[0]), found[-1][1])
            found = [(f"{8 - place}", line) for place, line in enumerate(whole.split("/"))]
        rows = [(number, line.replace(" ", "")) for number, line in found[-8:]]
        if len(rows) < 8 or any(len(line) != 8 for _, line in rows):
            return None
        names = [
            f"{'abcdefgh'[column]}{number}" if self.letters else f"{number} {column}"
            for number, _ in rows
            for column in range(8)
        ]
        return [self.pieces.get(sign) for _, line in rows for sign in line], names


PIECE_GAMES: Final = {
    "Chess": PieceGame(_ROW, _chess(white=0)),
    "Checkers": PieceGame(_ROW_OF_CHECKERS, _checkers("rR", "bB"), letters=False),
    "openspiel:chess": PieceGame(_FEN, _chess(white=1)),
    "openspiel:checkers": PieceGame(_NUMBERED_ROW, _checkers("o8", "+*")),
}
"""By what an environment's id begins with."""
