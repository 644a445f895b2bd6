"""Make prompts for the tiny player: its own symbol and the cells of the board, one word each.

The tiny player knows 40 words, so these templates drop the rules, the history and the list of legal moves
that an observation also holds. What is left is every fact a player of a board game with perfect information
needs; which cells are free shows on the board itself, where a free cell carries its number.

To add a board game: a pattern for the player's own symbol, a pattern for one printed row, and an entry in
:data:`BOARD_TEMPLATES`. Its words must be in the tokenizer of the model that plays it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from unstable_stream.errors import GameError
from unstable_stream.games.thoughts import after_thoughts

_ACTION = re.compile(r"\[\s*(\d+)\s*\]")


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


_SIMPLETAK = _BoardGame(
    word="SimpleTak",
    own_symbol=re.compile(r"your stones appear as '([OX])'"),
    row=re.compile(r"^\|(.+)\|$", re.MULTILINE),
    size=4,
)
_TICTACTOE = _BoardGame(
    word="TicTacToe",
    own_symbol=re.compile(r"you will be '([OX])'"),
    row=re.compile(r"^ ([OX\d] \| [OX\d] \| [OX\d]) ?$", re.MULTILINE),
    size=3,
)


def format_simpletak_board(observation: str) -> str:
    """Return the 19-word prompt of a 4x4 ``SimpleTak-v0-train`` observation.

    For example ``SimpleTak X``, four lines such as ``4 O 6 7``, and ``move:``.

    Raises :class:`~unstable_stream.errors.GameError` if no own symbol or no 4x4 board is found.
    """
    return _format(_SIMPLETAK, observation)


def format_tictactoe_board(observation: str) -> str:
    """Return the 12-word prompt of a ``TicTacToe-v0-train`` observation.

    Raises :class:`~unstable_stream.errors.GameError` if no own symbol or no 3x3 board is found.
    """
    return _format(_TICTACTOE, observation)


def extract_cell(completion: str) -> tuple[str, dict[str, bool]]:
    """Return the first bracketed cell after the thoughts, e.g. ``[5]``, and whether there was one.

    Without one all that follows them is returned, stripped, and the environment decides.
    """
    answer = after_thoughts(completion)
    match = _ACTION.search(answer)
    if match is None:
        return answer.strip(), {"correct_answer_format": False}
    return f"[{match.group(1)}]", {"correct_answer_format": True}


def _format(game: _BoardGame, observation: str) -> str:
    own = game.own_symbol.search(observation)
    # An observation may hold earlier boards too: the last one is the present.
    rows = game.row.findall(observation)[-game.size :]
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    if own is None or len(cells) != game.size or any(len(row) != game.size for row in cells):
        raise GameError(
            f"no {game.size}x{game.size} {game.word} board with an own symbol in this observation: "
            f"{observation[:200]!r}; use this template only for {game.word}-v0-train"
        )
    board = "\n".join(" ".join(row) for row in cells)
    return f"{game.word} {own.group(1)}\n{board}\nmove:"


BOARD_TEMPLATES: dict[str, tuple[Callable[[str], str], Callable[[str], tuple[str, dict[str, bool]]]]] = {
    "simpletak-board": (format_simpletak_board, extract_cell),
    "tictactoe-board": (format_tictactoe_board, extract_cell),
}
"""Template name -> (format, extract)."""
