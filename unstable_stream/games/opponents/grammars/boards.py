"""Boards: moves between squares, and cells to mark."""

import random
import re
from collections.abc import Mapping
from itertools import combinations, product
from typing import Final

from unstable_stream.games.opponents import legal_moves
from unstable_stream.games.opponents.trying import Grammar, Kinds
from unstable_stream.games.players import TurnContext

_FILES: Final = "abcdefghij"
_RANK: Final = re.compile(r"^ *(\d+) \|(.*)$", re.MULTILINE)
_SIDES: Final = [(1, 0), (-1, 0), (0, 1), (0, -1)]
_AROUND: Final = [step for step in product((-1, 0, 1), repeat=2) if step != (0, 0)]


def listed(turn: TurnContext, _: random.Random) -> Kinds:
    """Return the moves that the text lists; tried all the same, because some lists are wrong.

    Kinds are told apart by the first word: ``[draw]``, ``[discard 8♣ 0]``.
    """
    kinds: dict[str, list[str]] = {}
    for move in legal_moves.listed_moves(turn.observation):
        words = move.strip("[]").split()
        kinds.setdefault(words[0] if words[0].islower() and words[0].isalpha() else "", []).append(move)
    return list(kinds.values())


def occupied_squares(turn: TurnContext) -> dict[tuple[int, int], str]:
    """Return ``(file, rank)`` to the piece on it, both from 0, of the last board with numbered ranks."""
    rows = _RANK.findall(turn.observation)
    size = max((int(rank) for rank, _ in rows), default=0)
    pieces = {}
    for rank, row in rows[-size:] if size else []:
        cells = row.split("|")[:size] if "|" in row else row.split()
        for file, cell in enumerate(cells):
            if cell.strip() not in ("", "."):
                pieces[file, int(rank) - 1] = cell.strip()
    return pieces


def piece_moves(own: str, steps: list[tuple[int, int]], form: str) -> Grammar:
    """Return the grammar: a piece (``own[seat]``) goes by one of ``steps``, ``(files, ranks)``.

    It stays on the board and off its own side's squares.
    """

    def grammar(turn: TurnContext, _: random.Random) -> Kinds:
        pieces = occupied_squares(turn)
        mine = {square for square, piece in pieces.items() if piece == own[turn.seat]}
        size = max((int(rank) for rank, _ in _RANK.findall(turn.observation)), default=len(_FILES))
        moves = [
            form.format(_FILES[file], rank + 1, _FILES[file + right], rank + up + 1)
            for file, rank in pieces
            if (file, rank) in mine
            for right, up in steps
            if 0 <= file + right < size and 0 <= rank + up < size and (file + right, rank + up) not in mine
        ]
        return [moves]

    return grammar


def _lines(longest: int) -> list[tuple[int, int]]:
    return [(right * n, up * n) for right, up in _AROUND for n in range(1, longest + 1)]


def torpedoes(turn: TurnContext, _: random.Random) -> Kinds:
    """Return the squares not fired at: the ``~`` of the right one of the two last boards."""
    rows = re.findall(r"^([A-Z])  .* \1   (\S.*)$", turn.observation, re.MULTILINE)
    size = ord(rows[-1][0]) - ord("A") + 1 if rows else 0
    cells = [
        f"[{letter}{column}]"
        for letter, row in rows[-size:]
        for column, cell in enumerate(row.split())
        if cell == "~"
    ]
    return [cells or [f"[{chr(ord('A') + row)}{column}]" for row, column in product(range(20), range(20))]]


def card_pairs(turn: TurnContext, chance: random.Random) -> Kinds:
    """Return pairs of cards that lie face down (``.``), at most 200 of them."""
    rows = re.findall(r"^(\d+) ([.\w](?: [.\w])*) *$", turn.observation, re.MULTILINE)
    size = int(rows[-1][0]) + 1 if rows else 4
    hidden = [
        (int(row), column)
        for row, cells in rows[-size:]
        for column, cell in enumerate(cells.split())
        if cell == "."
    ]
    pairs = list(combinations(hidden or list(product(range(size), range(size))), 2))
    return [[f"[{a} {b} {c} {d}]" for (a, b), (c, d) in chance.sample(pairs, min(200, len(pairs)))]]


