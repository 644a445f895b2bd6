"""Run TextArena environments: fresh objects, private randomness, typed results.

An environment of the user's own goes through it too: any class with the interface of TextArena's ``Env``. A
``state`` as TextArena has is watched if it is there; without one, ``step`` says in its info that a move was
``invalid_move``, and ``close`` in its game info whose invalid move ended the game. The games of OpenSpiel are
such environments (:mod:`~unstable_stream.games.openspiel`).

Facts about TextArena 0.7.4 that this module hides:

- Environments use the global generators (:mod:`~unstable_stream.games.isolation`), some shuffle their deck in
  place: an object is used for one game only.
- ``state.error_allowance`` says how many invalid moves in a row a player may make; environments set it in
  ``reset`` (mostly 1), so it is set afterwards.
- Whether a move was invalid is not returned by ``step``; every environment reports it by calling
  ``state.set_invalid_move``, which is watched.
- Tak names an argument of ``set_winner`` as it is not called and so fails at every winning move; it is taken.
- Stepping after the end is accepted without a word; here it is an error.
- Modules are imported when an environment is first made, some have invalid escape sequences (a
  ``DeprecationWarning`` when they are compiled), and importing TextArena changes the global warning filters.
"""

import importlib
import importlib.util
import inspect
import math
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from unstable_stream.errors import ConfigError, EnvironmentUnavailableError, GameError, did_you_mean
from unstable_stream.events import storable_text, storable_values
from unstable_stream.extensions import KINDS, Reference, build, entry_points_of, load
from unstable_stream.extensions.build import refuse
from unstable_stream.extensions.deferred_imports import deferring
from unstable_stream.games.disguises.naming import PREFIX, plain_id
from unstable_stream.games.isolation import PrivateRandomness
from unstable_stream.games.players import PlainTurn
from unstable_stream.games.rehearsal import watch_state, would_accept


@dataclass(frozen=True, slots=True)
class Observation:
    """The text that the seat to move is shown."""

    seat: int
    text: str
    plain: PlainTurn | None = None
    """The same without its disguise; ``None`` for a game without one."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one action."""

    done: bool
    valid: bool
    """``False`` if the environment called the move invalid, whether or not that ended the game."""
    invalid_reason: str | None = None
    """The environment's words; the board-style ``-train`` observations do not repeat them."""
    info: dict[str, Any] = field(default_factory=dict)
    """The environment's info for this step, as :func:`~unstable_stream.events.storable_values` returns it."""


@dataclass(frozen=True, slots=True)
class EnvironmentResult:
    """The state of a game when it is closed."""

    rewards: dict[int, float] | None
    """Final reward of every seat, 0.0 for one the environment left out; ``None`` if unfinished."""
    reason: str
    """The environment's words about the end; may be empty."""
    roles: dict[int, str]
    """Name of each seat that has one (``White``, ``Mafia``); ``Player 0`` is no name."""
    invalid_seats: frozenset[int]
    """Seats that used up their invalid moves."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The reason and the remedy, for a person."""

    kind: str
    """``nltk-data``, ``python-3.12``, ``missing-files``, ``missing-package``, ``openrouter-key``,
    ``player-count``, ``broken-wrapper`` or ``error``."""
    reason: str
    remedy: str


