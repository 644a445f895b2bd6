"""Draw the boards of a game: from the moves of TicTacToe, SimpleTak and ConnectFour, from the grids that
games of OpenSpiel show, and from the texts of chess and checkers. Cells have the names by which actions call
them. Other games have texts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias

from unstable_stream.history.views.pieces import PIECE_GAMES, BoardPiece, PieceGame
from unstable_stream.history.views.transcript import TranscriptMove

_SIZE: Final = re.compile(r"has (\d+) rows and (\d+) columns")
_CELL: Final = re.compile(r"^\|((?: *\w+ *\|)+) *$", re.MULTILINE)
_OPENSPIEL: Final = re.compile(r"openspiel:(\w+)")
_BRACKETS: Final = re.compile(r"\[([^\[\]]+)\]")
_CARD: Final = re.compile(r"([Yy]our|[Pp]ublic) card(?: is)?: '?((?:10|[2-9JQKA])[0-9♠♥♦♣]?)\b'?")

_Kind: TypeAlias = Literal["mark", "move", "turn"]
"""An action marks the cell that it names, takes a piece from one to another, or changes other cells too."""


class _Family(NamedTuple):
    """The facts that are known of a game."""

    signs: str
    """The sign of each seat in its texts."""
    kind: _Kind
    names: Literal["numbers", "columns", "places", "squares"]
    """Cells are called by their number, their column, row and column, or letter and number."""


_MARKED: Final = {
    "TicTacToe": _Family("OX", "mark", "numbers"),
    "SimpleTak": _Family("OX", "mark", "numbers"),
    "ConnectFour": _Family("XO", "mark", "columns"),
}
_OF_PIECES: Final = _Family("  ", "turn", "squares")
_GRIDS: Final = {
    "tic_tac_toe": _Family("xo", "mark", "places"),
    "mnk": _Family("xo", "mark", "places"),
    "gomoku": _Family("bw", "mark", "places"),
    "connect_four": _Family("xo", "mark", "columns"),
    "hex": _Family("xo", "mark", "squares"),
    "breakthrough": _Family("bw", "move", "squares"),
    "clobber": _Family("ox", "move", "squares"),
    "lines_of_action": _Family("xo", "move", "squares"),
    "othello": _Family("xo", "turn", "squares"),
    "go": _Family("XO", "turn", "squares"),
}


@dataclass(frozen=True, slots=True)
class BoardPicture:
    """A board after a move."""

    columns: int
    cells: Sequence[int | None]
    """The seat whose mark is there, row by row from the top."""
    names: Sequence[str]
    """The name of each cell in an action; discs fall, so that all cells of a column have its name."""
    marks: str
    """The mark of each seat: ``X`` or ``O``; other letters are pieces."""
    last: Sequence[int] = ()
    """The cells that the move named; none: it was refused."""
    pieces: Sequence[BoardPiece | None] = ()
    """The piece of each cell, in games whose pieces are of several kinds."""
    before: bool = False
    """It is as it was before the move: what the move changed is not recorded."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.cells) // self.columns

    def says(self) -> str:
        """Return the board for who cannot see it, row by row."""
        signs: list[str] = ["empty" if seat is None else self.marks[seat] for seat in self.cells]
        signs = [piece.name if piece else "empty" for piece in self.pieces] or signs
        return "; ".join(
            f"row {row + 1}: {', '.join(signs[row * self.columns : (row + 1) * self.columns])}"
            for row in range(self.rows)
        )

    def falls_to(self, cell: int) -> int | None:
        """Return the cell that is marked if this one is named; ``None``: its column is full."""
        called = [other for other, name in enumerate(self.names) if name == self.names[cell]]
        free = [other for other in called if self.cells[other] is None]
        return cell if len(called) == 1 else free[-1] if free else None

    def called(self, action: str) -> tuple[int, ...]:
        """Return the cells that an action names, in its order."""
        known = "|".join(map(re.escape, sorted(set(self.names), key=len, reverse=True)))
        found = re.findall(rf"(?:(?<!\d)|(?=[a-z]))(?:{known})(?!\d)", action.casefold())
        cells = (self.falls_to(self.names.index(name)) for name in found)
        return tuple(cell for cell in cells if cell is not None)


