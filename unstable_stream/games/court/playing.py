"""Play an environment in every way that a check needs, and record what happened."""

import copy
import random
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from unstable_stream.errors import EnvironmentUnavailableError, GameError
from unstable_stream.games.environments import Environment
from unstable_stream.games.isolation import PrivateRandomness, inside
from unstable_stream.games.opponents.legal_moves import listed_moves
from unstable_stream.games.opponents.scripted import scripted_names, scripted_player
from unstable_stream.games.play import turn_seed
from unstable_stream.games.players import TurnContext
from unstable_stream.games.rehearsal import watch_copy, watch_state

Mover: TypeAlias = Callable[[TurnContext], str]
"""Chooses the action of a turn."""

MOST_MOVES: Final = 1000
"""A game that is not over after so many is taken for endless, unless it declares to be longer."""
LONGEST_CALL_S: Final = 10.0
NONSENSE: Final = "[no such move]"
_GUESSES: Final = 60
_LONG_TEXT: Final = 4000
"""Characters of a text that is kept without what was told before."""
_FORM: Final = re.compile(r"\s[XN]\]|<|\b(?:amount|number)\b")
_WORDS: Final = re.compile(r"\b[a-zA-Z]\w{0,14}\b")
_BRACKETS: Final = re.compile(r"\[[^\[\]\n]{1,40}\]")


@dataclass(frozen=True)
class Moment:
    """One turn: what a seat was shown, what it did, and the answer."""

    seat: int
    shown: str
    """The text that the seat was shown, less what ``before`` had."""
    action: str
    valid: bool
    refusal: str
    """The reason for which the move was invalid."""
    info: dict[str, Any]
    before: "Moment | None" = None
    """An earlier turn with whose text this one's begins: a long game shows its whole past at every turn, and
    a thousand such texts are a gigabyte."""

    @property
    def text(self) -> str:
        """The text that the seat was shown."""
        parts, moment = [self.shown], self.before
        while moment is not None:
            parts.append(moment.shown)
            moment = moment.before
        return "".join(reversed(parts))

    @property
    def offered(self) -> list[str]:
        """The moves that the text lists; empty if it lists none."""
        return offered(self.text)


@dataclass(frozen=True)
class Play:
    """A game that was played."""

    seed: int
    moments: tuple[Moment, ...]
    ended: bool
    rewards: dict[int, float] | None = None
    given: object = None
    """The rewards as the environment gave them."""
    reason: str = ""
    invalid_seats: frozenset[int] = frozenset()
    failure: str = ""
    """The error that ended it."""
    allowance: int = 0

    @property
    def moves(self) -> tuple[str, ...]:
        """The actions in order."""
        return tuple(moment.action for moment in self.moments)

    @property
    def legal(self) -> bool:
        """Whether it came to its end by valid moves alone."""
        return self.ended and self.rewards is not None and all(moment.valid for moment in self.moments)

    def difference(self, other: "Play") -> tuple[int, str] | None:
        """Return how many moves it takes to see that two games of the same moves differ, and what differs."""
        for number, (here, there) in enumerate(zip(self.moments, other.moments, strict=False)):
            for name in ("seat", "text", "action", "valid", "refusal", "info"):
                one, two = getattr(here, name), getattr(there, name)
                if one != two:
                    moves = number if name in ("seat", "text", "action") else number + 1
                    return moves, f"its {name} at turn {number} {apart(one, two)}"
        if len(self.moments) != len(other.moments):
            least = min(len(self.moments), len(other.moments))
            return least, f"one is over after {least} moves, the other not {self.failure or other.failure}"
        for name in ("failure", "rewards", "reason"):
            one, two = getattr(self, name), getattr(other, name)
            if one != two:
                return len(self.moments), f"its {name} {apart(one, two)}"
        return None


def apart(one: object, two: object) -> str:
    """Word where two values differ."""
    here, there = str(one), str(two)
    begin = next((n for n, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), None)
    begin = max(0, (min(len(here), len(there)) if begin is None else begin) - 15)
    return f"is {here[begin : begin + 50]!r} in one and {there[begin : begin + 50]!r} in the other"


def offered(text: str) -> list[str]:
    """Return the moves that a text lists, each once; none if it lists forms of moves, such as ``[bet X]``."""
    try:
        moves = list(dict.fromkeys(listed_moves(text)))
    except GameError:
        return []
    return [] if any(map(_FORM.search, moves)) else moves


class Defendant(Environment):
    """An environment of which the court may do what no rollout does: reset it again, and copy it."""

    def again(self, seed: int) -> None:
        """Reset the same object for another game."""
        self._randomness = PrivateRandomness(seed, with_numpy=self._with_numpy)
        self.turn, self.done, self.given = 0, False, None
        for wrapper in self._wrappers:  # TextArena's never forget the texts of the game before
            if "full_observations" in vars(wrapper):
                vars(wrapper)["full_observations"] = {}
        with self._randomness:
            self._env.reset(num_players=self.num_players, seed=seed)
            self._state = getattr(self._env, "state", None)
            if self._state is not None and "set_invalid_move" not in vars(self._state):
                self._state.error_allowance = self._invalid_moves_allowed
                watch_state(self._state, self.num_players, self._note_invalid)
            self._observation = self._read_observation()

    def copied(self, generators: int | None = None) -> "Defendant":
        """Return a copy that plays on with this game's generators, or with some of its own."""
        twin = copy.copy(self)
        assert self._randomness is not None
        if generators is not None:
            twin._randomness = PrivateRandomness(generators, with_numpy=self._with_numpy)
        with self._randomness:
            twin._env = copy.deepcopy(self._env)
        twin._state = getattr(twin._env, "state", None)
        if twin._state is not None:
            watch_copy(twin._state, self.num_players, twin._note_invalid)
        return twin

    def look(self) -> str:
        """Return the text of the seat to move as the environment words it now."""
        assert self._randomness is not None
        with self._randomness:
            return self._read_observation().text

    @property
    def core(self) -> Any:
        """The environment within its wrappers."""
        return vars(self._wrappers[-1])["env"] if self._wrappers else self._env

    @property
    def _wrappers(self) -> list[Any]:
        found, inner = [], self._env
        while "env" in getattr(inner, "__dict__", {}):
            found.append(inner)
            inner = vars(inner)["env"]
        return found


