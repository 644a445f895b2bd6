"""Scripted opponents of your own: a function of what is shown, or a class with a memory of its game.

[evaluation]
opponents = ["examples/extensions/opponent.py:middle_first"]
"""

import random
import re

from unstable_stream.games.opponents.legal_moves import connect_four_columns
from unstable_stream.games.opponents.scripted import ScriptedPlayer, scripted_player
from unstable_stream.games.players import TurnContext


def middle_first(observation: str) -> str:
    """Take the legal move that is nearest to the middle of the list."""
    moves: list[str] = re.findall(r"\[\d+\]", observation.rpartition("Available Moves:")[2])
    return moves[len(moves) // 2]


class Stubborn:
    """Take the highest legal number first; each game has an instance of its own."""

    def __init__(self, start: int = 8) -> None:
        self.next = start

    def move(self, turn: TurnContext) -> str:
        while f"[{self.next}]" not in turn.observation.rpartition("Available Moves:")[2]:
            self.next -= 1
        return f"[{self.next}]"


def leaves_column_4(turn: TurnContext) -> str:
    """Look two moves ahead in Connect Four, but never play in column 4, not even to block there."""
    strong = scripted_player("minimax-2", turn.env_id)
    assert isinstance(strong, ScriptedPlayer)
    legal = connect_four_columns(turn.observation)
    for moves in (strong.candidates(turn), legal):
        others = [move for move in moves if move != "[col 3]"]
        if others:
            return random.Random(turn.seed).choice(others)
    return legal[0]
