"""Tell games otherwise: a table of disguises for each game that has some.

A disguise reads the facts in an environment's text and words them anew; nothing else gets through, so that
what it hides stays hidden and no name of the game is left. To add a game: write a function from the first
text of a game, and a generator to choose with, to a :class:`Disguise`; enter it in :data:`WORDINGS`, and walk
it in ``tests/games/test_disguises.py``.
"""

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, TypeAlias

from unstable_stream.games.opponents.legal_moves import connect_four_rows, grid_cells


@dataclass(frozen=True, slots=True)
class Disguise:
    """Other words for one game."""

    actions: Mapping[str, str]
    """By an action's name in the environment, without brackets: its name in disguise. All differ."""
    tell: Callable[[str], str]
    """The environment's text to that in disguise."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Disguise":
        """Return itself: nothing in it changes, and a game is copied to try a move."""
        return self


Maker: TypeAlias = Callable[[str, random.Random], Disguise]
"""Makes a disguise of a game from its first text; chooses with the generator alone."""

_SEAT: Final = re.compile(r"[Pp]layer (\d)")
_LINE: Final = re.compile(r"^([A-Z][a-z ]+(?: of round \d)?(?: \d)?): (.+)$", re.MULTILINE)
_PEOPLE: Final = (("Ada", "Bo"), ("North", "South"), ("the red side", "the blue side"))
_LISTS: Final = ("Available moves", "Available actions", "Valid moves", "Valid actions")
_SYLLABLES: Final = [first + second for first, second in product("bdfgklmnprstvz", "aeiou")]
_NUMBERS: Final = [str(number) for number in range(20, 100)]


def _say(chance: random.Random, *sentences: Sequence[str]) -> str:
    """Return rules: one wording of each sentence, in any order."""
    chosen = [chance.choice(wordings) for wordings in sentences]
    return "\n".join(chance.sample(chosen, len(chosen)))


def _listed(form: str, actions: Sequence[str]) -> str:
    named = ", ".join(f"'[{action}]'" for action in actions)
    return f"{form}: {named}"


def _seat(text: str) -> int:
    found = _SEAT.search(text)
    assert found is not None, "every text of these games begins with the player's number"
    return int(found[1])


# -- marks on a square board: TicTacToe, SimpleTak ------------------------------------------------------

_MARKED: Final = re.compile(r"Player (\d) placed their symbol \(.\) in cell (\d+)")
_MARKS: Final = (("#", "@"), ("*", "+"), ("%", "&"))


def _mirrored(chance: random.Random, size: int) -> list[int]:
    """Return the cells of a square in the order in which one of its eight symmetries shows them."""
    across, down, turned = (chance.random() < 0.5 for _ in range(3))
    shown = []
    for row, column in product(range(size), repeat=2):
        row, column = (column, row) if turned else (row, column)
        shown.append((size - 1 - row if down else row) * size + (size - 1 - column if across else column))
    return shown


def _grid(goal: Sequence[str]) -> Maker:
    def make(first: str, chance: random.Random) -> Disguise:
        total = len(grid_cells(first))
        size = math.isqrt(total)
        shown = _mirrored(chance, size)
        labels = chance.sample(chance.choice((_SYLLABLES, _NUMBERS)), total)
        marks, people = chance.choice(_MARKS), chance.choice(_PEOPLE)
        verb, form = chance.choice(("mark ", "take ", "")), chance.choice(_LISTS)
        actions = {str(cell): f"{verb}{labels[cell]}" for cell in range(total)}
        rules = _say(
            chance,
            (
                f"Two sides put marks on a square of {size} by {size} places in turn, one on one free place.",
                f"There are {size} rows of {size} places; in turn, each of two sides marks one that is free.",
            ),
            goal,
            ("A free place shows its name.", "Where nobody has marked, the name of the place stands."),
            (
                f"The marks of {people[0]} are '{marks[0]}', those of {people[1]} '{marks[1]}'.",
                f"'{marks[1]}' belongs to {people[1]}, '{marks[0]}' to {people[0]}.",
            ),
        )

        def tell(text: str) -> str:
            cells = grid_cells(text)
            words = [
                labels[cell] if cells[cell].isdecimal() else marks["OX".index(cells[cell])] for cell in shown
            ]
            rows = [" ".join(f"{word:<2}" for word in words[at : at + size]) for at in range(0, total, size)]
            played = [f"{people[int(who)]} {labels[int(cell)]}" for who, cell in _MARKED.findall(text)]
            free = [actions[str(cell)] for cell in shown if cells[cell].isdecimal()]
            return "\n".join(
                [
                    f"You are {people[_seat(text)]}.",
                    rules,
                    f"So far: {', '.join(played) or 'nothing'}",
                    *(row.rstrip() for row in rows),
                    _listed(form, free),
                ]
            )

        return Disguise(actions, tell)

    return make


_IN_A_ROW: Final = (
    "Who first has three own marks in a line wins: along a row, from top to bottom, or corner to corner.",
    "Three own marks in a straight line win, be it across, down or on one of the two diagonals.",
)
_EDGES: Final = (
    "Who joins two opposite edges, left and right or top and bottom, by an unbroken path of own marks wins.",
    "An unbroken path of own marks from one edge to the edge opposite to it wins.",
)


# -- the same boards in the game's own words, for templates that read boards ----------------------------


def _board(head: str, edge: str) -> Maker:
    """Return the maker: mirrored, and the places numbered in another order.

    ``head`` names the game and the symbols; ``edge`` is printed on both sides of a row.
    """

    def make(first: str, chance: random.Random) -> Disguise:
        total = len(grid_cells(first))
        size = math.isqrt(total)
        shown = _mirrored(chance, size)
        numbers = [str(number) for number in chance.sample(range(total), total)]

        def tell(text: str) -> str:
            cells, seat = grid_cells(text), _seat(text)
            words = [numbers[cell] if cells[cell].isdecimal() else cells[cell] for cell in shown]
            rows = [" | ".join(words[begin : begin + size]) for begin in range(0, total, size)]
            played = [f"Player {who} {numbers[int(cell)]}" for who, cell in _MARKED.findall(text)]
            free = [numbers[cell] for cell in shown if cells[cell].isdecimal()]
            return "\n".join(
                [
                    head.format(seat=seat, mine="OX"[seat], theirs="XO"[seat]),
                    f"Moves so far: {', '.join(played) or 'none'}",
                    *(f"{edge} {row} {edge}".rstrip() for row in rows),
                    _listed("Available Moves", free),
                ]
            )

        return Disguise({str(cell): numbers[cell] for cell in range(total)}, tell)

    return make


_TICTACTOE: Final = (
    "You are Player {seat} in Tic Tac Toe. Win three in a row, horizontally, vertically, or diagonally. As "
    "Player {seat}, you will be '{mine}', while your opponent is '{theirs}'. Choose a free square's number."
)
_SIMPLETAK: Final = (
    "You are Player {seat} in SimpleTak. On the board, your stones appear as '{mine}' and your opponent's as "
    "'{theirs}'. Connect two opposite edges of the board by a continuous path of your stones. Choose an "
    "empty cell's number."
)


# -- Connect Four ---------------------------------------------------------------------------------------

_DROPPED: Final = re.compile(r"Player (\d) dropped their disk \(.\) into column (\d+)")


def _connect_four(first: str, chance: random.Random) -> Disguise:
    height, width = len(connect_four_rows(first)), len(connect_four_rows(first)[0])
    shown = list(range(width))[:: chance.choice((1, -1))]
    labels = chance.sample(chance.choice((_SYLLABLES, _NUMBERS)), width)
    marks, people = chance.choice(_MARKS), chance.choice(_PEOPLE)
    verb, form = chance.choice(("into ", "shaft ", "")), chance.choice(_LISTS)
    actions = {f"col {column}": f"{verb}{labels[column]}" for column in range(width)}
    rules = _say(
        chance,
        (
            f"Two sides throw balls into {width} open shafts in turn; a shaft holds {height}.",
            f"There are {width} shafts with room for {height} balls each; two sides throw one ball in turn.",
        ),
        ("A ball falls onto those that lie in its shaft.", "Each ball comes to lie as low as it can."),
        (
            "Who first has four own balls in a line wins: across, upright or slanting.",
            "Four own balls next to each other in a straight line win, in any of the eight directions.",
        ),
        (
            f"The balls of {people[0]} are '{marks[0]}', those of {people[1]} '{marks[1]}'.",
            f"'{marks[1]}' belongs to {people[1]}, '{marks[0]}' to {people[0]}.",
        ),
    )

    def tell(text: str) -> str:
        rows = connect_four_rows(text)
        played = [f"{people[int(who)]} {labels[int(column)]}" for who, column in _DROPPED.findall(text)]
        told = {".": "--", "X": marks[0], "O": marks[1]}
        return "\n".join(
            [
                f"You are {people[_seat(text)]}.",
                rules,
                f"So far: {', '.join(played) or 'nothing'}",
                " ".join(labels[column] for column in shown),
                *(" ".join(f"{told[row[column]]:<2}" for column in shown).rstrip() for row in rows),
                _listed(form, [actions[f"col {column}"] for column in shown if rows[0][column] == "."]),
            ]
        )

    return Disguise(actions, tell)


# -- Nim, of TextArena and of OpenSpiel -----------------------------------------------------------------

_PILE: Final = re.compile(r"^ *pile (\d+): (\d+)$", re.MULTILINE)
_REMOVED: Final = re.compile(r"Player (\d) removes (\d+) from pile (\d+)")


def _nim(first: str, chance: random.Random) -> Disguise:
    piles = {pile: int(size) for pile, size in _PILE.findall(first)}
    plain = "pile:{}, take:{}" if "Game: nim" in first else "{} {}"
    wins = "takes the last one loses" not in first
    shown = chance.sample(list(piles), len(piles))
    labels = dict(zip(piles, chance.sample(_SYLLABLES, len(piles)), strict=True))
    things = chance.choice(("beads", "books", "shells"))
    people, form = chance.choice(_PEOPLE), chance.choice(_LISTS)
    told = chance.choice(("{} {}", "{1} of {0}", "fetch {1} from {0}"))
    actions = {
        plain.format(pile, number): told.format(labels[pile], number)
        for pile in shown
        for number in range(1, piles[pile] + 1)
    }
    result = "wins" if wins else "loses"
    rules = _say(
        chance,
        (
            f"In turn, each side takes away {things} from one shelf: one or more, up to all that lie there.",
            f"A move takes some {things}, at least one, and all of them from the same shelf.",
        ),
        (
            f"Whoever is left with no {things} to take {'loses' if wins else 'wins'}.",
            f"The side that clears the last shelf {result}.",
        ),
    )

    def tell(text: str) -> str:
        left = {pile: int(size) for pile, size in _PILE.findall(text)}
        played = [
            f"{people[int(who)]} {labels[pile]} {number}" for who, number, pile in _REMOVED.findall(text)
        ]
        legal = [actions[plain.format(pile, number)] for pile in shown for number in range(1, left[pile] + 1)]
        return "\n".join(
            [
                f"You are {people[_seat(text)]}.",
                rules,
                *([f"So far: {', '.join(played)}"] if played else []),
                *(f"shelf {labels[pile]}: {left[pile]} {things}" for pile in shown),
                _listed(form, legal),
            ]
        )

    return Disguise(actions, tell)


# -- Kuhn and Leduc poker of OpenSpiel ------------------------------------------------------------------

_CARDS: Final = (("fern", "reed", "oak"), ("mouse", "fox", "bear"), ("spark", "flame", "blaze"))
_COINS: Final = ("coin", "nut", "token")


def _facts(text: str) -> dict[str, str]:
    return dict(_LINE.findall(text))


def _words(played: str, actions: Mapping[str, str], nothing: str) -> str:
    return ", ".join(actions[move] for move in played.split(", ")) if played != "none" else nothing


def _legal(text: str, actions: Mapping[str, str]) -> list[str]:
    """Return the legal moves in the order in which the disguise names them."""
    listed = _facts(text)["Numbers of the moves"].split("; ")
    legal = {part.partition(" = ")[2] for part in listed}
    return [told for name, told in actions.items() if name in legal]


def _shuffled(chance: random.Random, *names: tuple[str, str]) -> dict[str, str]:
    return dict(chance.sample(names, len(names)))


def _kuhn(_: str, chance: random.Random) -> Disguise:
    cards, coin = chance.choice(_CARDS), chance.choice(_COINS)
    people, form = chance.choice(_PEOPLE), chance.choice(_LISTS)
    keep, add = chance.choice((("hold", "push"), ("stay", "climb"), ("wait", "dare")))
    actions = _shuffled(chance, ("Pass", keep), ("Bet", add))
    order = f"{cards[0]}, {cards[1]}, {cards[2]}"
    rules = _say(
        chance,
        (
            f"Two sides lay 1 {coin} each into the bowl and draw one of three tiles, weakest first: {order}.",
            f"There are three tiles, from the weakest: {order}. Either side draws one and pays 1 {coin} into "
            "the bowl.",
        ),
        (f"'{add}' pays 1 {coin} more.", f"Who plays '{add}' lays another {coin} into the bowl."),
        (
            f"'{keep}' pays nothing, and leaves the bowl to the other side if that has played '{add}'.",
            f"Who plays '{keep}' pays nothing more; after a '{add}' of the other side that gets the bowl.",
        ),
        (
            "If neither side left the bowl, the stronger tile gets it.",
            "Unless a side left the bowl, it is the stronger tile's.",
        ),
    )

    def tell(text: str) -> str:
        facts = _facts(text)
        return "\n".join(
            [
                f"You are {people[_seat(text)]}.",
                rules,
                f"Your tile: {cards['JQK'.index(facts['Your card'])]}",
                f"So far: {_words(facts['Moves so far'], actions, 'nothing')}",
                _listed(form, _legal(text, actions)),
            ]
        )

    return Disguise(actions, tell)


def _leduc(_: str, chance: random.Random) -> Disguise:
    cards, coin = chance.choice(_CARDS), chance.choice(_COINS)
    people, form = chance.choice(_PEOPLE), chance.choice(_LISTS)
    drop, meet, lift = chance.choice((("leave", "meet", "lift"), ("rest", "match", "press")))
    actions = _shuffled(chance, ("Fold", drop), ("Call", meet), ("Raise", lift))
    kinds = dict(zip("12", chance.choice((("old", "new"), ("dark", "light"))), strict=True))
    order = f"{cards[0]}, {cards[1]}, {cards[2]}"
    rules = _say(
        chance,
        (
            f"Two sides lay 1 {coin} each into the bowl and draw one of six tiles: two of each, from the "
            f"weakest {order}.",
            f"Of six tiles, a pair of each kind ({order}, the weakest first), either side draws one and pays "
            f"1 {coin} into the bowl.",
        ),
        (
            f"In two rounds, '{lift}' raises what is to be paid, by 2 {coin}s in the first and 4 in the "
            "second, at most twice a round.",
            f"There are two rounds with at most two '{lift}' each, which cost 2 {coin}s in the first and 4 "
            "in the second round.",
        ),
        (
            f"'{meet}' pays what the other side has paid, '{drop}' gives the bowl away.",
            f"Who plays '{drop}' loses the bowl; '{meet}' pays as much as the other side.",
        ),
        (
            "Before the second round one more tile is laid open: who has one of its kind gets the bowl, "
            "otherwise the stronger tile.",
            "The bowl goes to the tile of the same kind as the open one, which is laid before the second "
            "round, or else to the stronger tile.",
        ),
    )

    def tile(name: str) -> str:
        """Reword ``J2``, the second jack; without its suit where the game has none."""
        if name == "none yet":
            return "not yet"
        suit = f"{kinds[name[1]]} " if name[1:] else ""
        return f"{suit}{cards['JQK'.index(name[0])]}"

    def tell(text: str) -> str:
        facts = _facts(text)
        return "\n".join(
            [
                f"You are {people[_seat(text)]}.",
                rules,
                f"Your tile: {tile(facts['Your card'])}",
                f"Open tile: {tile(facts['Public card'])}",
                f"First round: {_words(facts['Moves of round 1'], actions, 'nothing')}",
                f"Second round: {_words(facts['Moves of round 2'], actions, 'nothing')}",
                f"In the bowl: {facts['Pot']}",
                _listed(form, _legal(text, actions)),
            ]
        )

    return Disguise(actions, tell)


WORDINGS: Final[Mapping[str, Maker]] = {
    "TicTacToe": _grid(_IN_A_ROW),
    "SimpleTak": _grid(_EDGES),
    "ConnectFour": _connect_four,
    "Nim": _nim,
    "openspiel:kuhn_poker": _kuhn,
    "openspiel:leduc_poker": _leduc,
    "openspiel:nim": _nim,
}
"""The makers of disguises, by the first part of the environments' ids."""
BOARDS: Final[Mapping[str, Maker]] = {
    "TicTacToe": _board(_TICTACTOE, ""),
    "SimpleTak": _board(_SIMPLETAK, "|"),
}
"""The same for disguises of the board alone."""
