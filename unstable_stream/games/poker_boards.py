"""Make prompts for the tiny player in Kuhn and Leduc poker: they look like the boards that it learned.

The tiny player answers with a free cell of a board, which carries its number. So the numbers of the legal
moves are the free cells, and what the player knows is in the others, as ``O`` and ``X``: it answers legally
before it has learned anything of poker. Every prompt of a game has the same number of words.
"""

import re
from collections.abc import Callable, Sequence

from unstable_stream.errors import GameError
from unstable_stream.games.board_templates import extract_cell

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
    return _board("TicTacToe", seat, 3, _free(known, 2), marks)


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
    return _board("SimpleTak", seat, 4, _free(known, 3), [*marks, any(public)])


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


def _board(word: str, seat: int, size: int, free: Sequence[str], marks: Sequence[bool]) -> str:
    cells = [*free, *("O" if mark else "X" for mark in marks)]
    rows = [" ".join(cells[start : start + size]) for start in range(0, size * size, size)]
    return "\n".join([f"{word} {'OX'[seat]}", *rows, "move:"])


POKER_BOARDS: dict[str, tuple[Callable[[str], str], Callable[[str], tuple[str, dict[str, bool]]]]] = {
    "kuhn-board": (format_kuhn_board, extract_cell),
    "leduc-board": (format_leduc_board, extract_cell),
}
"""Template name -> (format, extract)."""
