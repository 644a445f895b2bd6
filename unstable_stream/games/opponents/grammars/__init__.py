"""Name the well-formed actions of games whose text does not list the legal ones.

One function per grammar, shared by the games that have it, in a file per sort of game. To add a game: write
its actions as :data:`~unstable_stream.games.opponents.trying.Kinds`, too many rather than too few, and enter
it in :data:`GRAMMARS`; ``tests/games/test_chance_games.py`` plays it.
"""

from collections.abc import Mapping
from typing import Final

from unstable_stream.games.opponents.grammars import boards, choices, talks
from unstable_stream.games.opponents.trying import Grammar

__all__ = ["GRAMMARS"]

GRAMMARS: Final[Mapping[str, Grammar]] = {
    **boards.GRAMMARS,
    **choices.GRAMMARS,
    **talks.GRAMMARS,
}
"""Family of environments (``Battleship`` for ``Battleship-v0-large-train``) to its grammar."""
