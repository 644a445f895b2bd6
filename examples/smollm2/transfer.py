"""Games and tasks that SmolLM2 is not trained on, to see what play in three other games does for them.

Prompts are of the kind of ``templates.py``: worked examples as lines, then the position as a line of the same
form, and an answer of one token. The tasks are those of the package reasoning-gym (``pip install
reasoning-gym``), each an environment of one player.
"""

import importlib
import re
from typing import Any

_ROW = re.compile(r"^[.XO](?: [.XO]){6}$", re.MULTILINE)
_BOARD = re.compile(r"^ ([OX\d]) \| ([OX\d]) \| ([OX\d]) ?$", re.MULTILINE)
_OPTION = re.compile(r"'\[(\w+)\]'")
_WORD = re.compile(r" ?(call|raise|fold)")


class _Digit:
    """The answer is one digit."""

    chat = False
    action = "[{}]"

    def extract(self, completion: str) -> tuple[str, dict[str, bool]]:
        """Return the move that the digit names, and whether there was one."""
        good = completion[:1].isdigit()
        move = self.action.format(completion[:1]) if good else completion.strip()
        return move, {"correct_answer_format": good}


class Stones(_Digit):
    """For ``examples/extensions/environment.py:Stones``: 19 tokens."""

    def format(self, observation: str) -> str:
        """Return two worked examples and the number of stones."""
        return f"12 stones, take 3\n6 stones, take 2\n{observation.split()[0]} stones, take "


class WildTicTacToe(_Digit):
    """For ``WildTicTacToe-v0-train``, as for TicTacToe; the mark is always an X."""

    action = "[X {}]"

    def format(self, observation: str) -> str:
        """Return the worked example and the present board."""
        rows = _BOARD.findall(observation)[-3:]
        board = "/".join("".join(cell if cell.isdigit() else f" {cell}" for cell in row) for row in rows)
        return f"0 X2/3 O5/678 X moves 2\n{board} X moves "


class ConnectFour(_Digit):
    """For ``ConnectFour-v0-train``: the rows that have discs; a free cell is the digit of its column."""

    action = "[col {}]"

    def format(self, observation: str) -> str:
        """Return a worked example and the present board."""
        own = re.findall(r"Your disc symbol: ([XO])", observation)[-1]
        rows = [row.split() for row in _ROW.findall(observation)[-6:]]
        shown = [row for row in rows if set(row) != {"."}] or rows[-1:]
        cells = [
            [str(place) if cell == "." else f" {cell}" for place, cell in enumerate(row)] for row in shown
        ]
        board = "/".join("".join(row) for row in cells)
        return f"012 X 456/01 O X4 O6 X moves 3\n{board} {own} moves "


class LeducPoker:
    """For ``openspiel:leduc_poker``: own card, public card, the open moves as words."""

    chat = False

    def format(self, observation: str) -> str:
        """Return two worked examples, the cards and the open moves."""
        own, public = re.findall(r"^(?:Your|Public) card: (\w+)", observation, re.MULTILINE)
        options = " ".join(_OPTION.findall(observation.rpartition("Available Moves:")[2])).lower()
        known = public if public == "none" else public[0]
        return f"K none call raise: raise\nJ Q fold call raise: fold\n{own[0]} {known} {options}:"

    def extract(self, completion: str) -> tuple[str, dict[str, bool]]:
        """Return the move in brackets, and whether there was one."""
        found = _WORD.match(completion)
        if found is None:
            return completion.strip(), {"correct_answer_format": False}
        return f"[{found.group(1).title()}]", {"correct_answer_format": True}


class Answer:
    """For :class:`ReasoningGym`: a worked example, the question, and the first line of the answer."""

    chat = False

    def format(self, observation: str) -> str:
        """Return the example and the question."""
        return f"Question: Calculate 3 + 4.\nAnswer: 7\nQuestion: {observation}\nAnswer:"

    def extract(self, completion: str) -> tuple[str, dict[str, bool]]:
        """Return the first line, and whether there is anything on it."""
        answer = completion.strip().split("\n")[0]
        return answer, {"correct_answer_format": bool(answer)}


class ReasoningGym:
    """A task of reasoning-gym, an environment of one player: 1 if the answer has the full score, else 0."""

    def __init__(self, task: str, options: dict[str, Any] | None = None) -> None:
        self.task, self.options = task, options or {}

    def reset(self, num_players: int, seed: int | None = None) -> None:
        gym = importlib.import_module("reasoning_gym")
        self.questions = gym.create_dataset(self.task, size=1, seed=seed, **self.options)
        self.reward = 0.0

    def get_observation(self) -> tuple[int, str]:
        return 0, self.questions[0]["question"]

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.reward = float(self.questions.score_answer(action, self.questions[0]) == 1)
        return True, {}

    def close(self) -> tuple[dict[int, float], dict[int, dict[str, Any]]]:
        return {0: self.reward}, {}
