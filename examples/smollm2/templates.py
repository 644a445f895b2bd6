"""Prompts with which a small language model plays board games: one token per cell, one-token answers.

A model of 135 M parameters learns nothing from reward while nearly all its answers are illegal. The wording
decides: one worked example as a line, then the board as a line of the same form, and an answer that is a
single token (the template writes all around it). Set ``sampling.max_tokens = 1``.

The player's symbols carry a leading blank (`` X``), a digit does not: so the tokenizer of SmolLM2 makes each
cell one token and never joins two of them.
"""

import re
from typing import ClassVar

_EXAMPLE = "0 X2/3 O5/678 X moves 2\n"
_OWN_SYMBOL = re.compile(r"you will be '([OX])'")
_ROW = re.compile(r"^ ([OX\d]) \| ([OX\d]) \| ([OX\d]) ?$", re.MULTILINE)
_CELL = re.compile(r"\d")

_KUHN_EXAMPLES = "K check bet: bet\nJ fold call: fold\n"
_CARD = re.compile(r"Your card is: '([JQK])'")
_OPTION = re.compile(r"'\[(\w+)\]'")
_MOVE = re.compile(r" ?(check|bet|fold|call)\b")

_OPENSPIEL_KUHN_EXAMPLES = "1 K check bet: bet\n2 J fold call: fold\n3 Q fold call: call\n"
_YOUR_CARD = re.compile(r"^Your card: ([JQK])$", re.MULTILINE)
_PLAYED = re.compile(r"^Moves so far: (.*)$", re.MULTILINE)
_FIRST_MOVE = re.compile(r" ?(check|bet|fold|call)")
_PASS_OR_BET = re.compile(r"Pass|Bet")


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


class KuhnPoker:
    """For ``KuhnPoker-v0-short-train``: 16 tokens, the player's card and the two moves that are open.

    E.g. ``K check bet: bet\\nJ fold call: fold\\nQ check bet:``. The opponent's card is hidden. After a
    bet the open moves are fold and call, so they tell what was played; round and chips are left out.
    """

    chat = False

    def format(self, observation: str) -> str:
        """Return two worked examples, the card and the open moves."""
        cards = _CARD.findall(observation)
        options = _OPTION.findall(observation.rpartition("Your available actions are:")[2])
        if not cards or len(options) != 2:
            raise ValueError(f"no turn of Kuhn poker in this observation: {observation[-200:]!r}")
        return f"{_KUHN_EXAMPLES}{cards[-1]} {options[0]} {options[1]}:"

    def extract(self, completion: str) -> tuple[str, dict[str, bool]]:
        """Return the move in brackets, and whether there was one."""
        found = _MOVE.match(completion)
        if found is None:
            return completion.strip(), {"correct_answer_format": False}
        return f"[{found.group(1)}]", {"correct_answer_format": True}


class OpenSpielKuhnPoker:
    """For ``openspiel:kuhn_poker``: 26 tokens, which of the game's moves it is, the card, the moves open.

    E.g. ``1 K check bet: bet\\n2 J fold call: fold\\n3 Q fold call: call\\n2 Q check bet:``. The number and
    the open moves tell what was played.
    """

    chat = False
    spellings: ClassVar = {"Pass": (" check", " fold"), "Bet": (" bet", " call")}
    """The model's words for OpenSpiel's, by which the exploitability of a policy is measured."""

    def format(self, observation: str) -> str:
        """Return three worked examples, then number, card and open moves."""
        card, played = _YOUR_CARD.search(observation), _PLAYED.search(observation)
        if card is None or played is None:
            raise ValueError(f"no turn of openspiel:kuhn_poker in this observation: {observation[-200:]!r}")
        moves = _PASS_OR_BET.findall(played.group(1))
        options = "fold call" if moves[-1:] == ["Bet"] else "check bet"
        return f"{_OPENSPIEL_KUHN_EXAMPLES}{len(moves) + 1} {card.group(1)} {options}:"

    def extract(self, completion: str) -> tuple[str, dict[str, bool]]:
        """Return the move in OpenSpiel's word, in brackets, and whether there was one."""
        found = _FIRST_MOVE.match(completion)
        if found is None:
            return completion.strip(), {"correct_answer_format": False}
        passes = found.group(1) in ("check", "fold")
        return f"[{'Pass' if passes else 'Bet'}]", {"correct_answer_format": True}