def boards_of(env_id: str | None, moves: Sequence[TranscriptMove]) -> list[BoardPicture | None] | None:
    """Return the board after each move, as far as it is known; ``None`` for a game that has none."""
    family = (env_id or "").split("-")[0]
    spiel = _OPENSPIEL.match(env_id or "")
    of_pieces = PIECE_GAMES.get(spiel[0] if spiel else family)
    game = _OF_PIECES if of_pieces else _GRIDS.get(spiel[1]) if spiel else _MARKED.get(family)
    if game is None or any(move.seat not in (0, 1) for move in moves):
        return None
    texts = [move.observation or "" for move in moves]
    seen = [
        _set_up(of_pieces, text) if of_pieces else _grid(game, spiel[1], text) if spiel else None
        for text in texts
    ]
    board = None if spiel or of_pieces else _empty(game, family, moves)
    boards: list[BoardPicture | None] = []
    for turn, move in enumerate(moves):
        board = seen[turn] or board
        then = seen[turn + 1] if turn + 1 < len(moves) else None
        if move.valid and board is not None:
            board = _after(board, then, game, move, named=spiel is not None)
            if board is None and game.kind == "mark" and not spiel:
                return None  # accepted by rules that are not these
        else:
            board = then or (replace(board, last=(), before=False) if board else None)
        boards.append(board)
    return boards if any(boards) else None


def board_now(
    env_id: str, moves: Sequence[TranscriptMove], seat: int, observation: str
) -> BoardPicture | None:
    """Return the board of a game that goes on; ``observation``: what the seat sees, if it is to move."""
    now = TranscriptMove(len(moves), seat, "", False, observation or None, None, None, None)
    boards = boards_of(env_id, [*moves, now])
    return boards[-2 if moves else -1] if boards else None


def cards_of(observation: str | None) -> dict[str, str]:
    """Return the last cards that a text names, by whose they are; none if it is no game of cards."""
    return {whose.casefold(): card for whose, card in _CARD.findall(observation or "")}


def _after(
    board: BoardPicture, then: BoardPicture | None, game: _Family, move: TranscriptMove, *, named: bool
) -> BoardPicture | None:
    """Return the board after an accepted move; ``then``: as the next text shows it."""
    many = 1 if game.kind == "mark" else 2
    called = board.called(spelled(move) if named else move.action)[:many]
    if then is not None:
        return replace(then, last=called)
    cells = list(board.cells)
    if game.kind == "turn":
        return replace(board, last=called, before=True)
    if len(called) != many or (game.kind == "mark" and cells[called[0]] is not None):
        return None
    if game.kind == "move":
        cells[called[0]] = None
    cells[called[-1]] = move.seat
    return replace(board, cells=tuple(cells), last=called, before=False)


def spelled(move: TranscriptMove) -> str:
    """Return the name of the move of an answer, which may be the move's number in the list of all."""
    said = (_BRACKETS.findall(move.action) or [move.action])[-1].strip()
    listed = re.search(rf"\b{said} = ([^;\n]+)", move.observation or "") if said.isdecimal() else None
    return listed[1] if listed else said


def _empty(game: _Family, family: str, moves: Sequence[TranscriptMove]) -> BoardPicture:
    text = next((move.observation for move in moves if move.observation), "")
    rows = columns = 3
    if family == "ConnectFour":
        found = _SIZE.search(text)
        rows, columns = (int(found[1]), int(found[2])) if found else (6, 7)
    elif family == "SimpleTak":
        cells = [row.strip("|").count("|") + 1 for row in _CELL.findall(text)]
        rows = columns = cells[0] if cells else 4
    return _picture(game, columns, [None] * (rows * columns), [""] * rows)


def _set_up(game: PieceGame, text: str) -> BoardPicture | None:
    read = game.read(text)
    if read is None:
        return None
    pieces, names = read
    return BoardPicture(8, [piece and piece.seat for piece in pieces], names, "  ", pieces=pieces)


def _grid(game: _Family, name: str, text: str) -> BoardPicture | None:
    """Return the grid of a text of OpenSpiel: rows of the same length, perhaps numbered."""
    row = re.compile(rf" *(\d*) *((?:[{game.signs}.+-] ?)+) *\d* *")
    found = [match for match in map(row.fullmatch, text.splitlines()) if match]
    lines = [match[2].replace(" ", "") for match in found]
    if len(lines) < 2 or len({len(line) for line in lines}) > 1:
        return None
    cells = [game.signs.index(sign) if sign in game.signs else None for sign in "".join(lines)]
    return _picture(game, len(lines[0]), cells, [match[1] for match in found], go=name == "go")


def _picture(
    game: _Family, columns: int, cells: Sequence[int | None], numbers: Sequence[str], *, go: bool = False
) -> BoardPicture:
    letters = "abcdefghjklmnopqrst" if go else "abcdefghijklmnopqrst"
    names = []
    for cell in range(len(cells)):
        row, column = divmod(cell, columns)
        names.append(
            {
                "numbers": f"{cell}",
                "columns": f"{column}",
                "places": f"{row},{column}",
                "squares": f"{letters[column % len(letters)]}{numbers[row] or row + 1}",
            }[game.names]
        )
    return BoardPicture(columns, tuple(cells), names, game.signs.upper())
