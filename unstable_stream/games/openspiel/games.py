"""Load a game of OpenSpiel, for two players who take turns, with chances that are known; and play it.

OpenSpiel writes each of its errors to standard error too, so names are looked up before it is asked.
"""

import importlib
import importlib.util
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any, Final

from unstable_stream.errors import ConfigError, did_you_mean
from unstable_stream.games.openspiel.wording import move_names, observation, read_move

PLAYERS: Final = 2


def load_game(name: str, parameters: Mapping[str, Any] | None = None) -> Any:  # pyspiel has no types
    """Return the game of that name with these parameters.

    Raises:
        ConfigError: OpenSpiel is not installed, it has no such game or parameter, or the game is none that
            can be played here; one line.
    """
    pyspiel = _pyspiel()
    wrong = f"openspiel:{name}"
    kind = _types().get(name)
    if kind is None:
        hint = did_you_mean(name, _types(), "it has kuhn_poker, nim and more")
        raise ConfigError(f"{wrong}: OpenSpiel has no game {name!r}; {hint}")
    given = dict(parameters or {})
    known = kind.parameter_specification
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        raise ConfigError(
            f"{wrong}: no parameter {unknown[0]!r}; it has {', '.join(sorted(known)) or 'none'}"
        )
    try:
        game = pyspiel.load_game(name, given)
    except (pyspiel.SpielError, TypeError, RuntimeError, IndexError) as error:
        raise ConfigError(f"{wrong}: OpenSpiel refused {given}: {' '.join(str(error).split())}") from error
    reason = _unplayable(pyspiel, game)
    if reason:
        raise ConfigError(f"{wrong}: {reason}; choose a game for two players who take turns")
    return game


@cache
def _pyspiel() -> ModuleType:
    if importlib.util.find_spec("pyspiel") is None:
        raise ConfigError("OpenSpiel is not installed. Run: pip install 'unstable_stream[openspiel]'")
    return importlib.import_module("pyspiel")


@cache
def _types() -> dict[str, Any]:
    return {kind.short_name: kind for kind in _pyspiel().registered_games()}


def _unplayable(pyspiel: ModuleType, game: Any) -> str:
    """Return why a game cannot be played here, empty if it can."""
    kind = game.get_type()
    if game.num_players() != PLAYERS:
        return f"it is for {game.num_players()} player(s)"
    if kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        return "its players move at the same time"
    if kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC:
        return "it draws its chances itself, so that no seed repeats a game"
    if not kind.provides_information_state_string and not kind.provides_observation_string:
        return "it does not say in words what a player knows"
    return ""


@dataclass
class _Referee:
    """Counts invalid moves, as the ``state`` of TextArena's environments does."""

    error_allowance: int = 0
    """Invalid moves in a row that a player may make; the next one loses."""
    in_a_row: int = 0
    role_mapping: dict[int, str] = field(default_factory=dict)

    def set_invalid_move(self, reason: str) -> bool:
        """Count an invalid move; return whether it loses."""
        self.in_a_row += 1
        return self.in_a_row > self.error_allowance


class OpenSpielGame:
    """One game, with the interface of TextArena's environments.

    The seed draws what chance decides; the players decide the rest.

    Rewards are OpenSpiel's returns. Who loses by an invalid move gets the least that the game can give, the
    other the most: anything better would be worth an invalid move in a lost game.
    """

    def __init__(self, name: str, **parameters: bool | int | float | str) -> None:
        """Load the game; raises :class:`~unstable_stream.errors.ConfigError` if it cannot be played here.

        Args:
            name: OpenSpiel's short name, e.g. ``kuhn_poker``.
            parameters: its parameters, e.g. ``dice_sides=3``.
        """
        self.game = load_game(name, parameters)
        self.state = _Referee()
        self._position: Any = None
        self._chance = random.Random()
        self._offender: int | None = None
        self._why = ""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        """Begin a game; raises :class:`~unstable_stream.errors.ConfigError` for any but two players."""
        if num_players != PLAYERS:
            name = self.game.get_type().short_name
            raise ConfigError(f"openspiel:{name}: num_players = {num_players}; expected {PLAYERS}")
        self.state = _Referee()
        self._chance = random.Random(seed)
        self._offender = None
        self._position = self.game.new_initial_state()
        self._draw()

    def get_observation(self) -> tuple[int, str]:
        """Return the player to move and the text that it is shown."""
        return self._position.current_player(), observation(self._position)

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        """Make the move that the text names; one that is not legal is invalid, and may be tried again."""
        names = move_names(self._position)
        move = read_move(names, action)
        if move is None:
            legal = ", ".join(f"[{name}]" for name in names.values())
            player = self._position.current_player()
            self._why = f"player {player}: {action[:100]!r} is no legal move; expected one of {legal}"
            if self.state.set_invalid_move(self._why):
                self._offender = player
            return self._offender is not None, {}
        self.state.in_a_row = 0
        self._position.apply_action(move)
        self._draw()
        return self._position.is_terminal(), {}

    def close(self) -> tuple[dict[int, float] | None, dict[int, dict[str, Any]]]:
        """Return the reward of each player, ``None`` if the game is not over, and how it ended."""
        if self._offender is not None:
            worst, best = self.game.min_utility(), self.game.max_utility()
            rewards = {seat: worst if seat == self._offender else best for seat in range(PLAYERS)}
            return rewards, {self._offender: {"invalid_move": True, "reason": self._why}}
        if not self._position.is_terminal():
            return None, {}
        returns = [float(value) for value in self._position.returns()]
        words = " and ".join(f"player {seat} got {value:g}" for seat, value in enumerate(returns))
        return dict(enumerate(returns)), {0: {"reason": words}}

    def _draw(self) -> None:
        while self._position.is_chance_node():
            outcomes, chances = zip(*self._position.chance_outcomes(), strict=True)
            self._position.apply_action(self._chance.choices(outcomes, chances)[0])
