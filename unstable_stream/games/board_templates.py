"""Make prompts for the tiny player: its own symbol and the cells of the board, one word each.

The tiny player knows 40 words, so these templates drop the rules, the history and the list of legal moves
that an observation also holds. What is left is every fact a player of a board game with perfect information
needs; which cells are free shows on the board itself, where a free cell carries its number.

To add a board game: a pattern for the player's own symbol, a pattern for one printed row, and an entry in
:data:`BOARD_TEMPLATES`. Its words must be in the tokenizer of the model that plays it.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from unstable_stream.errors import GameError


@dataclass(frozen=True, slots=True)
class _BoardGame:
    """The patterns that read one game's printed board."""

    word: str
    """First word of the prompt: tells the games apart for a model that plays both."""
    own_symbol: re.Pattern[str]
    """Its only group is the symbol of the player who is shown the observation."""
    row: re.Pattern[str]
    """Matches one printed row; its only group holds the cells between bars."""
    size: int
    """Rows, and cells per row."""

    def format(self, observation: str) -> str:
        """Return the prompt of an observation: game and symbol, the rows, and ``move:``.

        Raises :class:`~unstable_stream.errors.GameError` if no own symbol or no board is found.
        """
        own = self.own_symbol.search(observation)
        # An observation may hold earlier boards too: the last one is the present.
        rows = self.row.findall(observation)[-self.size :]
        cells = [[cell.strip() for cell in row.split("|")] for row in rows]
        if own is None or len(cells) != self.size or any(len(row) != self.size for row in cells):
            raise GameError(
                f"no {self.size}x{self.size} {self.word} board with an own symbol in this observation: "
                f"{observation[:200]!r}; use this template only for {self.word}-v0-train, or for disguises "
                f"of its board alone, disguise:board-1-8:{self.word}-v0-train"
            )
        board = "\n".join(" ".join(row) for row in cells)
        return f"{self.word} {own.group(1)}\n{board}\nmove:"


format_simpletak_board: Final = _BoardGame(
    word="SimpleTak",
    own_symbol=re.compile(r"your stones appear as '([OX])'"),
    row=re.compile(r"^\|(.+)\|$", re.MULTILINE),
    size=4,
).format
"""Returns the 19-word prompt of a 4x4 ``SimpleTak-v0-train`` observation: for example ``SimpleTak X``, four
lines such as ``4 O 6 7``, and ``move:``."""

format_tictactoe_board: Final = _BoardGame(
    word="TicTacToe",
    own_symbol=re.compile(r"you will be '([OX])'"),
    row=re.compile(r"^ ([OX\d] \| [OX\d] \| [OX\d]) ?$", re.MULTILINE),
    size=3,
).format
"""Returns the 12-word prompt of a ``TicTacToe-v0-train`` observation."""


# -- Kuhn and Leduc poker: they look like the boards that the tiny player learned ---------------------
#
# The tiny player answers with a free cell of a board, which carries its number. So the numbers of the legal
# moves are the free cells, and what the player knows is in the others, as ``O`` and ``X``: it answers legally
# before it has learned anything of poker. Every prompt of a game has the same number of words.

_PLAYER = re.compile(r"^Game: \w+\. You are player ([01])\.$", re.MULTILINE)
_LINE = re.compile(
    r"^(Your card|Public card|Moves so far|Moves of round [12]|Numbers of the moves): (.+)$", re.MULTILINE
)
_CARDS = "JQK"


def format_kuhn_board(observation: str) -> str:
    """Return the 12-word prompt of an ``openspiel:kuhn_poker`` observation.

    Cells 0 and 1 are the moves, 2 to 4 the card, 5 and 6 the first move played, 7 and 8 the second: ``X X``
    for none, ``O X`` for Bet, ``X O`` for Pass. Raises :class:`~unstable_stream.errors.GameError` for other
    games.
    """
    seat, known = _read("kuhn_poker", observation, ("Your card", "Moves so far"))
    marks = _card(known["Your card"])
    for move in [*_moves(known["Moves so far"]), "", ""][:2]:
        marks += [move == "Bet", move == "Pass"]
    return _board("TicTacToe", seat, _free(known, 2), marks)


def format_kuhn_numbers(observation: str) -> str:
    """Return the same, with what the player knows in two words that the tiny player tells apart.

    Cell 2 is the card, ``4`` to ``6``, cell 5 the moves so far: ``8`` for none, ``9`` for Pass, ``10`` for
    Bet, ``11`` for both. It takes a number for a free cell, and has to learn first not to answer with these.
    """
    seat, known = _read("kuhn_poker", observation, ("Your card", "Moves so far"))
    card = 4 + _card(known["Your card"]).index(True)
    moves = 8 + ["", "Pass", "Bet", "PassBet"].index("".join(_moves(known["Moves so far"])))
    return _rows("TicTacToe", seat, [*_free(known, 2), str(card), "X", "X", str(moves), "X", "X", "X"])


