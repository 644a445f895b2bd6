"""Tell how far a policy is from optimal play: what best responses to it gain, computed by OpenSpiel.

NashConv of a policy is the sum over the players of what each could gain by playing its best response instead,
the other keeping to the policy (Lanctot et al., 2017, arXiv:1711.00832). It is 0 exactly in an equilibrium.
"""

import asyncio
import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unstable_stream.errors import ConfigError, GameError
from unstable_stream.extensions import Reference
from unstable_stream.games.openspiel.games import PLAYERS, load_game
from unstable_stream.games.openspiel.wording import information_state, move_names, observation

MOST_POSITIONS: Final = 1_000_000
"""Kuhn poker has 58 positions, Leduc poker 9,457, TicTacToe 549,946, which take half a minute."""
_SAID: Final = 500
"""The most characters of a failed process's error output that are repeated."""


@dataclass(frozen=True, slots=True)
class InformationState:
    """All positions that a player cannot tell apart."""

    key: str
    """OpenSpiel's string."""
    player: int
    observation: str
    """The text that the player is shown."""
    moves: Mapping[int, str]
    """Names of the legal moves, by number."""


class Gains(msgspec.Struct, frozen=True):
    """The rewards with a policy, and what a best response to it adds, by seat."""

    values: tuple[float, ...]
    """Expected reward when both play the policy."""
    gains: tuple[float, ...]
    """The gain of a best response to the other's policy; 0 or more, but for rounding."""

    @property
    def nash_conv(self) -> float:
        """The sum of the gains."""
        return sum(self.gains)


def information_states(game: Any, at_most: int = MOST_POSITIONS) -> list[InformationState]:
    """Return every information state of a game, which has no types.

    Raises:
        ConfigError: the game has more than ``at_most`` positions, or does not say who knows what.
    """
    name = f"openspiel:{game.get_type().short_name}"
    if not game.get_type().provides_information_state_string:
        raise ConfigError(
            f"{name}: OpenSpiel does not tell its information states apart; choose another game"
        )
    found: dict[str, InformationState] = {}
    left = [game.new_initial_state()]
    met = 0
    while left:
        state = left.pop()
        met += 1
        if met > at_most:
            raise ConfigError(
                f"{name}: more than {at_most:,} positions, too many for exact best responses; choose a "
                "smaller game, e.g. openspiel:leduc_poker or openspiel:liars_dice(dice_sides=3)"
            )
        if state.is_terminal():
            continue
        if not state.is_chance_node():
            key, player = information_state(state), state.current_player()
            if key not in found:
                found[key] = InformationState(key, player, observation(state), move_names(state))
            elif found[key].player != player:
                raise ConfigError(
                    f"{name}: both players have an information state {key!r}; choose another game"
                )
        left += [state.child(move) for move in reversed(state.legal_actions())]
    return list(found.values())


def best_responses(game: Any, policy: Mapping[str, Mapping[int, float]]) -> Gains:
    """Return what best responses gain against a policy: probabilities of the moves by information state.

    Those of a state sum to 1, and every state of the game is there.
    """
    pyspiel = importlib.import_module("pyspiel")
    table = pyspiel.TabularPolicy({key: list(chances.items()) for key, chances in policy.items()})
    start = game.new_initial_state()
    values = pyspiel.expected_returns(start, table, -1, True)  # to any depth, its own player's strings
    best = [
        pyspiel.TabularBestResponse(game, player, table).value_from_state(start) for player in range(PLAYERS)
    ]
    return Gains(tuple(values), tuple(b - v for b, v in zip(best, values, strict=True)))


class _Question(msgspec.Struct, frozen=True):
    """Passed to the process on its standard input."""

    game: str
    """With its parameters, as in ``liars_dice(dice_sides=3)``."""
    policy: dict[str, dict[int, float]]


async def best_responses_apart(game: str, policy: Mapping[str, Mapping[int, float]]) -> Gains:
    """Return what :func:`best_responses` returns, from a process of its own, so that games go on meanwhile.

    OpenSpiel keeps Python's lock while it computes: half a second for Leduc poker, half a minute for
    TicTacToe. The process ends with the call, also if it is cancelled.

    Raises:
        GameError: the process failed.
    """
    asked = msgspec.json.encode(_Question(game, {key: dict(chances) for key, chances in policy.items()}))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "unstable_stream.games.openspiel.solution",
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
    return msgspec.json.decode(printed, type=Gains)


def _main() -> None:
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=_Question)
    reference = Reference.parse(asked.game)
    found = best_responses(load_game(reference.target, reference.arguments), asked.policy)
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    _main()
