"""Game outcomes for tests."""

from collections.abc import Mapping, Sequence

from unstable_stream.events import Action, GameOutcome, SeatResult, event_id, game_id

RUN = "run-a"


def version_of(uid: str) -> int | None:
    return int(uid.rpartition("-")[2]) if uid.startswith("ckpt-") else None


def parent_of(uid: str) -> str | None:
    version = version_of(uid)
    return f"{uid.rpartition('-')[0]}-{version - 1:06d}" if version else None


def make_outcome(
    game_index: int,
    seats: Mapping[int, tuple[str, float]],
    *,
    env_id: str = "Env-v0",
    split: str = "train",
    run_id: str = RUN,
    trained: Sequence[int] = (0,),
    invalid_seat: int | None = None,
    turns: int = 0,
    actions: Sequence[str] = (),
    parents: Mapping[str, str | None] | None = None,
) -> GameOutcome:
    """``seats`` is seat to (model uid, reward); ranks follow from the rewards, checkpoints from the uids."""
    game = game_id(run_id, split, game_index)
    return GameOutcome(
        event_id=event_id(run_id, "game-outcome", game),
        run_id=run_id,
        occurred_at_ms=1_700_000_000_000 + game_index,
        game_id=game,
        game_index=game_index,
        split=split,
        env_id=env_id,
        seed=game_index,
        seats=tuple(
            SeatResult(
                seat=seat,
                model_uid=uid,
                kind="scripted" if version_of(uid) is None else "checkpoint",
                reward=reward,
                rank=sum(other > reward for _, other in seats.values()),
                policy_version=version_of(uid),
                parent_uid=(parents or {}).get(uid, parent_of(uid)),
                trained=seat in trained,
                turns=turns,
            )
            for seat, (uid, reward) in seats.items()
        ),
        reason="win" if invalid_seat is None else "invalid-move",
        invalid_seat=invalid_seat,
        actions=tuple(Action(i % len(seats), action) for i, action in enumerate(actions)),
    )
