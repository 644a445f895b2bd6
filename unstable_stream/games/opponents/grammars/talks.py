"""Talk and bargaining: what is said is one fixed sentence, because any text is legal there."""

import random
import re
from collections.abc import Mapping
from itertools import product
from typing import Final

from unstable_stream.games.opponents.trying import Grammar, Kinds
from unstable_stream.games.players import TurnContext

_SAID: Final = "Let us see what happens."
_RESOURCES: Final = ("Wheat", "Wood", "Sheep", "Brick", "Ore")
# Everyday words, so that a clue is made of something; one of them may be the word that is taboo.
_WORDS: Final = ("house", "river", "music", "winter", "bread", "horse", "garden", "letter", "star", "stone")


def spoken(*words: str) -> Grammar:
    """Return the grammar: say something, or choose one of the words."""
    return lambda turn, _: [[_SAID], [f"[{word}]" for word in words]]


def whispered(*words: str) -> Grammar:
    """Return :func:`spoken` where what others may read stands in braces."""
    return lambda turn, _: [[f"{{{_SAID}}}"], [f"[{word}]" for word in words]]


def three_prisoners(turn: TurnContext, _: random.Random) -> Kinds:
    """Return talk, and a choice towards each of the others: ``[1 cooperate] [2 defect]``."""
    others = [seat for seat in range(turn.num_players) if seat != turn.seat]
    choices = product(("cooperate", "defect"), repeat=len(others))
    decided = [" ".join(f"[{o} {c}]" for o, c in zip(others, choice, strict=True)) for choice in choices]
    return [[_SAID], decided]


def trades(turn: TurnContext, chance: random.Random) -> Kinds:
    """Return accept, deny, and forty offers of one resource for another."""
    return [["[Accept]"], ["[Deny]"], _offers(chance)]


def _offers(chance: random.Random) -> list[str]:
    offers = []
    for _ in range(40):
        given, wanted = chance.sample(_RESOURCES, 2)
        offers.append(f"[Offer: {chance.randint(1, 4)} {given} -> {chance.randint(1, 4)} {wanted}]")
    return offers


def settlers(turn: TurnContext, chance: random.Random) -> Kinds:
    """Return the numbers of listed moves and of players to negotiate with, and what negotiators say."""
    listed = re.findall(
        r"^'\[(\d+)\]'\t", turn.observation[turn.observation.rfind("Viable moves") :], re.MULTILINE
    )
    return [
        [f"[{number}]" for number in listed],
        [f"[{seat}]" for seat in range(turn.num_players) if seat != turn.seat],
        ["[done]"],
        ["[accept]"],
        ["[deny]"],
        _offers(chance),
    ]


def job_offers(turn: TurnContext, chance: random.Random) -> Kinds:
    """Return accept, reject, and ten proposals of a letter for each of eight issues."""
    proposals = ["".join(chance.choices("ABCDE", k=8)) for _ in range(10)]
    return [["[Accept]"], ["[Reject]"], [f"This is fair. [Propose] {letters}" for letters in proposals]]


def two_dollars(turn: TurnContext, _: random.Random) -> Kinds:
    """Return accept, reject, and how many cents of the two dollars one may ask for."""
    shares = [f"This is fair. [Propose] ${cents / 100:.2f}" for cents in range(0, 201, 5)]
    return [["I agree. [Accept]"], ["No. [Reject]"], shares]


def sealed_bids(turn: TurnContext, chance: random.Random) -> Kinds:
    """Return talk, and bids on each item once the bidding has begun."""
    if "entering the bidding phase" not in turn.observation:
        return [[_SAID]]
    items = [int(item) for item in re.findall(r"^- Item (\d+):", turn.observation, re.MULTILINE)] or [0]
    capital = [int(coins) for coins in re.findall(r"You have (\d+) coins", turn.observation)] or [100]
    most = max(1, capital[0] // len(items))
    return [[" ".join(f"[Bid on Item {item}: {chance.randint(1, most)}]" for item in items)]]


def votes(turn: TurnContext, _: random.Random) -> Kinds:
    """Return talk, and a vote on each player."""
    return [[_SAID], [f"[{seat}]" for seat in range(turn.num_players)]]


GRAMMARS: Final[Mapping[str, Grammar]] = {
    "IteratedPrisonersDilemma": spoken("Cooperate", "Defect"),
    "MarketEntryGame": whispered("E", "S"),
    "NewRecruit": job_offers,
    "PublicGoodsGame": whispered(*map(str, range(21))),
    "SecretMafia": votes,
    "SettlersOfCatan": settlers,
    "SimpleBlindAuction": sealed_bids,
    "SimpleNegotiation": trades,
    "Taboo": spoken(*_WORDS, "..."),  # some cards forbid the empty word, and so all others
    "ThreePlayerIPD": three_prisoners,
    "TruthAndDeception": spoken("Fact 1", "Fact 2"),
    "TwoDollar": two_dollars,
}
