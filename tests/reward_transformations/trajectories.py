"""Trajectories for tests, with every field that matters set by the caller."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.builders import made
from unstable_stream.events import Trajectory, Turn, pack_floats, pack_tokens

RUN = "run-a"


def make_turn(
    index: int,
    *,
    format_feedback: Mapping[str, bool] | None = None,
    completion: Sequence[int] = (11, 12, 13),
    **fields: Any,
) -> Turn:
    """``fields``: those of the turn that need nothing derived."""
    return made(
        Turn,
        turn_index=index,
        game_turn=2 * index,
        observation=f"board {index}",
        prompt=f"<board {index}>",
        prompt_token_ids=pack_tokens([1, 2, index]),
        completion=f"I play [{index}]",
        completion_token_ids=pack_tokens(completion),
        logprobs=pack_floats([-0.5] * len(completion)),
        action=f"[{index}]",
        format_feedback=dict(format_feedback or {"correct_answer_format": True}),
        step_info={"n": index},
        **{"policy_version": 3, **fields},
    )


def make_trajectory(
    game_index: int = 0,
    seat: int = 0,
    *,
    rewards: Mapping[int, float] | None = None,
    trained_seats: Sequence[int] = (0,),
    roles: Mapping[int, str] | None = None,
    turns: Sequence[Turn] | None = None,
    invalid_move: bool = False,
    opponent_invalid: bool = False,
    **fields: Any,
) -> Trajectory:
    """``fields``: those of the trajectory that need nothing derived."""
    rewards = dict(rewards if rewards is not None else {0: 1.0, 1: -1.0})
    return made(
        Trajectory,
        occurred_at_ms=1_700_000_000_000 + game_index,
        game_index=game_index,
        seed=game_index,
        seat=seat,
        model_uid="ckpt-000003",
        role=(roles or {}).get(seat),
        roles=dict(roles or {}),
        trained_seats=tuple(trained_seats),
        turns=tuple(turns if turns is not None else (make_turn(0), make_turn(1))),
        rewards=rewards,
        reward=rewards[seat],
        reason="invalid-move" if invalid_move or opponent_invalid else "win",
        invalid_move=invalid_move,
        opponent_invalid=opponent_invalid,
        temperature=0.7,
        **{"run_id": RUN, "env_id": "Env-v0", "policy_version": 3, "trained": True, **fields},
    )
