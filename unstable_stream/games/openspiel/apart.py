"""Compute best responses in a process of their own, so that games go on meanwhile.

OpenSpiel keeps Python's lock while it computes: half a second for Leduc poker, half a minute for TicTacToe.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import Final

import msgspec

from unstable_stream.errors import GameError
from unstable_stream.extensions import Reference
from unstable_stream.games.openspiel.games import load_game
from unstable_stream.games.openspiel.solution import Gains, best_responses

__all__ = ["best_responses_apart"]

_SAID: Final = 500
"""The most characters of a failed process's error output that are repeated."""


class _Question(msgspec.Struct, frozen=True):
    """Passed to the process on its standard input."""

    game: str
    """With its parameters, as in ``liars_dice(dice_sides=3)``."""
    policy: dict[str, dict[int, float]]


class _Answer(msgspec.Struct, frozen=True):
    """Printed by the process."""

    values: tuple[float, ...]
    gains: tuple[float, ...]


async def best_responses_apart(game: str, policy: Mapping[str, Mapping[int, float]]) -> Gains:
    """Return what :func:`best_responses` returns; the process ends with the call, also if it is cancelled.

    Raises:
        GameError: the process failed.
    """
    asked = msgspec.json.encode(_Question(game, {key: dict(chances) for key, chances in policy.items()}))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # What is found here is found there: a worker's path may be set by its host.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        printed, said = await process.communicate(asked)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        reason = said.decode(errors="replace").strip()[-_SAID:]
        raise GameError(f"best responses in {game} failed with status {process.returncode}: {reason}")
    found = msgspec.json.decode(printed, type=_Answer)
    return Gains(found.values, found.gains)


def _main() -> None:
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=_Question)
    reference = Reference.parse(asked.game)
    found = best_responses(load_game(reference.target, reference.arguments), asked.policy)
    sys.stdout.buffer.write(msgspec.json.encode(_Answer(found.values, found.gains)))


if __name__ == "__main__":
    _main()
