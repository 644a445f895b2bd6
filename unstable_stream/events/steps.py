"""Topic ``steps``: trainable turns with their shaped rewards.

Written by the reward processor, read by the learner and the archive. Derived: can be recomputed from
``trajectories`` at any time.
"""

from typing import Any

import msgspec

from unstable_stream.events.arrays import PackedFloats, PackedTokens
from unstable_stream.events.envelope import Event


class StepTexts(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of one turn, as the trajectory has them."""

    observation: str
    """The text the environment showed this seat."""
    completion: str
    """The text the model wrote."""
    action: str
    """Extracted from the completion and passed to the environment."""
    valid: bool = True
    """Whether the environment accepted the action."""
    format_feedback: dict[str, bool] = msgspec.field(default_factory=dict)
    """Findings of the action extraction."""
    step_info: dict[str, Any] = msgspec.field(default_factory=dict)
    """The environment's info for this step."""


class Step(Event, frozen=True, kw_only=True, tag="step"):
    """One trainable turn. Natural key: trajectory id, turn index (``event_id`` is its id).

    ``completion_token_ids`` and ``logprobs`` have the same length.
    """

    TOPIC = "steps"

    trajectory_id: str
    """The trajectory it is a turn of."""
    game_id: str
    """The game."""
    game_index: int
    """0, 1, 2, … within run and split."""
    env_id: str
    """TextArena environment."""
    seat: int
    """0-based player number in the environment."""
    turn_index: int
    """0-based within the trajectory."""
    num_turns: int
    """Turns of the trajectory: ``turn_index == num_turns - 1`` is its last."""
    model_uid: str
    """The policy that sampled it."""
    policy_version: int
    """Learner update that made that policy; 0 is the initial policy."""
    prompt_token_ids: PackedTokens
    """int32[prompt], exactly what the engine was given."""
    completion_token_ids: PackedTokens
    """int32[completion], exactly what the engine sampled."""
    logprobs: PackedFloats
    """float32[completion], nats, of the distribution sampled from."""
    truncated: bool = False
    """Whether the completion was cut at the token limit."""
    temperature: float = 1.0
    """Temperature the behaviour log-probabilities were sampled at; the learner applies the same."""
    raw_reward: float
    """The environment's final reward for this seat."""
    final_reward: float
    """After the final reward transformations."""
    reward: float
    """After the step reward transformations: what the learner sees, before sampling transformations."""
    texts: StepTexts | None = None
    """The texts of the turn; ``None`` unless the run's own code may ask for it (``rewards.step_texts``)."""
    cut_off: bool | None = None
    """Of a completion that was cut: whether no action was found in it, so that the learner takes it for
    truncated. ``None``: it was not cut, or was recorded before players said so; then ``truncated`` counts."""

    @property
    def key(self) -> str:
        return self.game_id

    @property
    def step_id(self) -> str:
        """Alias of ``event_id``: the id learner updates name."""
        return self.event_id
