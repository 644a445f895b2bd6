"""Define the base of the three kinds of reward transformation: explicit state."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from unstable_stream.errors import ConfigError
from unstable_stream.extensions import RemembersArguments

__all__ = ["JsonState", "RewardTransform", "check_stages", "load_stage_states"]

JsonState: TypeAlias = dict[str, Any]
"""Plain JSON values only, so that state can be stored, compared and printed."""


class RewardTransform(RemembersArguments):
    """Base of all reward transformations. Stateless unless a subclass says otherwise.

    A transformation that learns from what it sees overrides both methods: its state is part of the
    reward processor's, which is rebuilt from the log.
    """

    def state(self) -> JsonState:
        """Return everything learned so far, as JSON values."""
        return {}

    def load_state(self, state: JsonState) -> None:
        """Go on from what :meth:`state` returned."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but was given {sorted(state)}")


def check_stages(kind: type[RewardTransform], stages: Sequence[RewardTransform]) -> None:
    """Refuse a stage of another kind at construction; raises :class:`ConfigError`."""
    for place, stage in enumerate(stages):
        if not isinstance(stage, kind):
            raise ConfigError(
                f"transformation {place} is {stage!r}, expected an instance of a {kind.__name__} subclass"
            )


def load_stage_states(stages: Sequence[RewardTransform], state: JsonState) -> None:
    """Give each stage of a composition its part of the composition's state."""
    states = state["stages"]
    if len(states) != len(stages):
        raise ValueError(f"state of {len(states)} transformations given to a composition of {len(stages)}")
    for stage, part in zip(stages, states, strict=True):
        stage.load_state(part)