class TrialGame:
    """One game that goes on move by move."""

    def __init__(
        self,
        env_id: str,
        num_players: int,
        seed: int,
        *,
        mover: Mover | None = None,
        moves: Sequence[str] = (),
        allowance: int = 0,
        generators: int | None = None,
        choices: int | None = None,
        most: int = MOST_MOVES,
    ):
        """Begin it: ``moves`` are made first, then those of ``mover``, or none without it.

        ``choices`` is the seed of the mover's choices, by default the game's.
        """
        self.seed, self.mover, self.script, self.most = seed, mover, list(moves), most
        self.choices = seed if choices is None else choices
        self.allowance = allowance
        self.moments: list[Moment] = []
        self.failure = ""
        self.env = Defendant(env_id, invalid_moves_allowed=allowance)
        self._turns = [0] * num_players
        self._told: dict[int, tuple[str, Moment]] = {}
        """The last text of each seat, whole, and its turn."""
        try:
            with limited():
                self.env.reset(num_players, seed, generators=generators)
        except EnvironmentUnavailableError as error:
            self.failure = f"it does not begin: {error}"

    def turn(self) -> TurnContext:
        """Return what the seat to move knows."""
        seen = self.env.observe()
        number = self._turns[seen.seat]
        return TurnContext(
            env_id=self.env.env_id,
            seat=seen.seat,
            num_players=self.env.num_players,
            turn_index=number,
            game_turn=len(self.moments),
            seed=turn_seed(self.choices, seen.seat, number),
            observation=seen.text,
            accepts=self.accepts,
            plain=seen.plain,
        )

    def accepts(self, action: str) -> bool:
        """Return whether the environment takes an action, tried on a copy; ``True`` if there is no copy."""
        try:
            with limited():
                return self.env.accepts(action)
        except GameError:
            return True  # the check of copies tells of it

    def advance(self) -> bool:
        """Make the next move; return whether there was one."""
        number = len(self.moments)
        if self.failure or self.env.done or number >= self.most:
            return False
        if number >= len(self.script) and self.mover is None:
            return False
        try:
            turn = self.turn()
            action = self.script[number] if number < len(self.script) else self.mover(turn)  # type: ignore[misc]
            with limited():
                result = self.env.step(action)
        except GameError as error:
            self.failure = str(error)
            return False
        said = result.invalid_reason or ""
        self._turns[turn.seat] += 1
        text, (told, before) = turn.observation, self._told.get(turn.seat, ("", None))
        shown = text[len(told) :] if len(text) > _LONG_TEXT and text.startswith(told) else text
        moment = Moment(
            turn.seat, shown, action, result.valid, said, result.info, None if shown is text else before
        )
        self._told[turn.seat] = text, moment
        self.moments.append(moment)
        return True

    def play(self) -> Play:
        """Play to the end, or to the last given move, and close it."""
        while self.advance():
            pass
        return self.close()

    def close(self) -> Play:
        """Return what was played."""
        play = Play(
            self.seed,
            tuple(self.moments),
            self.env.done and not self.failure,
            failure=self.failure,
            allowance=self.allowance,
        )
        if not play.ended:
            return play
        try:
            with limited():
                result = self.env.close()
        except GameError as error:
            return replace(play, given=self.env.given, failure=str(error))
        return replace(
            play,
            rewards=result.rewards,
            given=self.env.given,
            reason=result.reason,
            invalid_seats=result.invalid_seats,
        )


def random_legal(env_id: str) -> Mover:
    """Return the player who makes any legal move; where none is known, one who tries what the text shows."""
    player = scripted_player("random-legal", env_id) if "random-legal" in scripted_names(env_id) else None

    def move(turn: TurnContext) -> str:
        if player is not None:
            try:
                player.move(turn).send(None)
            except StopIteration as decided:
                return str(decided.value.action)
            except GameError:
                pass  # its text does not list its moves after all
        moves = offered(turn.observation) or _guesses(turn)
        return random.Random(turn.seed).choice(moves)

    return move


def _guesses(turn: TurnContext) -> list[str]:
    """Return an action that the environment takes: one that its text shows in brackets, or a word of it."""
    chance = random.Random(turn.seed)
    shown = list(dict.fromkeys(_BRACKETS.findall(turn.observation)))[-_GUESSES:]
    words = [f"[{word}]" for word, _ in Counter(_WORDS.findall(turn.observation)).most_common(_GUESSES)]
    others = [*(f"[{number}]" for number in range(10)), *words]
    tried = [*chance.sample(shown, len(shown)), *chance.sample(others, len(others))]
    assert turn.accepts is not None
    return [next(filter(turn.accepts, tried), tried[0])]


@contextmanager
def limited() -> Iterator[None]:
    """Raise :class:`TimeoutError` in a call that does not return; only the main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(*_: object) -> None:
        if not inside():  # between two calls, where a lock may be held
            signal.setitimer(signal.ITIMER_REAL, LONGEST_CALL_S)
            return
        raise TimeoutError(f"no answer within {LONGEST_CALL_S:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_CALL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
