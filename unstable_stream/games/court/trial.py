"""The trial: the games that all checks share, and the means to play others."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from unstable_stream.events.seeds import derive_seed
from unstable_stream.games.court.playing import MOST_MOVES, Mover, Play, TrialGame, random_legal
from unstable_stream.games.court.verdict import Finding, GameExample, Status

T = TypeVar("T")

Elsewhere: TypeAlias = Callable[[Sequence[GameExample]], list[Play]]
"""Plays games in another process."""

Check: TypeAlias = Callable[["Trial"], Iterator[Finding]]
"""Yields what it found, without its name. The first counts, if there is one: the others are not asked for."""


@dataclass(frozen=True)
class Declared:
    """The facts that an environment states of itself; ``None``: it states nothing."""

    max_turns: int | None = None
    reward_range: tuple[float, float] | None = None
    reward_sum: float | None = None
    perfect_information: bool | None = None


@dataclass(frozen=True)
class Reader:
    """A model and a template, as far as they read texts."""

    name: str
    context: int | None
    """Most tokens of a prompt; ``None``: unknown."""
    prompt: Callable[[str], str]
    """The template's wording of a text, without the control tokens that the text spells."""
    tokens: Callable[[str], int]
    """The number of tokens of a prompt."""
    spells_control: Callable[[str], bool]
    """Whether a text holds control tokens of the model."""


@dataclass
class Trial:
    """One environment before the court."""

    env_id: str
    num_players: int
    seed: int = 0
    games: int = 40
    seconds: float = 60.0
    """Time for all checks together; each plays at least a little."""
    elsewhere: Elsewhere | None = None
    reader: Reader | None = None
    """``None``: lengths in tokens are estimated."""
    clock: Callable[[], float] = time.monotonic
    plays: list[Play] = field(default_factory=list)
    """The games by random legal players, which most checks look at."""
    declared: Declared = Declared()
    core: Any = None
    """An environment object, within its wrappers; only to be looked at."""
    repeatable: bool = True
    """Whether the same seed gave the same game: otherwise nothing can be shown by playing again."""
    played: int = 0

    def prepare(self, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        """Play the games that the checks share."""
        self.mover = random_legal(self.env_id)
        self.core = self.game(0).env.core
        self.declared = declared_by(self.core)
        for number in self.within(0.3, range(self.games), least=4):
            self.plays.append(self.play(self.game_seed(number)))
            progress(number + 1, self.games)

    def game_seed(self, number: int, purpose: str = "game") -> int:
        """Return a seed that a text is not likely to hold by chance."""
        return derive_seed(self.seed, self.env_id, purpose, number) | 1 << 29

    def game(
        self, seed: int, moves: Sequence[str] = (), *, mover: Mover | None = None, **how: Any
    ) -> TrialGame:
        """Begin a game; ``how``: as for :class:`TrialGame`."""
        self.played += 1
        declared = self.declared.max_turns or 0
        how.setdefault("most", min(max(MOST_MOVES, 2 * declared), 10 * MOST_MOVES))
        return TrialGame(self.env_id, self.num_players, seed, mover=mover, moves=moves, **how)

    def play(self, seed: int, moves: Sequence[str] = (), **how: Any) -> Play:
        """Play a game to its end, by random legal players after the given moves."""
        return self.game(seed, moves, mover=how.pop("mover", self.mover), **how).play()

    def replay(self, play: Play, moves: Sequence[str] | None = None, **how: Any) -> Play:
        """Play a game's moves again, and no others."""
        how.setdefault("allowance", play.allowance)
        return self.game(play.seed, play.moves if moves is None else moves, **how).play()

    def game_at(self, play: Play, moves: int) -> TrialGame:
        """Return a game that has come to where another one was after some moves."""
        game = self.game(play.seed, play.moves[:moves], allowance=play.allowance)
        while game.advance():
            pass
        return game

    def within(self, share: float, items: Iterable[T], least: int = 2) -> Iterator[T]:
        """Yield items for a share of the time, but ``least`` of them: fewer if they take half of all time."""
        begin = self.clock()
        for number, item in enumerate(items):
            spent = self.clock() - begin
            if number and spent > self.seconds * (share if number >= least else 0.5):
                return
            yield item

    @property
    def shortest(self) -> list[Play]:
        """The games without an error, shortest first."""
        return sorted((play for play in self.plays if not play.failure), key=lambda play: len(play.moments))

    @property
    def lists_moves(self) -> bool:
        """Whether every text lists the legal moves."""
        moments = [moment for play in self.plays for moment in play.moments]
        return bool(moments) and all(moment.offered for moment in moments)


_DECLARED: Final = ("max_turns", "reward_range", "reward_sum", "perfect_information")


def declared_by(core: Any) -> Declared:
    """Return what an environment declares in attributes, or OpenSpiel of its game."""
    game: Any = getattr(core, "game", None)
    if hasattr(game, "min_utility") and hasattr(game, "get_type"):
        kind = game.get_type()
        return Declared(
            game.max_game_length(),
            (game.min_utility(), game.max_utility()),
            game.utility_sum(),
            kind.information.name == "PERFECT_INFORMATION",
        )
    turns, bounds, total, perfect = (getattr(core, name, None) for name in _DECLARED)
    if not isinstance(turns, int):
        turns = getattr(getattr(core, "state", None), "max_turns", None)
    return Declared(
        turns if isinstance(turns, int) else None,
        (float(bounds[0]), float(bounds[1])) if isinstance(bounds, Sequence) and len(bounds) == 2 else None,
        float(total) if isinstance(total, int | float) else None,
        perfect if isinstance(perfect, bool) else None,
    )


def example_of(play: Play, moves: int | None = None) -> GameExample:
    """Return a game, or its first moves, as an example."""
    return GameExample(play.seed, play.moves[:moves], play.allowance)


def answer(status: Status, says: str, play: Play | None = None, moves: int | None = None) -> Finding:
    """Return the answer of a check, shown by the first moves of a game."""
    return Finding("", status, says[:500], None if play is None else example_of(play, moves))
