"""Topic ``trajectories``: one seat's view of one game.

Written by rollout workers for every seat a language model played; read by the reward processor, the
archive and the live view. Key ``run/env``: reward baselines per environment see them in order.
"""

from typing import Any

import msgspec

from unstable_stream.events.arrays import PackedFloats, PackedTokens
from unstable_stream.events.envelope import Event, Int64


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One decision. ``completion_token_ids`` and ``logprobs`` have the same length."""

    turn_index: int
    """0-based within this trajectory."""
    game_turn: int
    """0-based among all the game's moves."""
    observation: str
    """The text the environment showed this seat."""
    prompt: str
    """The observation in the model's template, as text."""
    prompt_token_ids: PackedTokens
    """int32[prompt], exactly what the engine was given."""
    completion: str
    """The text the model wrote."""
    completion_token_ids: PackedTokens
    """int32[completion], exactly what the engine sampled, end token included if it was sampled."""
    logprobs: PackedFloats
    """float32[completion], nats, of the distribution sampled from (temperature and top-p applied)."""
    finish_reason: str
    """``stop`` or ``length`` (cut at the token limit)."""
    action: str
    """Extracted from the completion and passed to the environment."""
    valid: bool = True
    """Whether the environment accepted the action."""
    format_feedback: dict[str, bool] = msgspec.field(default_factory=dict)
    """Findings of the action extraction, e.g. ``{"correct_answer_format": true}``."""
    step_info: dict[str, Any] = msgspec.field(default_factory=dict)
    """The environment's info for this step."""
    policy_version: int | None = None
    """The learner update whose weights sampled this turn; ``None`` for a fixed opponent."""
    latency_ms: float = 0.0
    """Milliseconds from request to completion."""


class Trajectory(Event, frozen=True, kw_only=True, tag="trajectory"):
    """One seat's view of one finished game. Natural key: game id, seat (``event_id`` is its id)."""

    TOPIC = "trajectories"

    game_id: str
    """The game."""
    game_index: int
    """0, 1, 2, … within run and split."""
    split: str
    """``train``, ``eval``, or ``human``: a person plays."""
    env_id: str
    """TextArena environment."""
    seed: Int64
    """The game's seed."""
    seat: int
    """0-based player number in the environment."""
    model_uid: str
    """Checkpoint uid or name of a fixed opponent."""
    policy_version: int | None = None
    """Learner update that made the checkpoint; 0 is the initial policy, ``None`` for a fixed opponent."""
    role: str | None = None
    """The environment's name for the seat (``Mafia``, ``Proposer``); ``None``: it has none."""
    template: str | None = None
    """Prompt template."""
    trained: bool = False
    """Whether the reward processor turns this trajectory into steps."""
    trained_seats: tuple[int, ...] = ()
    """All seats of this game that are trained on; their trajectories follow one another in the log."""
    opponents: tuple[str, ...] = ()
    """Model uids of the other seats, by seat."""
    turns: tuple[Turn, ...]
    """The decisions of this seat, in order."""
    rewards: dict[int, float]
    """Every seat's final reward: the vector the final reward transformations see."""
    reward: float
    """This seat's final reward."""
    reason: str
    """The end of the game, as in the game outcome."""
    invalid_move: bool = False
    """Whether this seat's invalid move ended the game."""
    opponent_invalid: bool = False
    """Whether another seat's invalid move ended the game."""
    temperature: float = 1.0
    """Sampling temperature."""
    top_p: float = 1.0
    """Nucleus sampling threshold."""
    roles: dict[int, str] = msgspec.field(default_factory=dict)
    """The environment's name for each seat that has one."""

    @property
    def key(self) -> str:
        return f"{self.run_id}/{self.env_id}"

    @property
    def trajectory_id(self) -> str:
        """Alias of ``event_id``: the id other events refer to."""
        return self.event_id
