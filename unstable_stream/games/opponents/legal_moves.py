"""Read legal moves from an environment's text: scripted players see no more than a model does.

An observation may hold the whole history, so the last match is always the present. Players' own words
come before the board the environment prints in answer to them, so they cannot fake one.
"""

import re
from typing import Final

from unstable_stream.errors import GameError

_LISTED: Final = re.compile(r"(?:Available|available|Valid) (?:[Mm]oves|[Aa]ctions)(?: are)?: (.*)")
_NUMBERED: Final = re.compile(r"^Numbers of the moves: (.*)$", re.MULTILINE)
_NUMBER: Final = re.compile(r"(\d+) = ([^;]+)")
_MOVE: Final = re.compile(r"\[[^\[\]]+\]")
_ROW: Final = re.compile(r"^ *\|?((?: *(?:[A-Z]|\d+) *\|)+ *(?:[A-Z]|\d+) *)\|? *$", re.MULTILINE)
_PILE: Final = re.compile(r"^ *pile (\d+): (\d+)$", re.MULTILINE)
_DISCS: Final = re.compile(r"^[.XO](?: [.XO])+$", re.MULTILINE)


def listed_moves(observation: str) -> list[str]:
    """Return the moves of the last ``Available Moves: [0], [3]`` (or ``Valid moves: …``) line, in its order.

    Raises:
        GameError: there is no such line, or it is empty.
    """
    lines = _LISTED.findall(observation)
    moves = _MOVE.findall(lines[-1]) if lines else []
    if not moves:
        raise _unreadable("a list of available moves", observation)
    return moves


def legal_moves(observation: str) -> list[str]:
    """Return the moves that an observation lists, or that its board allows.

    Raises:
        GameError: it shows neither.
    """
    try:
        return listed_moves(observation)
    except GameError:
        return connect_four_columns(observation)


def numbered_moves(observation: str) -> dict[int, str]:
    """Return the names of the moves of a game of OpenSpiel by their numbers; empty for another game."""
    lines = _NUMBERED.findall(observation)
    return {int(number): name for number, name in _NUMBER.findall(lines[-1])} if lines else {}


def othello_moves(observation: str) -> list[str]:
    """Return the listed moves. If there are none, the environment skips the turn for any action."""
    skip = observation.rfind("No valid moves")
    if skip > observation.rfind("Valid moves:"):
        return ["[skip]"]
    return listed_moves(observation)


def grid_cells(observation: str) -> list[str]:
    """Return the cells of the last square board of numbers and symbols, row by row.

    A free cell holds its number, a taken one its owner's symbol, as in TicTacToe and SimpleTak.

    Raises:
        GameError: no square board is found.
    """
    rows = [[cell.strip() for cell in row.split("|")] for row in _ROW.findall(observation)]
    size = len(rows[-1]) if rows else 0
    board = rows[-size:]
    if size < 2 or len(board) != size or any(len(row) != size for row in board):
        raise _unreadable("a square board", observation)
    return [cell for row in board for cell in row]


def nim_piles(observation: str) -> list[int]:
    """Return the current pile sizes. Raises :class:`GameError` if there are none."""
    piles = [(int(index), int(size)) for index, size in _PILE.findall(observation)]
    if not piles:
        raise _unreadable("piles", observation)
    # Every board lists all piles from number 0 on: the last board begins at the last 0.
    begin = max(position for position, (index, _) in enumerate(piles) if index == 0)
    return [size for _, size in piles[begin:]]


def nim_moves(observation: str) -> list[str]:
    """Return every ``[pile quantity]`` that is possible now."""
    return [
        f"[{pile} {quantity}]"
        for pile, size in enumerate(nim_piles(observation))
        for quantity in range(1, size + 1)
    ]


def connect_four_rows(observation: str) -> list[str]:
    """Return the last board's rows from top to bottom, one character per column (``.``, ``X`` or ``O``).

    Raises:
        GameError: no board is shown, as in the blind variants.
    """
    board = observation.rfind("Board state:")
    rows = [row.replace(" ", "") for row in _DISCS.findall(observation, max(board, 0))]
    if board == -1 or not rows:
        raise _unreadable("a Connect Four board", observation)
    return rows


def connect_four_columns(observation: str) -> list[str]:
    """Return ``[col 3]`` for every column that is not full."""
    top = connect_four_rows(observation)[0]
    return [f"[col {column}]" for column, disc in enumerate(top) if disc == "."]


def _unreadable(expected: str, observation: str) -> GameError:
    return GameError(f"expected {expected} in the observation, found {observation[-300:]!r}")
