"""Deterministic event ids: a name-based UUID of run, kind and natural key.

The same cause always yields the same id, so that a record delivered or published twice is recognised
and counted once. UUID version 5 is defined in RFC 9562, section 5.5.
"""

import hashlib
import time
import uuid
from typing import Final

_NAMESPACE = uuid.UUID("6f0b7a52-3f0e-5a9d-9d53-2f6a3b1c7e11")
_HASH = hashlib.sha1(_NAMESPACE.bytes, usedforsecurity=False)
_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""A hexadecimal digit with its two upper bits set to the variant's 10."""


def event_id(run_id: str, kind: str, *natural_key: object) -> str:
    """Return the id of the event of ``kind`` that ``natural_key`` identifies within a run.

    Parts are joined with a unit separator, so that ``("a", "b/c")`` and ``("a/b", "c")`` differ.
    """
    # uuid.uuid5, spelled out: an id is made for every step, and this takes a tenth of the time.
    hashed = _HASH.copy()
    hashed.update("\x1f".join((run_id, kind, *map(str, natural_key))).encode())
    return _uuid_5(hashed.hexdigest())


def now_ms() -> int:
    """Return the time as events record it, Unix milliseconds."""
    return time.time_ns() // 1_000_000


def _uuid_5(text: str) -> str:
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"


def named_id(run_id: str, kind: str, *natural_key: object, model: str | None) -> str:
    """Return the id of an event about a trained model: its name ends the natural key, if it has one."""
    return event_id(run_id, kind, *natural_key, *([] if model is None else [model]))


def game_id(run_id: str, split: str, game_index: int) -> str:
    """Return the id of the ``game_index``-th game of a split (``train`` or ``eval``)."""
    return event_id(run_id, "game", split, game_index)


def trajectory_id(game: str, seat: int) -> str:
    """Return the id of one seat's view of a game; the game id already names the run."""
    return event_id(game, "trajectory", seat)


def step_ids(trajectory: str, turns: int) -> list[str]:
    """Return the :func:`step_id` of each of the first ``turns`` turns of a trajectory."""
    begun = _HASH.copy()
    begun.update(f"{trajectory}\x1fstep\x1f".encode())
    made = []
    for turn_index in range(turns):
        hashed = begun.copy()
        hashed.update(b"%d" % turn_index)
        made.append(_uuid_5(hashed.hexdigest()))
    return made


def step_id(trajectory: str, turn_index: int) -> str:
    """Return the id of one trainable turn of a trajectory."""
    return event_id(trajectory, "step", turn_index)
