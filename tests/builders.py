"""Events with defaults: a test gives the fields that it is about."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from unstable_stream.events import (
    Checkpoint,
    Event,
    GameAbandoned,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    ProcessCost,
    Rating,
    RecordRejected,
    RunFinished,
    RunResumed,
    Step,
    StepsDropped,
    Trajectory,
    checkpoint_uid,
    game_id,
    pack_floats,
    pack_tokens,
    step_id,
    trajectory_id,
)
from unstable_stream.events.ids import named_id

_StructT = TypeVar("_StructT", bound=msgspec.Struct)
_KEYS: Final[dict[type, tuple[str, ...]]] = {
    Checkpoint: ("iteration",),
    GameAbandoned: ("game_id",),
    GameOutcome: ("game_id",),
    GameStarted: ("split", "game_index"),
    LearnerUpdate: ("update",),
    ProcessCost: ("process", "incarnation", "wall_s"),
    Rating: ("game_id", "env_id", "model_uid"),
    RecordRejected: ("consumer", "topic", "partition", "offset"),
    RunFinished: ("updates",),
    RunResumed: ("resumption",),
    StepsDropped: ("update",),
}
"""What makes the id of an event, beside its run and type."""
_OF_A_GAME: Final = ("run_id", "game_id", "game_index", "split", "env_id", "seed")
_DEFAULTS: Final[dict[str, Any]] = {
    "run_id": "run-test",
    "occurred_at_ms": 1,
    "name": "made up",
    "seed": 0,
    "outcome": "completed",
    "resumption": 1,
    "iteration": 0,
    "path": None,
    "game_index": 0,
    "split": "train",
    "env_id": "TicTacToe-v0-train",
    "reason": "test",
    "seat": 0,
    "kind": "checkpoint",
    "rank": 0,
    "policy_version": 0,
    "rewards": {},
    "reward": 1.0,
    "raw_reward": 1.0,
    "final_reward": 1.0,
    "turns": (),
    "num_turns": 1,
    "turn_index": 0,
    "game_turn": 0,
    "observation": "",
    "prompt": "",
    "prompt_token_ids": pack_tokens([1]),
    "completion": "",
    "completion_token_ids": pack_tokens([2]),
    "logprobs": pack_floats([-1.0]),
    "finish_reason": "stop",
    "action": "[0]",
    "update": 1,
    "step_ids": (),
    "source": "learner",
    "mu": 25.0,
    "sigma": 8.0,
    "games": 1,
    "consumer": "learner",
    "topic": "steps",
    "partition": 0,
    "offset": 0,
}


def made(kind: type[_StructT], of: Event | None = None, /, **fields: Any) -> _StructT:
    """Return an event, or a part of one. ``Any``: its fields.

    Args:
        kind: its class.
        of: an event of the same game, whose facts it has.
        fields: what is not a default. Ids follow from the other fields.
    """
    known = _known(kind)
    whole = {name: _DEFAULTS[name] for name, required in known.items() if required and name in _DEFAULTS}
    whole |= {name: getattr(of, name) for name in _OF_A_GAME if name in known and of is not None}
    whole |= fields
    run, tag = whole.get("run_id", ""), str(kind.__struct_config__.tag)
    derived: dict[str, Callable[[], str]] = {
        "game_id": lambda: game_id(run, whole.get("split", "train"), whole.get("game_index", 0)),
        "trajectory_id": lambda: trajectory_id(whole["game_id"], whole["seat"]),
        "model_uid": lambda: checkpoint_uid(
            whole.get("iteration", whole.get("policy_version", 0)), whole.get("model")
        ),
        "event_id": lambda: _id_of(kind, run, tag, whole),
    }
    for name, follows in derived.items():
        if known.get(name) and name not in whole:
            whole[name] = follows()
    return kind(**whole)


@cache  # to ask msgspec takes most of the time of making an event
def _known(kind: type[msgspec.Struct]) -> dict[str, bool]:
    return {field.name: field.required for field in msgspec.structs.fields(kind)}


def _id_of(kind: type, run: str, tag: str, whole: dict[str, Any]) -> str:
    if kind is Trajectory:
        return trajectory_id(whole["game_id"], whole["seat"])
    if kind is Step:
        return step_id(whole["trajectory_id"], whole["turn_index"])
    key = (whole.get(name, 0) for name in _KEYS.get(kind, ()))
    return named_id(run, tag, *key, model=whole.get("model"))
