"""Deterministic event ids: a name-based UUID of run, kind and natural key.

The same cause always yields the same id, so that a record delivered or published twice is recognised
and counted once. UUID version 5 is defined in RFC 9562, section 5.5.
"""

import uuid

__all__ = ["event_id", "game_id", "step_id", "trajectory_id"]

_NAMESPACE = uuid.UUID("6f0b7a52-3f0e-5a9d-9d53-2f6a3b1c7e11")


def event_id(run_id: str, kind: str, *natural_key: object) -> str:
    """Return the id of the event of ``kind`` that ``natural_key`` identifies within a run.

    Parts are joined with a unit separator, so that ``("a", "b/c")`` and ``("a/b", "c")`` differ.
    """
    return str(uuid.uuid5(_NAMESPACE, "\x1f".join((run_id, kind, *map(str, natural_key)))))


def game_id(run_id: str, split: str, game_index: int) -> str:
    """Return the id of the ``game_index``-th game of a split (``train`` or ``eval``)."""
    return event_id(run_id, "game", split, game_index)


def trajectory_id(game: str, seat: int) -> str:
    """Return the id of one seat's view of a game; the game id already names the run."""
    return event_id(game, "trajectory", seat)


def step_id(trajectory: str, turn_index: int) -> str:
    """Return the id of one trainable turn of a trajectory."""
    return event_id(trajectory, "step", turn_index)
