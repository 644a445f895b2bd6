"""An opponent for TicTacToe that the model never trains against."""

import random
import re

from unstable_stream.games.players import TurnContext

_OWN_SYMBOL = re.compile(r"you will be '([OX])'")
_ROW = re.compile(r"^ ([OX\d]) \| ([OX\d]) \| ([OX\d]) ?$", re.MULTILINE)
_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def win_or_block(turn: TurnContext) -> str:
    """Complete a line of its own, else block one of the other's, else move at random."""
    own = _OWN_SYMBOL.search(turn.observation)
    board = [cell for row in _ROW.findall(turn.observation)[-3:] for cell in row]
    if own is None or len(board) != 9:
        raise ValueError(f"no TicTacToe board in this observation: {turn.observation[:200]!r}")
    other = "X" if own.group(1) == "O" else "O"
    for symbol in (own.group(1), other):
        for line in _LINES:
            free = [cell for cell in line if board[cell].isdigit()]
            if len(free) == 1 and sum(board[cell] == symbol for cell in line) == 2:
                return f"[{free[0]}]"
    return f"[{random.Random(turn.seed).choice([cell for cell in board if cell.isdigit()])}]"
