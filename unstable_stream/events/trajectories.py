"""Topic ``trajectories``: one seat's view of one game.

Written by rollout workers for every seat a language model played; read by the reward processor, the
archive and the live view. Key ``run/env``: reward baselines per environment see them in order.
"""

from typing import Any

import msgspec

from unstable_stream.events.arrays import PackedFloats, PackedTokens
from unstable_stream.events.envelope import Event

__all__ = ["Trajectory", "Turn"]


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One decision. ``completion_token_ids`` and ``logprobs`` have the same length."""

    turn_index: int
    """0-based within this trajectory."""
    game_turn: int
    """0-based among all the game's moves."""
    observation: str
    """What the environment showed this seat."""
    prompt: str
    """The observation in the model's template, as text."""
    prompt_token_ids: PackedTokens
    """int32[prompt], exactly what the engine was given."""
    completion: str
    completion_token_ids: PackedTokens
    """int32[completion], exactly what the engine sampled, end token included if it was sampled."""
    logprobs: PackedFloats
    """float32[completion], of the distribution sampled from (temperature and top-p applied)."""
    finish_reason: str
    """``stop`` or ``length`` (cut at the token limit)."""
    action: str
    """Extracted from the completion and passed to the environment."""
    valid: bool = True
    """Whether the environment accepted the action."""
    format_feedback: dict[str, bool] = msgspec.field(default_factory=dict)
    """What the extraction found, e.g. ``{"correct_answer_format": true}``."""
    step_info: dict[str, Any] = msgspec.field(default_factory=dict)
    """The environment's info for this step."""
    policy_version: int | None = None
    """The learner update whose weights sampled this turn."""
    latency_ms: float = 0.0


class Trajectory(Event, frozen=True, kw_only=True, tag="trajectory"):
    """One seat's view of one finished game. Natural key: game id, seat (``event_id`` is its id)."""

    TOPIC = "trajectories"

    game_id: str
    game_index: int
    split: str
    env_id: str
    seed: int
    seat: int
    model_uid: str
    policy_version: int | None = None
    role: str | None = None
    template: str | None = None
    trained: bool = False
    """Whether the reward processor turns this trajectory into steps."""
    trained_seats: tuple[int, ...] = ()
    """All seats of this game that are trained on; their trajectories follow one another in the log."""
    opponents: tuple[str, ...] = ()
    """Model uids of the other seats."""
    turns: tuple[Turn, ...]
    rewards: dict[int, float]
    """Every seat's final reward: the vector the final reward transformations see."""
    reward: float
    """This seat's final reward."""
    reason: str
    """As in the game outcome."""
    invalid_move: bool = False
    """Whether this seat's invalid move ended the game."""
    opponent_invalid: bool = False
    """Whether another seat's invalid move ended the game."""
    temperature: float = 1.0
    top_p: float = 1.0

    @property
    def key(self) -> str:
        return f"{self.run_id}/{self.env_id}"

    @property
    def trajectory_id(self) -> str:
        """Alias of ``event_id``: the id other events refer to."""
        return self.event_id
