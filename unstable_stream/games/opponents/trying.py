"""Find a legal move by trying: for games whose text does not list what is legal.

A game's *grammar* (:mod:`~unstable_stream.games.opponents.grammars`) names actions that are well formed, in
kinds: to bid, to call, to fold. The environment is asked about one after the other, on a copy, until it
accepts one. Both orders, of the kinds and of the actions of a kind, come from the turn's seed alone, so each
legal action of the kind is as likely as any other, and what the environment hides has no say.
"""

import random
from collections.abc import Callable
from typing import Final, TypeAlias

from unstable_stream.errors import GameError
from unstable_stream.games.players import TurnContext

Kinds: TypeAlias = list[list[str]]
"""Well-formed actions, by kind of move."""

Grammar: TypeAlias = Callable[[TurnContext, random.Random], Kinds]
"""Names what may be tried now; draws, if it must, from the generator it is given."""

MAX_TRIES: Final = 1000
"""Actions tried in one turn. A try takes a tenth of a millisecond to a few, so a turn at most seconds."""


def random_legal(grammar: Grammar) -> Callable[[TurnContext], list[str]]:
    """Return the strategy: a legal action of a kind, both by the turn's seed."""

    def candidates(turn: TurnContext) -> list[str]:
        chance = random.Random(turn.seed)
        kinds = [chance.sample(kind, len(kind)) for kind in grammar(turn, chance)]
        chance.shuffle(kinds)
        return [_first_accepted(turn, kinds)]

    return candidates


def first_legal(grammar: Grammar) -> Callable[[TurnContext], list[str]]:
    """Return the strategy: the first legal action in the grammar's order."""
    return lambda turn: [_first_accepted(turn, grammar(turn, random.Random(0)))]


def _first_accepted(turn: TurnContext, kinds: Kinds) -> str:
    """Return the first action that the environment accepts.

    If it accepts none of them, the first: what follows from that is the environment's rule for a player who
    cannot move.

    Raises:
        GameError: the turn belongs to no game, or there is nothing to try.
    """
    if turn.accepts is None:
        raise GameError(f"{turn.env_id}: a legal move is found by trying, so the turn must have `accepts`")
    tried = [action for kind in kinds for action in kind][:MAX_TRIES]
    if not tried:
        raise GameError(f"{turn.env_id}: expected a move to try, found none in {turn.observation[-300:]!r}")
    return next(filter(turn.accepts, tried), tried[0])
