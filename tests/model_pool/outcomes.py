"""Game outcomes for tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.builders import made
from unstable_stream.events import Action, GameOutcome, SeatResult

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
    trained: Sequence[int] = (0,),
    turns: int = 0,
    actions: Sequence[str] = (),
    parents: Mapping[str, str | None] | None = None,
    **fields: Any,
) -> GameOutcome:
    """``seats`` is seat to (model uid, reward); ranks follow from the rewards, checkpoints from the uids.

    ``fields``: those of the outcome.
    """
    reason = "win" if fields.get("invalid_seat") is None else "invalid-move"
    fields = {"run_id": RUN, "env_id": "Env-v0", "invalid_seat": None, "reason": reason, **fields}
    return made(
        GameOutcome,
        occurred_at_ms=1_700_000_000_000 + game_index,
        game_index=game_index,
        seed=game_index,
        seats=tuple(
            made(
                SeatResult,
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
        actions=tuple(Action(i % len(seats), action) for i, action in enumerate(actions)),
        **fields,
    )