def format_leduc_board(observation: str) -> str:
    """Return the 19-word prompt of an ``openspiel:leduc_poker`` observation.

    Cells 0 to 2 are the moves, 3 to 5 the rank of the card, 6 to 8 that of the public card; then for each
    round whether it began with a call, was raised, and was raised twice. The last cell says that the second
    round has begun. Suits are left out: they change nothing. Raises
    :class:`~unstable_stream.errors.GameError` for other games.
    """
    rounds = ("Moves of round 1", "Moves of round 2")
    seat, known = _read("leduc_poker", observation, ("Your card", "Public card", *rounds))
    public = _card(known["Public card"])
    marks = [*_card(known["Your card"]), *public]
    for name in rounds:
        played = _moves(known[name])
        raises = played.count("Raise")
        marks += [played[:1] == ["Call"], raises > 0, raises > 1]
    return _board("SimpleTak", seat, _free(known, 3), [*marks, any(public)])


def format_leduc_numbers(observation: str) -> str:
    """Return the same, with what the player knows in four words that the tiny player tells apart.

    Cell 4 is the rank of the card, ``4`` to ``6``, cell 7 that of the public card, ``7`` to ``9``, or ``10``.
    Cell 10 says how round 1 went, cell 13 round 2: ``3`` for no move yet, ``11`` for Call, ``12`` for Raise,
    ``13`` for Call and Raise, ``14`` for two raises, ``15`` for those after a call. A call that ends round 1
    is left out: the public card tells of it.
    """
    rounds = ("Moves of round 1", "Moves of round 2")
    seat, known = _read("leduc_poker", observation, ("Your card", "Public card", *rounds))
    cells = [*_free(known, 3), *"X" * 13]
    cells[4] = str(4 + _CARDS.index(known["Your card"][0]))
    cells[7] = str(7 + _CARDS.index(known["Public card"][0])) if any(_card(known["Public card"])) else "10"
    for cell, name in zip((10, 13), rounds, strict=True):
        played = _moves(known[name])
        raises = played.count("Raise")
        kind = 1 + 2 * raises - (played[:1] == ["Raise"])
        cells[cell] = str(10 + kind) if played else "3"
    return _rows("SimpleTak", seat, cells)


def _read(game: str, observation: str, wanted: Sequence[str]) -> tuple[int, dict[str, str]]:
    """Return the seat, and the lines of an observation by what they begin with."""
    known = dict(_LINE.findall(observation))
    player = _PLAYER.search(observation)
    complete = known.keys() >= {*wanted, "Numbers of the moves"}
    if player is None or not complete or f"Game: {game}." not in observation:
        raise GameError(
            f"no turn of {game} in this observation: {observation[:200]!r}; use this template only for "
            f"openspiel:{game}"
        )
    return int(player.group(1)), known


def _moves(listed: str) -> list[str]:
    return [] if listed == "none" else listed.split(", ")


def _card(name: str) -> list[bool]:
    return [rank == name[:1] for rank in _CARDS]


def _free(known: dict[str, str], cells: int) -> list[str]:
    """Return the cells of the moves: the number of one that is legal, ``X`` for any other."""
    legal = {part.partition(" = ")[0] for part in known["Numbers of the moves"].split("; ")}
    return [str(cell) if str(cell) in legal else "X" for cell in range(cells)]


def _board(word: str, seat: int, free: Sequence[str], marks: Sequence[bool]) -> str:
    return _rows(word, seat, [*free, *("O" if mark else "X" for mark in marks)])


def _rows(word: str, seat: int, cells: Sequence[str]) -> str:
    size = math.isqrt(len(cells))
    rows = [" ".join(cells[start : start + size]) for start in range(0, len(cells), size)]
    return "\n".join([f"{word} {'OX'[seat]}", *rows, "move:"])


BOARD_TEMPLATES: dict[str, Callable[[str], str]] = {
    "simpletak-board": format_simpletak_board,
    "tictactoe-board": format_tictactoe_board,
    "kuhn-board": format_kuhn_board,
    "kuhn-numbers": format_kuhn_numbers,
    "leduc-board": format_leduc_board,
    "leduc-numbers": format_leduc_numbers,
}
"""Template name to the wording; :func:`~unstable_stream.games.templates.extract_cell` reads the answers."""
