"""Choices that hardly change: hands, directions, numbers, coins, allocations, cards, dice and chips."""

import random
import re
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Final

from unstable_stream.games.opponents.grammars.boards import listed
from unstable_stream.games.opponents.trying import Grammar, Kinds
from unstable_stream.games.players import TurnContext


def _one_of(*words: str | Iterable[object]) -> Grammar:
    """Return the grammar ``[WORD]``, with a kind for each argument: a word, or many."""
    kinds = [[f"[{word}]" for word in ([kind] if isinstance(kind, str) else kind)] for kind in words]
    return lambda turn, _: kinds


def chopsticks(turn: TurnContext, _: random.Random) -> Kinds:
    """Return attacks of one hand on another, and splits."""
    attacks = [f"[attack {own} {other}]" for own, other in product(range(2), repeat=2)]
    return [attacks, [f"[split {left} {right}]" for left, right in product(range(9), repeat=2)]]


def allocations(turn: TurnContext, chance: random.Random) -> Kinds:
    """Return five ways to spread all units over the fields: ``[A4 B2 C2]``."""
    fields = re.findall(r"Available fields: ([A-Z](?:, [A-Z])*)", turn.observation)
    units = re.findall(r"Units to allocate: (\d+)", turn.observation)
    names = fields[-1].split(", ") if fields else ["A", "B", "C"]
    return [[_spread(names, int(units[-1]) if units else 20, chance) for _ in range(5)]]


def _spread(names: list[str], units: int, chance: random.Random) -> str:
    cuts = sorted(chance.randint(0, units) for _ in names[1:])
    shares = [after - before for before, after in zip([0, *cuts], [*cuts, units], strict=True)]
    return f"[{' '.join(f'{name}{share}' for name, share in zip(names, shares, strict=True))}]"


def _betting(amounts: Iterable[int]) -> Grammar:
    sizes = list(amounts)
    return _one_of("check", "call", "fold", [f"bet {n}" for n in sizes], [f"raise {n}" for n in sizes])


_FACES: Final = ["A", *range(2, 11), "J", "Q", "K"]
# Sorted by quantity. A bid beyond all dice is legal; that there is always a call keeps the list short.
_BIDS: Final = [f"Bid: {quantity}, {face}" for quantity, face in product(range(1, 13), range(1, 7))]
_DIRECTIONS: Final = _one_of(("up", "down", "left", "right"))

GRAMMARS: Final[Mapping[str, Grammar]] = {
    "Chopsticks": chopsticks,
    "ColonelBlotto": allocations,
    "IteratedMatchingPennies": _one_of(("heads", "tails")),
    "IteratedRockPaperScissors": _one_of(("rock", "paper", "scissors")),
    "IteratedTwoThirdsAverage": _one_of(range(101)),
    "IteratedUltimatumGame": _one_of("Accept", "Reject", [f"Offer: ${amount}" for amount in range(101)]),
    "Snake": _DIRECTIONS,
    "Surround": _DIRECTIONS,
    "Briscola": _one_of([f"play {card}" for card in range(1, 4)]),
    "GameOfPureStrategy": _one_of(_FACES),
    "GermanWhist": _one_of([f"play {card}" for card in range(1, 14)]),
    "Golf": _one_of(
        "draw", "take", "discard", [f"swap {row} {column}" for row, column in product(range(1, 9), repeat=2)]
    ),
    "HighSociety": _one_of(range(1, 12)),
    "IndianPoker": _betting((1, 2, 3, 5, 10)),
    "LiarsDice": _one_of("Call", _BIDS),
    "Poker": _betting((20, 40, 60, 100, 200)),
    "SpiteAndMalice": listed,
    "ThreePlayerGOPS": _one_of(_FACES),
}
