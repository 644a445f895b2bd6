"""Scripted opponents of your own: a function of what is shown, or a class with a memory of its game.

[evaluation]
opponents = ["examples/extensions/opponent.py:middle_first"]
"""

import re

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