class Environment:
    """One game of one environment."""

    def __init__(self, env_id: str, *, invalid_moves_allowed: int = 0, label: str = ""):
        """Remember what to play; :meth:`reset` makes the TextArena object.

        ``invalid_moves_allowed`` is per player and in a row; 0: the first invalid move loses.
        ``label`` names the game in error messages.
        """
        self.env_id = env_id
        self.turn = 0
        """Actions taken so far."""
        self.done = False
        self._invalid_moves_allowed = invalid_moves_allowed
        self._label = f"{label}: {env_id}" if label else env_id
        """Begins every message about this game."""
        self.num_players = 0
        """Set by :meth:`reset`."""
        self.given: Any = None
        """The rewards as the environment gave them to :meth:`close`, whatever they are."""
        self._env: Any = None
        self._state: Any = None
        self._randomness: PrivateRandomness | None = None
        self._observation: Observation | None = None
        self._invalid_reason: str | None = None

    def reset(self, num_players: int, seed: int, *, generators: int | None = None) -> None:
        """Begin the game. Once only: an environment object is never used for a second game.

        ``generators`` seeds Python's and numpy's generators otherwise than with ``seed``.

        Raises:
            GameError: this object has been reset before.
            EnvironmentUnavailableError: unknown environment or player count, or it cannot run here.
        """
        if self._env is not None:
            raise GameError(f"{self._label}: already used for a game; make a new Environment for each")
        named = plain_id(self.env_id)
        own = _own_reference(named)
        entry_point = "" if own else _spec(named).entry_point
        self.num_players = num_players
        try:
            if own is not None:
                load(_KIND, own, "env_id")  # imported outside: it may bind the functions of `random`
            else:
                _prepare_module(entry_point)
            self._with_numpy = own is not None or _uses_numpy(entry_point)
            own_numbers = seed if generators is None else generators
            self._randomness = PrivateRandomness(own_numbers, with_numpy=self._with_numpy)
            with self._randomness:
                self._env = make_environment(self.env_id)
                self._env.reset(num_players=num_players, seed=seed)
                self._state = getattr(self._env, "state", None)
                if self._state is not None:
                    self._state.error_allowance = self._invalid_moves_allowed
                    watch_state(self._state, num_players, self._note_invalid)
                self._observation = self._read_observation()
        except ConfigError:
            raise  # an extension that cannot be loaded or has not the interface; it names the key
        except Exception as error:
            found = diagnose(self.env_id, error)
            raise _unavailable(num_players, found, self._label) from error

    def observe(self) -> Observation:
        """Return whose turn it is and what that seat sees; the same until the next :meth:`step`."""
        if self._observation is None:
            raise GameError(f"{self._label}: nothing to observe, the game has not begun or is over")
        return self._observation

    def step(self, action: str) -> StepResult:
        """Make a move for the seat that :meth:`observe` names.

        Raises:
            GameError: the game is over, has not begun, or the environment failed.
        """
        if self._observation is None or self._randomness is None:
            raise GameError(f"{self._label}: no move is possible, the game has not begun or is over")
        self._invalid_reason = None
        try:
            with self._randomness:
                done, info = self._env.step(action=action)
                # The next observation is read at once: one exchange of generators per move, not two.
                self._observation = None if done else self._read_observation()
            self.done = bool(done)
            reason = self._invalid_reason
            if self._state is None and isinstance(info, Mapping) and info.get("invalid_move"):
                reason = str(info.get("reason") or "invalid move")
            result = StepResult(self.done, reason is None, reason, storable_values(info))
        except Exception as error:
            raise GameError(
                f"{self._label}: failed at turn {self.turn} on action {action[:200]!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
        self.turn += 1
        return result

    @property
    def teams(self) -> tuple[tuple[int | str, ...], ...]:
        """The teams that the environment declares in its attribute ``teams``: seats, or names of roles."""
        return tuple(tuple(group) for group in getattr(self._env, "teams", None) or ())

    def accepts(self, action: str) -> bool:
        """Return whether :meth:`step` would call ``action`` valid now; tried on a copy of the game.

        Raises:
            GameError: the game is over or has not begun, or the environment cannot be copied.
        """
        if self._observation is None:
            raise GameError(f"{self._label}: no move is possible, the game has not begun or is over")
        try:
            return would_accept(self._env, action, self.num_players, with_numpy=self._with_numpy)
        except Exception as error:
            raise GameError(
                f"{self._label}: cannot try {action[:200]!r} at turn {self.turn} on a copy: "
                f"{type(error).__name__}: {error}"
            ) from error

    def close(self) -> EnvironmentResult:
        """End the game, finished or not, and return the result."""
        if self._env is None or self._randomness is None:
            raise GameError(f"{self._label}: closed before it was reset")
        self._observation = None
        seats = range(self.num_players)
        try:
            with self._randomness:
                given, game_info = self._env.close()
            self.given, rewards = given, None
            if self.done and given is not None:
                rewards = {seat: _reward(given.get(seat, 0.0), seat) for seat in seats}
            facts = [game_info.get(seat, {}) for seat in seats]
            reasons = dict.fromkeys(str(fact["reason"]) for fact in facts if fact.get("reason"))
            return EnvironmentResult(
                rewards=rewards,
                reason=storable_text("; ".join(reasons)),
                roles=_roles(getattr(self._state, "role_mapping", {}), facts),
                invalid_seats=frozenset(seat for seat in seats if facts[seat].get("invalid_move")),
            )
        except Exception as error:
            raise GameError(f"{self._label}: close failed: {type(error).__name__}: {error}") from error

    def _read_observation(self) -> Observation:
        seat, observed = self._env.get_observation()
        if not 0 <= int(seat) < self.num_players:
            raise ValueError(f"it is the turn of seat {seat}, but there are {self.num_players} players")
        if isinstance(observed, str):
            plain = self._env.plain_turn() if self.env_id.startswith(PREFIX) else None
            return Observation(int(seat), storable_text(observed), plain)
        # A raw environment gives the new messages only, as (sender, text, kind).
        names: Mapping[int, str] = getattr(self._state, "role_mapping", {})
        lines = [f"[{names.get(sender, f'Player {sender}')}] {text}" for sender, text, _ in observed]
        return Observation(int(seat), storable_text("\n".join(lines)))

    def _note_invalid(self, reason: str) -> None:
        self._invalid_reason = reason


def list_environments() -> list[str]:
    """Return the ids of all training variants (``…-train``), sorted, whether or not they can run here."""
    return sorted(env_id for env_id in _registry() if env_id.endswith("-train"))


def check_environment(env_id: str, num_players: int) -> None:
    """Make sure a game of ``env_id`` can begin here, by beginning one and trying a move, sensible or not.

    A positive answer is remembered. Most take milliseconds; Sokoban searches for a solvable level and takes
    seconds.

    Raises:
        EnvironmentUnavailableError: names environment, reason and remedy.
    """
    if (env_id, num_players) in _known_good:
        return
    environment = Environment(env_id, invalid_moves_allowed=1)
    environment.reset(num_players, seed=0)
    try:
        environment.step("[0]")
    except GameError as error:
        raise _unavailable(num_players, diagnose(env_id, error), env_id) from error
    _known_good.add((env_id, num_players))


def check_known(env_id: str) -> None:
    """Make sure that there is such an environment, or one of the user's own is named; it is not loaded.

    Raises:
        EnvironmentUnavailableError: there is none; names close ones.
    """
    if _own_reference(env_id) is None:
        _spec(env_id)


def is_own_environment(env_id: str) -> bool:
    """Tell whether the id names an environment of the user's own, rather than one of TextArena's."""
    return _own_reference(env_id) is not None


def entry_point_of(env_id: str) -> str | None:
    """Return ``module:Class`` of one of TextArena's environments, prepared; ``None`` for a user's own.

    Raises:
        EnvironmentUnavailableError: no such environment, or its module cannot be imported here.
    """
    if _own_reference(env_id) is not None:
        return None
    entry_point: str = _spec(env_id).entry_point
    try:
        _prepare_module(entry_point)
    except Exception as error:
        raise _unavailable(2, diagnose(env_id, error), env_id) from error
    return entry_point


def environment_status(env_id: str, num_players: int) -> Diagnosis | None:
    """Return why ``env_id`` cannot run here, or ``None`` if it can; for lists of environments."""
    try:
        check_environment(env_id, num_players)
    except EnvironmentUnavailableError as error:
        if error.__cause__ is None:
            return Diagnosis("unknown", str(error), "")
        return diagnose(env_id, error.__cause__)
    return None


def probe(env_id: str) -> tuple[int | None, Diagnosis | None]:
    """Return the number of players ``env_id`` can be played with here, or why it cannot."""
    found: Diagnosis | None = None
    for num_players in _PLAYER_COUNTS:
        found = environment_status(env_id, num_players)
        if found is None:
            return num_players, None
        if found.kind != "player-count":
            return None, found
    return None, found


def diagnose(env_id: str, error: BaseException) -> Diagnosis:
    """Explain the exception that making, resetting or first observing an environment raised."""
    text = storable_text(str(error)).strip()
    if isinstance(error, SyntaxError):
        return Diagnosis(
            "python-3.12",
            f"its source uses syntax that Python {sys.version_info.major}.{sys.version_info.minor} does not "
            f"accept ({error.msg})",
            "run on Python 3.12, or choose another environment",
        )
    if isinstance(error, LookupError) and "nltk" in text.lower():
        found = re.search(r"nltk\.download\('([^']+)'\)", text)
        resource = found.group(1) if found else "all"
        return Diagnosis(
            "nltk-data",
            f"it needs the nltk resource {resource!r}, which is not on this machine",
            f"run: python -m nltk.downloader {resource}",
        )
    if "OPENROUTER_API_KEY" in text:
        return Diagnosis(
            "openrouter-key",
            "it asks a language model on OpenRouter to judge or to answer",
            "set OPENROUTER_API_KEY (the games are then neither offline nor reproducible)",
        )
    if isinstance(error, FileNotFoundError):
        return Diagnosis(
            "missing-files",
            f"TextArena's package lacks a data file: {error.filename or text}",
            "install TextArena from its source repository, or choose another environment",
        )
    if isinstance(error, ImportError):
        return _diagnose_import(text)
    if isinstance(error, AssertionError) and "player" in text.lower():
        return Diagnosis("player-count", text, "change the number of players")
    if "Missing required observation types" in text:
        return Diagnosis(
            "broken-wrapper",
            "its observation wrapper expects a board that the environment never sends",
            f"use {env_id.removesuffix('-train')!r}, which shows all messages",
        )
    return Diagnosis("error", f"{type(error).__name__}: {text[:300]}", "choose another environment")


def _diagnose_import(text: str) -> Diagnosis:
    missing = re.search(r"No module named '([^']+)'", text)
    name = missing.group(1) if missing else text
    if name.startswith("textarena"):
        return Diagnosis(
            "missing-files",
            f"TextArena registers it but its package lacks the module {name}",
            "install TextArena from its source repository, or choose another environment",
        )
    return Diagnosis("missing-package", f"it needs the package {name!r}", f"run: pip install {name}")


# Two first: most are for two; then the smallest number an environment accepts.
_PLAYER_COUNTS = (2, 1, 3, 4, 5, 6)
_known_good: set[tuple[str, int]] = set()
_KIND: Final = KINDS["environment"]
_METHODS: Final = ("reset", "get_observation", "step", "close")


def _unavailable(num_players: int, found: Diagnosis, label: str) -> EnvironmentUnavailableError:
    return EnvironmentUnavailableError(
        f"{label} cannot run here with {num_players} player(s): {found.reason}. Remedy: {found.remedy}."
    )


@lru_cache(maxsize=1)
def _textarena() -> ModuleType:
    if importlib.util.find_spec("textarena") is None:
        raise EnvironmentUnavailableError(
            "TextArena is not installed; it plays the games. Run: pip install 'unstable_stream[train]'"
        )
    # It sets a global filter for urllib3's warnings: leaving the context undoes that. And it imports nltk,
    # which takes longer than all the rest of it; the games of words, which alone use it, do so again.
    with warnings.catch_warnings(), deferring({"nltk": (), "nltk.corpus": ("words",)}):
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", SyntaxWarning)
        return importlib.import_module("textarena")


@cache
def _registry() -> dict[str, Any]:
    _textarena()
    registry: dict[str, Any] = importlib.import_module("textarena.envs.registration").ENV_REGISTRY
    return registry


@cache
def _uses_numpy(entry_point: str) -> bool:
    """Return whether a module beside the environment mentions numpy.

    To isolate its generator as well halves the pace of short games.
    """
    module = importlib.import_module(entry_point.partition(":")[0])
    folder = Path(inspect.getfile(module)).parent
    return any("numpy" in path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py")))


def _own_reference(env_id: str) -> Reference | None:
    """Return the reference to an environment of the user's own, ``None`` for one of TextArena's."""
    reference = Reference.parse(env_id, "env_id")
    if reference.names_code:
        return reference
    known = env_id in _registry() or reference.target not in entry_points_of(_KIND)
    return None if known else reference


def make_environment(env_id: str) -> Any:
    """Return a new object of an environment, with TextArena's interface, for one game."""
    own = _own_reference(env_id)
    return _own_environment(own) if own else _textarena().make(env_id)


def _own_environment(reference: Reference) -> Any:
    made = build(_KIND, reference.spec, "env_id", calls_functions=True)
    missing = [name for name in _METHODS if not callable(getattr(made, name, None))]
    if missing:
        raise refuse(_KIND, reference, "env_id", f"has no {', '.join(missing)}")
    try:
        inspect.signature(made.reset).bind(num_players=2, seed=0)
        inspect.signature(made.step).bind(action="[0]")
    except TypeError as error:
        raise refuse(_KIND, reference, "env_id", f"cannot be called so: {error}") from error
    return made


def _spec(env_id: str) -> Any:
    registry = _registry()
    spec = registry.get(env_id)
    if spec is None:
        hint = did_you_mean(env_id, registry, "docs/reference/environments.md lists them")
        raise EnvironmentUnavailableError(f"unknown environment {env_id!r}; {hint}")
    return spec


@cache
def _prepare_module(entry_point: str) -> None:
    """Import an environment's module, ignoring only what its compilation warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", SyntaxWarning)
        importlib.import_module(entry_point.partition(":")[0])


def _roles(role_mapping: Mapping[int, str], facts: list[dict[str, Any]]) -> dict[int, str]:
    roles = {}
    for seat, fact in enumerate(facts):
        # Secret roles are in the game's info; the mapping has the names everyone sees.
        for name in (fact.get("role"), role_mapping.get(seat)):
            if name and name not in {"Player", f"Player {seat}"}:
                roles[seat] = storable_text(str(name))
                break
    return roles


def _reward(given: Any, seat: int) -> float:
    reward = float(given)
    if not math.isfinite(reward):
        raise ValueError(f"the reward of seat {seat} is {reward}; expected a finite number")
    return reward
