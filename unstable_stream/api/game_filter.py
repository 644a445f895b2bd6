"""The games to find: what :func:`~unstable_stream.api.games.find_games` and ``games`` are asked for."""

from typing import Literal, TypeAlias, TypedDict

Split: TypeAlias = Literal["train", "eval", "human", "imported"]
State: TypeAlias = Literal["finished", "abandoned", "in-flight"]
Result: TypeAlias = Literal["win", "draw", "loss"]
Sort: TypeAlias = Literal["latest", "earliest", "longest", "shortest", "tokens"]


class GameFilter(TypedDict, total=False):
    """All of these have to hold; ``None`` and what is left out ask for nothing."""

    split: Split | None
    state: State | None
    """The state of the game."""
    env: str | None
    """Part of the environment's id."""
    model: str | None
    """Uid of a model that played, or a pattern: ``ckpt-*000012``."""
    opponent: str | None
    """The opponent of ``model``, or of any checkpoint."""
    seat: int | None
    """The seat of ``model``, or of any checkpoint."""
    result: Result | None
    """The result of ``model``, or of any checkpoint."""
    update: int | None
    """Only games with a step that this learner update trained on or dropped."""
    invalid: bool
    """Only games with an invalid move."""
    truncated: bool
    """Only games that were cut short, or with a completion that was."""
    min_moves: int | None
    max_moves: int | None
    text: str | None
    """A text that a player saw, wrote or played somewhere in it, upper or lower case."""
    sort: Sort
    """The order; ``tokens``: those with most sampled tokens come first. By default the latest."""
    limit: int | None
    """At most so many, by default 20; ``None``: all."""
    offset: int
    """Leave out so many before."""
