"""Steps for buffer tests, numbered like a run's."""

from unstable_stream.events import (
    DroppedStep,
    LearnerUpdate,
    Step,
    event_id,
    game_id,
    pack_floats,
    pack_tokens,
    step_id,
    trajectory_id,
)

RUN = "run"


def make_step(game_index: int, turn_index: int = 0, *, seat: int = 0, policy_version: int = 0) -> Step:
    """The step of one turn: equal arguments give equal ids."""
    game = game_id(RUN, "train", game_index)
    trajectory = trajectory_id(game, seat)
    return Step(
        event_id=step_id(trajectory, turn_index),
        run_id=RUN,
        occurred_at_ms=0,
        trajectory_id=trajectory,
        game_id=game,
        game_index=game_index,
        env_id="SimpleTak-v0-train",
        seat=seat,
        turn_index=turn_index,
        num_turns=turn_index + 1,
        model_uid=f"ckpt-{policy_version:06d}",
        policy_version=policy_version,
        prompt_token_ids=pack_tokens([1, 2]),
        completion_token_ids=pack_tokens([3]),
        logprobs=pack_floats([-0.5]),
        raw_reward=1.0,
        final_reward=1.0,
        reward=1.0,
    )


def make_update(number: int, step_ids: list[str], dropped: tuple[DroppedStep, ...] = ()) -> LearnerUpdate:
    """What the learner records of an update."""
    return LearnerUpdate(
        event_id=event_id(RUN, "learner-update", number),
        run_id=RUN,
        occurred_at_ms=0,
        update=number,
        step_ids=tuple(step_ids),
        dropped=dropped,
    )
