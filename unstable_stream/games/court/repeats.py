"""Does a game depend on its seed and moves alone, or on other games, the clock, the process, the past?"""

import inspect
import itertools
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import msgspec

from unstable_stream.events import storable_values
from unstable_stream.games.court.playing import Play, TrialGame, apart
from unstable_stream.games.court.trial import Trial, answer, example_of
from unstable_stream.games.court.verdict import Finding, Status

_SAMPLE: Final = 6
_OTHER_DAY_S: Final = 1_000_003
_DRAWS: Final = re.compile(
    r"\b(?:random|rng|_?rand)\.(?!seed\b|Random\b)\w+\(|\.(?:shuffle|choice|sample|randint)\("
)


def _differs(status: Status, says: str, play: Play, other: Play) -> Iterator[Finding]:
    """Yield an answer if two games of the same moves differ."""
    if found := play.difference(other):
        yield answer(status, f"{says}: {found[1]}", play, found[0])


def plays_on(trial: Trial) -> Iterator[Finding]:
    """Every game comes to its end without an error."""
    if failures := [play for play in trial.plays if play.failure]:
        play = min(failures, key=lambda play: len(play.moments))
        many = f"{len(failures)} of {len(trial.plays)} games"
        yield answer("failed", f"{many} end by an error: {play.failure}", play)
    yield answer("passed", f"{len(trial.plays)} games by random legal players without an error")


def same_seed(trial: Trial) -> Iterator[Finding]:
    """The same seed and moves give the same game, at once and on another day."""
    for day, when in ((nullcontext, ""), (_other_day, " when the clock shows another day")):
        for play in trial.within(0.04, trial.shortest[:3] + trial.plays[:_SAMPLE]):
            with day():
                again = trial.replay(play)
            for found in _differs("failed", f"the same seed gives another game{when}", play, again):
                trial.repeatable = False
                yield found
    yield answer("passed", "games that were played again came out alike, also on another day")


def late(trial: Trial) -> Iterator[Finding]:
    """A game of the beginning comes out alike after all others."""
    for play in trial.plays[:2]:
        yield from _differs("failed", "played again later, the game is another", play, trial.replay(play))


def other_process(trial: Trial) -> Iterator[Finding]:
    """Another process plays the same game."""
    if trial.elsewhere is None:
        yield answer("not judged", "this object is of this process alone")
        return
    sample = [play for play in trial.shortest[:2] + trial.plays[:4] if not play.failure]
    there = trial.elsewhere([example_of(play) for play in sample])
    for play, other in zip(sample, there, strict=True):
        yield from _differs("failed", "another process plays another game", portable(play), other)
    yield answer("passed", f"{len(sample)} games came out alike in another process")


def portable(play: Play) -> Play:
    """Return a game as it is after a journey as JSON."""
    moments = tuple(
        replace(moment, info=storable_values(moment.info), shown=moment.text, before=None)
        for moment in play.moments
    )
    sent = msgspec.json.encode(replace(play, given=None, moments=moments))
    return msgspec.json.decode(sent, type=Play)


def own_seed(trial: Trial) -> Iterator[Finding]:
    """The seed alone decides what chance decides, whatever the process-wide generators have drawn."""
    says = (
        "its seed does not decide: it draws from the generators of the process and does not seed them. A run "
        "gives each game generators of its own, other programs do not"
    )
    for play in trial.within(0.03, trial.shortest[:2] + trial.plays[:_SAMPLE]):
        yield from _differs("warned", says, play, trial.replay(play, generators=play.seed + 1))
    starts = {(play.moments[0].seat, play.moments[0].text) for play in trial.plays if play.moments}
    if len(starts) == 1 and _draws(trial.core) and _one_game(trial):
        says = f"its source draws random numbers, and yet {len(trial.plays)} seeds give one and the same game"
        yield answer("failed", says, trial.plays[0], 0)
    yield answer("passed", "the state of the process-wide generators changes nothing")


def _draws(core: Any) -> bool:
    try:
        return bool(_DRAWS.search(inspect.getsource(type(core))))
    except (OSError, TypeError):
        return False


def _one_game(trial: Trial) -> bool:
    """Tell whether the moves of each game give the same game under the seed of another."""
    pairs = [pair for pair in zip(trial.plays[:_SAMPLE], trial.plays[1:], strict=False) if pair[0].legal]
    again = [replace(trial.game(other.seed, play.moves).play(), seed=play.seed) for play, other in pairs]
    return bool(pairs) and not any(play.difference(it) for (play, _), it in zip(pairs, again, strict=True))


