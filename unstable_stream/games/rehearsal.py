"""Try an action on a copy of a game: would the environment call it legal?

The copy is thrown away, whatever happens to it. Nothing leaks into the game:

- The copy owns all it can change, except the texts it was shown and said so far, which it starts without.
- Its chance comes from a generator of its own, so neither the game's nor the process's generators advance.
- :func:`watch_state` binds methods to one state; the copy gets its own.

Copies are most of what a try costs. A position is therefore pickled once, when the first action is tried in
it, and unpickled for each: 1.2 to 14 times as fast as :func:`copy.deepcopy`, which copies
what cannot be pickled (`python -m benchmarks.move_tries`).
"""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any, Final

from unstable_stream.games.isolation import PrivateRandomness


class Rehearsal:
    """One position of one game, to try actions in; good until the game's next move."""

    def __init__(self, env: Any, *, num_players: int, with_numpy: bool):
        """Remember where the position is; nothing is copied before the first action is tried."""
        self._env = env
        self._num_players = num_players
        self._with_numpy = with_numpy
        self._copies: Copies | None = None

    def accepts(self, action: str) -> bool:
        """Return whether the environment would take ``action`` now without calling it invalid.

        An action at which the environment fails is not accepted either.
        """
        with PrivateRandomness(0, with_numpy=self._with_numpy):
            if self._copies is None:
                self._copies = Copies(self._env)
            return not _complaint(self._copies.make(), action, self._num_players)


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


class Copies:
    """Makes copies of an environment as it is now, each without the texts of the past."""

    def __init__(self, env: Any):
        """Pickle the environment, if it can be pickled."""
        self._env = env
        self._first: Any = None
        self._written: bytes | None = None
        written = io.BytesIO()
        try:
            _Pickler(written, _replaced(env)).dump(env)
            self._first = pickle.loads(written.getvalue())  # some fail only now
            self._written = written.getvalue()
        except Exception:  # noqa: BLE001  (classes of the environment decide what happens; deepcopy says it)
            self._written = None

    @property
    def pickled(self) -> bool:
        """Whether copies are made by unpickling."""
        return self._written is not None

    def make(self) -> Any:
        """Return a new copy. Raises whatever :func:`copy.deepcopy` raises if neither way works."""
        if self._written is None:
            return deep_copy(self._env)
        made, self._first = self._first, None
        return pickle.loads(self._written) if made is None else made


def deep_copy(env: Any) -> Any:
    """Return a copy of ``env`` without the texts of the past, by :func:`copy.deepcopy`."""
    memo: dict[int, Any] = {}
    for holder, attributes in _held(env):
        memo |= {id(vars(holder)[name]): empty for name, empty in attributes.items()}
    return copy.deepcopy(env, memo)


def _held(env: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Return what holds texts of the past, and what a copy has in place of each, by attribute.

    Such texts decide nothing, and copying them would cost more with every turn.
    """
    found: list[tuple[Any, dict[str, Any]]] = []
    state = getattr(env, "state", None)
    if state is not None:
        empty: dict[str, Any] = {}
        if isinstance(getattr(state, "logs", None), list):
            empty["logs"] = []
        if isinstance(waiting := getattr(state, "observations", None), dict):
            empty["observations"] = {seat: [] for seat in waiting}
        found.append((state, empty))
    while "env" in vars(env):  # the wrappers around the environment
        found.append((env, {"full_observations": {}} if "full_observations" in vars(env) else {}))
        env = vars(env)["env"]
    return found


_WATCHED: Final = ("set_invalid_move", "set_winner")
# Their `__deepcopy__` makes what pickling makes: arrays, wrappers of TextArena,
# members of an Enum, compiled patterns.
_COPIED_AS_IS: Final = frozenset({"numpy", "textarena", "enum", "re"})


def _replaced(env: Any) -> dict[int, dict[str, Any]]:
    """Return, by ``id``, the attributes to write for each object that are not those it has."""
    attributes = {id(holder): vars(holder) | empty for holder, empty in _held(env)}
    if (state := getattr(env, "state", None)) is not None:
        for name in _WATCHED:
            attributes[id(state)].pop(name, None)  # they are bound to the state that is copied
    return attributes


class _Pickler(pickle.Pickler):
    """Writes an environment down, with other attributes for some of its objects."""

    def __init__(self, file: io.BytesIO, attributes: dict[int, dict[str, Any]]):
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._attributes = attributes

    def reducer_override(self, thing: Any) -> Any:
        kind = type(thing)
        if id(thing) in self._attributes:
            # Filled without asking it for `__setstate__`: TextArena's wrappers ask what they wrap for
            # whatever they lack, and a new one wraps nothing yet, so it would ask itself forever.
            return _blank, (kind,), self._attributes[id(thing)], None, None, _fill
        own = getattr(kind, "__deepcopy__", None)
        if own and (getattr(own, "__module__", None) or kind.__module__).split(".")[0] not in _COPIED_AS_IS:
            raise pickle.PicklingError(f"{kind.__qualname__} says itself how to copy it")
        return NotImplemented


def _blank(kind: type[object]) -> object:
    return object.__new__(kind)


def _fill(thing: Any, attributes: dict[str, Any]) -> None:
    vars(thing).update(attributes)


def _complaint(env: Any, action: str, num_players: int) -> str:
    """Make the move; return why it is not legal, nothing if it is."""
    complaints: list[str] = []
    state = getattr(env, "state", None)
    if state is not None:
        for name in _WATCHED:
            vars(state).pop(name, None)  # it reports to the game that was copied
        watch_state(state, num_players, complaints.append)
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
