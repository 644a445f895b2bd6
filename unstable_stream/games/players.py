"""Define a player: it is shown a turn and returns a move."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PlainTurn:
    """A turn of a disguised game as it is without the disguise; for players who know the game by its text."""

    observation: str
    disguised: Callable[[str], str]
    """Returns an action as the disguised environment takes it."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The information that a player gets when it is to move."""

    env_id: str
    seat: int
    num_players: int
    turn_index: int
    """0-based among this seat's turns."""
    game_turn: int
    """0-based among all moves of the game."""
    seed: int
    """The seed of the player's random decisions, unique to this game, seat and turn."""
    observation: str
    accepts: Callable[[str], bool] | None = field(default=None, compare=False, repr=False)
    """Tells whether the environment would call an action valid now; tried on a copy of the game.

    It knows what is hidden, so use it to avoid illegal moves, never to choose among legal ones. ``None``
    outside a game."""
    plain: PlainTurn | None = field(default=None, compare=False, repr=False)
    """``None`` in a game without a disguise."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The sampling behind a language model's move. Training uses this record and never samples again."""

    prompt: str
    prompt_token_ids: tuple[int, ...]
    completion: str
    completion_token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    policy_version: int | None = None
    temperature: float = 1.0
    """The temperature that ``logprobs`` were sampled at."""
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Move:
    """A decision."""

    action: str
    """The text passed to the environment, e.g. ``[4]``."""
    format_feedback: dict[str, bool] = field(default_factory=dict)
    sampled: SampledTokens | None = None
    """``None`` for scripted players: their turns are in the outcome's actions only."""
    finish_reason: str | None = None
    """The end of the model's answer: ``stop``, ``length``, or what an endpoint calls it; ``None``: no model
    answered."""
    no_answers: int = 0
    """Requests before it that an endpoint gave no answer to."""


class Player(Protocol):
    """Decides moves for one seat of one game."""

    async def move(self, turn: TurnContext) -> Move: ...
