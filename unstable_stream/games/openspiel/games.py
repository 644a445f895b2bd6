"""Load a game of OpenSpiel: for two players who take turns, with chances that are known.

OpenSpiel writes each of its errors to standard error too, so names are looked up before it is asked.
"""

import difflib
import importlib
import importlib.util
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any, Final

from unstable_stream.errors import ConfigError

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
        close = difflib.get_close_matches(name, _types(), n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else "it has kuhn_poker, nim and more"
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
    except (pyspiel.SpielError, TypeError, RuntimeError) as error:
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
