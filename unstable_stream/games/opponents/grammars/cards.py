"""Cards, dice and chips."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Final

from unstable_stream.games.opponents.grammars.boards import listed
from unstable_stream.games.opponents.grammars.choices import one_of
from unstable_stream.games.opponents.trying import Grammar

__all__ = ["GRAMMARS"]


def _betting(amounts: Iterable[int]) -> Grammar:
    sizes = list(amounts)
    return one_of("check", "call", "fold", [f"bet {n}" for n in sizes], [f"raise {n}" for n in sizes])


_FACES: Final = ["A", *range(2, 11), "J", "Q", "K"]
# Sorted by quantity. A bid beyond all dice is legal; that there is always a call keeps the list short.
_BIDS: Final = [f"Bid: {quantity}, {face}" for quantity, face in product(range(1, 13), range(1, 7))]

GRAMMARS: Final[Mapping[str, Grammar]] = {
    "Briscola": one_of([f"play {card}" for card in range(1, 4)]),
    "GameOfPureStrategy": one_of(_FACES),
    "GermanWhist": one_of([f"play {card}" for card in range(1, 14)]),
    "Golf": one_of(
        "draw", "take", "discard", [f"swap {row} {column}" for row, column in product(range(1, 9), repeat=2)]
    ),
    "HighSociety": one_of(range(1, 12)),
    "IndianPoker": _betting((1, 2, 3, 5, 10)),
    "LiarsDice": one_of("Call", _BIDS),
    "Poker": _betting((20, 40, 60, 100, 200)),
    "SpiteAndMalice": listed,
    "ThreePlayerGOPS": one_of(_FACES),
}
