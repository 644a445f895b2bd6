"""Topic ``steps``: trainable turns with their shaped rewards.

Written by the reward processor, read by the learner and the archive. Derived: can be recomputed from
``trajectories`` at any time.
"""

from unstable_stream.events.arrays import PackedFloats, PackedTokens
from unstable_stream.events.envelope import Event

__all__ = ["Step"]


class Step(Event, frozen=True, kw_only=True, tag="step"):
    """One trainable turn. Natural key: trajectory id, turn index (``event_id`` is its id).

    ``completion_token_ids`` and ``logprobs`` have the same length.
    """

    TOPIC = "steps"

    trajectory_id: str
    game_id: str
    game_index: int
    env_id: str
    seat: int
    turn_index: int
    num_turns: int
    """Turns of the trajectory: ``turn_index == num_turns - 1`` is its last."""
    model_uid: str
    policy_version: int
    prompt_token_ids: PackedTokens
    completion_token_ids: PackedTokens
    logprobs: PackedFloats
    truncated: bool = False
    """The completion was cut at the token limit."""
    temperature: float = 1.0
    """What the behaviour log-probabilities were sampled at; the learner applies the same."""
    raw_reward: float
    """The environment's final reward for this seat."""
    final_reward: float
    """After the final reward transformations."""
    reward: float
    """After the step reward transformations: what the learner sees, before sampling transformations."""

    @property
    def key(self) -> str:
        return self.game_id

    @property
    def step_id(self) -> str:
        """Alias of ``event_id``: the id learner updates name."""
        return self.event_id