def interleaved(trial: Trial) -> Iterator[Finding]:
    """A game comes out alike while another one is played."""
    sound = [play for play in trial.plays if not play.failure]
    for pair in trial.within(0.04, list(pairwise(sound))[:_SAMPLE]):
        games = [trial.game(play.seed, play.moves) for play in pair]
        while sum(game.advance() for game in games):
            pass
        for play, other, game in zip(pair, pair[::-1], games, strict=True):
            says = f"a game is another when that of seed {other.seed} is played in turn with it"
            yield from _differs("failed", says, play, game.close())
    yield answer("passed", "games played in turn came out as alone")


def reset_again(trial: Trial) -> Iterator[Finding]:
    """A game of an object that has played before is the game of a new one."""
    sound = [play for play in trial.plays if not play.failure]
    for number, (before, play) in enumerate(trial.within(0.04, list(pairwise(sound))[:_SAMPLE])):
        stop = len(before.moments) // (1 + number % 2)
        used, game = trial.game(before.seed, before.moves[:stop]), trial.game(play.seed, play.moves)
        used.play()
        try:
            used.env.again(play.seed)
        except Exception as error:  # noqa: BLE001  (whatever the environment does)
            says = f"an object that has played cannot be reset: {type(error).__name__}: {error}"
            yield answer("warned", says, before, stop)
            return
        game.env = used.env
        says = (
            f"reset leaves behind what the game of seed {before.seed} did in its {stop} moves (a run makes "
        )
        says += "an object for each game, other programs may not)"
        yield from _differs("warned", says, play, game.play())
    yield answer("passed", "an object that has played before plays as a new one")


def copies(trial: Trial) -> Iterator[Finding]:
    """A deep copy plays on as the game would, and the game does not notice."""
    for number, play in enumerate(trial.within(0.06, trial.shortest[:2] + trial.plays[:_SAMPLE])):
        middle = min(number, len(play.moments)) if number < 3 else len(play.moments) // 2
        if play.failure or middle >= len(play.moments):
            continue
        try:
            yield from _copy_differs(trial, play, middle)
        except Exception as error:  # noqa: BLE001  (whatever the environment does)
            says = f"it cannot be copied: {type(error).__name__}: {error}; legal moves cannot be tried"
            yield answer("warned", says, play, middle)
            return
    yield answer("passed", "a copy plays on as the game does, and changes nothing in it")


def _copy_differs(trial: Trial, play: Play, middle: int) -> Iterator[Finding]:
    def begun() -> TrialGame:
        game = trial.game_at(play, middle)
        game.script = list(play.moves)
        return game

    game = begun()
    game.env = game.env.copied()
    says = f"copied after {middle} moves"
    yield from _differs("failed", f"the copy plays another game, {says}", play, game.play())
    game, twin = begun(), begun()
    twin.env, twin.script = game.env.copied(generators=1), list(play.moves[:middle])
    twin.mover, twin.choices = trial.mover, play.seed + 1
    twin.play()  # what it does here must not reach the game
    yield from _differs("failed", f"the game notices what its copy does, {says}", play, game.play())


def looks(trial: Trial) -> Iterator[Finding]:
    """A seat that is shown its text twice is shown the same, and nothing else has changed."""
    for play in trial.within(0.03, trial.shortest[:2] + trial.plays[:_SAMPLE]):
        game = trial.game(play.seed, play.moves, allowance=play.allowance)
        while not (game.failure or game.env.done or len(game.moments) == len(play.moments)):
            text, again = game.env.observe().text, game.env.look()
            if again.strip() and again != text:  # some show only what is new, which is nothing
                says = f"a seat that looks twice is shown something else: it {apart(text, again)}"
                yield answer("warned", says, play, len(game.moments))
            game.advance()
        yield from _differs("warned", "it is another game if a seat looks twice", play, game.close())
    yield answer("passed", "texts that are asked for twice are the same, and change nothing")


@contextmanager
def _other_day() -> Iterator[None]:
    """Have the clocks of Python's module ``time`` show another day, an hour later with each look."""
    seconds = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter")}
    nanoseconds = {f"{name}_ns": getattr(time, f"{name}_ns") for name in seconds}
    for clocks, unit in ((seconds, 1), (nanoseconds, 10**9)):
        for name, clock in clocks.items():
            setattr(time, name, _shifted(clock, _OTHER_DAY_S * unit))
    try:
        yield
    finally:
        for name, clock in {**seconds, **nanoseconds}.items():
            setattr(time, name, clock)


def _shifted(clock: Callable[[], Any], by: int) -> Callable[[], Any]:
    looks = itertools.count()
    return lambda: clock() + by + next(looks) * by // 300
