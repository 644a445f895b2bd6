"""Try an action on a copy of a game: would the environment call it legal?

The copy is thrown away, whatever happens to it. Nothing leaks into the game:

- The copy owns all it can change, except the texts it was shown and said so far, which it starts without.
- Its chance comes from a generator of its own, so neither the game's nor the process's generators advance.
- :func:`watch_invalid_moves` binds a method to one state; the copy gets its own.
"""

import copy
from collections.abc import Callable
from typing import Any

from unstable_stream.games.isolation import PrivateRandomness

__all__ = ["accepts", "watch_invalid_moves"]


def accepts(env: Any, action: str, *, num_players: int, with_numpy: bool) -> bool:
    """Return whether ``env`` would take ``action`` now without calling it invalid.

    An action at which the environment fails is not accepted either.
    """
    with PrivateRandomness(0, with_numpy=with_numpy):
        return not _complaint(_copied(env), action, num_players)


def watch_invalid_moves(state: Any, num_players: int, report: Callable[[str], None]) -> None:
    """Have every call of ``state.set_invalid_move`` reported first, with the environment's words."""
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


def _copied(env: Any) -> Any:
    memo: dict[int, Any] = {}
    # Texts of the past decide nothing, but copying them would cost more with every turn.
    state = getattr(env, "state", None)
    if isinstance(logs := getattr(state, "logs", None), list):
        memo[id(logs)] = []
    if isinstance(waiting := getattr(state, "observations", None), dict):
        memo[id(waiting)] = {seat: [] for seat in waiting}
    for history in _histories(env):
        memo[id(history)] = {}
    return copy.deepcopy(env, memo)


def _histories(env: Any) -> list[Any]:
    """Return what the wrappers around the environment keep of the observations."""
    found = []
    while "env" in vars(env):
        if "full_observations" in vars(env):
            found.append(vars(env)["full_observations"])
        env = vars(env)["env"]
    return found


def _complaint(env: Any, action: str, num_players: int) -> str:
    """Make the move; return why it is not legal, nothing if it is."""
    complaints: list[str] = []
    state = getattr(env, "state", None)
    if state is not None:
        vars(state).pop("set_invalid_move", None)  # it reports to the game that was copied
        watch_invalid_moves(state, num_players, complaints.append)
    try:
        done, info = env.step(action=action)
    except Exception as error:  # noqa: BLE001  (whatever the environment does wrong is no legal move)
        return f"{type(error).__name__}: {error}"
    if complaints:
        return complaints[0]
    if state is None:
        return "invalid move" if isinstance(info, dict) and info.get("invalid_move") else ""
    next_seat = getattr(state, "current_player_id", 0)
    if not done and next_seat not in range(num_players):
        return f"it would be the turn of seat {next_seat}"
    return ""