def othello_cells(turn: TurnContext, _: random.Random) -> Kinds:
    """Return all empty cells, and ``[skip]`` for who has no move."""
    rows = re.findall(r"^ ?(\d+)\|(.*)\|$", turn.observation, re.MULTILINE)
    size = int(rows[-1][0]) + 1 if rows else 8
    cells = [
        f"[{row}, {column}]"
        for row, line in rows[-size:]
        for column, cell in enumerate(line.split("|"))
        if cell.strip() == "."
    ]
    return [cells or [f"[{row}, {column}]" for row, column in product(range(8), repeat=2)], ["[skip]"]]


def tak_moves(turn: TurnContext, _: random.Random) -> Kinds:
    """Return placements of each sort of stone, and moves of one stone to a neighbouring square."""
    rows = re.findall(r"^ +(\d+) \|(.*)\|$", turn.observation, re.MULTILINE)
    size = int(rows[-1][0]) + 1 if rows else 4
    cells = {
        (int(row), column): cell
        for row, line in rows[-size:]
        for column, cell in enumerate(line.split("|"))
        if cell.strip()
    }
    free = [square for square in product(range(size), range(size)) if square not in cells]
    places = [f"[place () {{({r},{c}): [{sort}{turn.seat}]}}]" for sort in "FWC" for r, c in free]
    moves = [
        f"[move ({row},{column}) {{({row + down},{column + right}): [{stone}]}}]"
        for (row, column), cell in cells.items()
        for stone in sorted(set(re.findall(rf"[FWC]{turn.seat}", cell)))
        for down, right in _SIDES
    ]
    return [places, moves]


def santorini_moves(turn: TurnContext, _: random.Random) -> Kinds:
    """Return worker, from, to and building site, of the board: the list is right at first only."""
    rows = re.findall(r"^([A-E]) │(.*)│ [A-E]$", turn.observation, re.MULTILINE)[-5:]
    moves = []
    for row, (_, line) in enumerate(rows):
        for column, cell in enumerate(line.split("│")):
            worker = cell.split()[-1]
            if worker.startswith("NWG"[turn.seat]):
                moves += [
                    f"[{worker}{_square(row, column)}{_square(*to)}{_square(*site)}]"
                    for to in _neighbours((row, column))
                    for site in _neighbours(to)
                ]
    return [moves]


def _neighbours(square: tuple[int, int]) -> list[tuple[int, int]]:
    row, column = square
    near = [(row + down, column + right) for down, right in _AROUND]
    return [(r, c) for r, c in near if r in range(5) and c in range(5)]


def _square(row: int, column: int) -> str:
    return f"{'ABCDE'[row]}{column + 1}"


_STEPS_FORWARD: Final = [(right, up) for up in (1, -1) for right in (-1, 0, 1)]

GRAMMARS: Final[Mapping[str, Grammar]] = {
    "Alquerque": piece_moves("RB", _lines(2), "[{}{} {}{}]"),
    "Battleship": torpedoes,
    "Breakthrough": piece_moves("WB", _STEPS_FORWARD, "[{}{}{}{}]"),
    "ConnectFour": lambda turn, _: [[f"[col {column}]" for column in range(15)]],
    "Crusade": listed,
    "LinesOfAction": piece_moves("OX", _lines(7), "[{}{}{}{}]"),
    "MemoryGame": card_pairs,
    "Othello": othello_cells,
    "QuantumTicTacToe": lambda turn, _: [[f"[{a},{b}]" for a, b in combinations(range(9), 2)]],
    "SantoriniBaseFixed": santorini_moves,
    "Stratego": listed,
    "Tak": tak_moves,
    "UltimateTicTacToe": lambda turn, _: [[f"[{a} {b}]" for a, b in product(range(9), repeat=2)]],
}
