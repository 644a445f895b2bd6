"""Try an action on a copy of a game: would the environment call it legal?

The copy is thrown away, whatever happens to it. Nothing leaks into the game:

- The copy owns all it can change, except the texts it was shown and said so far, which it starts without.
- Its chance comes from a generator of its own, so neither the game's nor the process's generators advance.
- :func:`watch_state` binds methods to one state; the copy gets its own.
"""

import copy
from collections.abc import Callable
from typing import Any, Final

from unstable_stream.games.isolation import PrivateRandomness

_WATCHED: Final = ("set_invalid_move", "set_winner")


def would_accept(env: Any, action: str, num_players: int, *, with_numpy: bool = True) -> bool:
    """Return whether the environment would take ``action`` now without calling it invalid.

    An action at which the environment fails is not accepted either. Raises whatever :func:`copy.deepcopy`
    raises. ``with_numpy``: whether the environment may use numpy's generator.
    """
    with PrivateRandomness(0, with_numpy=with_numpy):
        tried = _copied(env)
        complaints: list[str] = []
        state = getattr(tried, "state", None)
        if state is not None:
            watch_copy(state, num_players, complaints.append)
        try:
            done, info = tried.step(action=action)
        except Exception:  # noqa: BLE001  (whatever the environment does wrong is no legal move)
            return False
        if state is None:
            return not (isinstance(info, dict) and info.get("invalid_move"))
        return not complaints and (done or getattr(state, "current_player_id", 0) in range(num_players))


def watch_copy(state: Any, num_players: int, report: Callable[[str], None]) -> None:
    """Watch the state of a copied game, which reports to the game that was copied, as :func:`watch_state`."""
    for name in _WATCHED:
        vars(state).pop(name, None)
    watch_state(state, num_players, report)


def watch_state(state: Any, num_players: int, report: Callable[[str], None]) -> None:
    """Have every call of ``state.set_invalid_move`` reported first, with the environment's words.

    And take ``set_winner`` by the argument that Tak names it with, at which it fails otherwise.
    """
    original = state.set_invalid_move

    def watched(reason: Any = None, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], str):
            # Countdown and Cryptarithm pass reward and reason the wrong way round.
            reason, args = args[0], (reason, *args[1:])
        report(str(reason or "invalid move"))
        lost = original(reason, *args, **kwargs)
        if len(getattr(state, "elimination_order", ())) >= num_players and not state.done:
            # With nobody left, the state would look for the next player forever (PublicGoodsGame).
            state.set_game_outcome(dict.fromkeys(range(num_players), -1.0), "every player is out")
        return lost

    state.set_invalid_move = watched
    if (set_winner := getattr(state, "set_winner", None)) is None:
        return

    def named_otherwise(*args: Any, **kwargs: Any) -> Any:
        if "player_ids" in kwargs:
            kwargs["player_id"] = kwargs.pop("player_ids")
        return set_winner(*args, **kwargs)

    state.set_winner = named_otherwise


def _copied(env: Any) -> Any:
    """Return a copy without the texts of the past: they decide nothing, and cost more with every turn."""
    memo: dict[int, Any] = {}
    state = getattr(env, "state", None)
    if isinstance(logs := getattr(state, "logs", None), list):
        memo[id(logs)] = []
    if isinstance(waiting := getattr(state, "observations", None), dict):
        memo[id(waiting)] = {seat: [] for seat in waiting}
    wrapped = env
    while "env" in vars(wrapped):  # the wrappers around the environment
        if "full_observations" in vars(wrapped):
            memo[id(vars(wrapped)["full_observations"])] = {}
        wrapped = vars(wrapped)["env"]
    return copy.deepcopy(env, memo)
