"""Prompts with which a small language model plays board games: one token per cell, one-token answers.

A model of 135 M parameters learns nothing from reward while nearly all its answers are illegal. The wording
decides: one worked example as a line, then the board as a line of the same form, and an answer that is a
single token (the template writes all around it). Set ``sampling.max_tokens = 1``.

The player's symbols carry a leading blank (`` X``), a digit does not: so the tokenizer of SmolLM2 makes each
cell one token and never joins two of them.
"""

import re

_EXAMPLE = "0 X2/3 O5/678 X moves 2\n"
_OWN_SYMBOL = re.compile(r"you will be '([OX])'")
_ROW = re.compile(r"^ ([OX\d]) \| ([OX\d]) \| ([OX\d]) ?$", re.MULTILINE)
_CELL = re.compile(r"\d")


class TicTacToe:
    """For ``TicTacToe-v0-train``: 30 tokens, e.g. ``0 X2/3 O5/678 X moves 2\\n012/3 X5/678 O moves``."""

    chat = False

    def format(self, observation: str) -> str:
        """Return the worked example and the present board, the answer's blank included."""
        own = _OWN_SYMBOL.search(observation)
        rows = _ROW.findall(observation)[-3:]
        if own is None or len(rows) != 3:
            raise ValueError(f"no TicTacToe board in this observation: {observation[:200]!r}")
        board = "/".join("".join(cell if cell.isdigit() else f" {cell}" for cell in row) for row in rows)
        return f"{_EXAMPLE}{board} {own.group(1)} moves "

    def extract(self, completion: str) -> tuple[str, dict[str, bool]]:
        """Return the digit in brackets, and whether there was one."""
        found = _CELL.match(completion)
        if found is None:
            return completion.strip(), {"correct_answer_format": False}
        return f"[{found.group()}]", {"correct_answer_format": True}
