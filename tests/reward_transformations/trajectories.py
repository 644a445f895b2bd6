"""Trajectories for tests, with every field that matters set by the caller."""

from collections.abc import Mapping, Sequence

from unstable_stream.events import Trajectory, Turn, game_id, pack_floats, pack_tokens, trajectory_id

RUN = "run-a"


def make_turn(
    index: int,
    *,
    valid: bool = True,
    format_feedback: Mapping[str, bool] | None = None,
    finish_reason: str = "stop",
    policy_version: int | None = 3,
    completion: Sequence[int] = (11, 12, 13),
) -> Turn:
    return Turn(
        turn_index=index,
        game_turn=2 * index,
        observation=f"board {index}",
        prompt=f"<board {index}>",
        prompt_token_ids=pack_tokens([1, 2, index]),
        completion=f"I play [{index}]",
        completion_token_ids=pack_tokens(completion),
        logprobs=pack_floats([-0.5] * len(completion)),
        finish_reason=finish_reason,
        action=f"[{index}]",
        valid=valid,
        format_feedback=dict(format_feedback or {"correct_answer_format": True}),
        step_info={"n": index},
        policy_version=policy_version,
    )


def make_trajectory(
    game_index: int = 0,
    seat: int = 0,
    *,
    rewards: Mapping[int, float] | None = None,
    trained_seats: Sequence[int] = (0,),
    roles: Mapping[int, str] | None = None,
    trained: bool = True,
    split: str = "train",
    env_id: str = "Env-v0",
    run_id: str = RUN,
    turns: Sequence[Turn] | None = None,
    policy_version: int | None = 3,
    invalid_move: bool = False,
    opponent_invalid: bool = False,
) -> Trajectory:
    game = game_id(run_id, split, game_index)
    rewards = dict(rewards if rewards is not None else {0: 1.0, 1: -1.0})
    return Trajectory(
        event_id=trajectory_id(game, seat),
        run_id=run_id,
        occurred_at_ms=1_700_000_000_000 + game_index,
        game_id=game,
        game_index=game_index,
        split=split,
        env_id=env_id,
        seed=game_index,
        seat=seat,
        model_uid="ckpt-000003",
        policy_version=policy_version,
        trained=trained,
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
    )
