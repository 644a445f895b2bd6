"""More games for the tiny player: prompts of the 40 words that it knows.

The tiny player has never seen these prompts: a run begins with a player that does not know the rules and
learns first which answers are moves. Name a template in a configuration as
``template = "examples/tiny_player/games.py:ConnectFour"``.
"""

import re

_ANSWER = re.compile(r"\[\s*(\d+)\s*\]")
_MOVES = ("[check]", "[bet]", "[fold]", "[call]")
_CARDS = {"J": "1", "Q": "2", "K": "3"}
_EVEN = 7
"""The word for equal scores; each chip ahead is one more."""


class ConnectFour:
    """The own disc and the board from above; a free cell carries the number of its column."""

    def format(self, observation: str) -> str:
        """Return 45 words, e.g. ``<unk> X``, six lines such as ``0 1 O 3 X 5 6``, and ``move:``."""
        own = re.findall(r"Your disc symbol: ([XO])", observation)[-1]
        rows = re.findall(r"^[.XO](?: [.XO]){6}$", observation, re.MULTILINE)[-6:]
        board = [
            " ".join(str(column) if cell == "." else cell for column, cell in enumerate(row.split()))
            for row in rows
        ]
        return "\n".join([f"ConnectFour {own}", *board, "move:"])

    def extract(self, completion: str) -> tuple[str, dict[str, bool]]:
        """Return ``[col 3]`` for ``[3]``."""
        answer = _ANSWER.search(completion)
        if answer is None:
            return completion.strip(), {"correct_answer_format": False}
        return f"[col {answer[1]}]", {"correct_answer_format": True}


class KuhnPoker:
    """What a player of Kuhn poker knows: round, own card, lead in chips, and the moves that are open.

    The opponent's card is hidden. After a bet the open moves are fold and call, so they tell what was played.
    """

    def format(self, observation: str) -> str:
        """Return ``KuhnPoker``, round, card (1 to 3), lead (7: even), the open moves by number, ``move:``."""
        own = int(re.findall(r"You are Player (\d)", observation)[-1])
        card = re.findall(r"Your card is: '([JQK])'", observation)[-1]
        game_round = re.findall(r"Starting round (\d+)", observation)[-1]
        scores = re.findall(r"Player 0: '(-?\d+)'; Player 1: '(-?\d+)'", observation)
        chips = [int(score) for score in scores[-1]] if scores else [0, 0]
        lead = min(max(_EVEN + chips[own] - chips[1 - own], 0), 15)
        options = re.findall(r"'(\[\w+\])'", observation.rpartition("Your available actions are:")[2])
        numbers = " ".join(str(_MOVES.index(option)) for option in options)
        return f"KuhnPoker {game_round} {_CARDS[card]} {lead} {numbers} move:"

    def extract(self, completion: str) -> tuple[str, dict[str, bool]]:
        """Return ``[check]``, ``[bet]``, ``[fold]`` or ``[call]`` for ``[0]`` to ``[3]``."""
        answer = _ANSWER.search(completion)
        if answer is None or int(answer[1]) >= len(_MOVES):
            return completion.strip(), {"correct_answer_format": False}
        return _MOVES[int(answer[1])], {"correct_answer_format": True}
