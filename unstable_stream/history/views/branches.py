"""The worth of the positions of a game: the games that were played on from there."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from unstable_stream.algorithms.intervals import interval_of_sum
from unstable_stream.archive.read import query
from unstable_stream.log.stores.archive_address import ArchiveAddress

_BRANCHES: Final = """
SELECT run_id, turn, tried, list((seat, player, rewards) ORDER BY seat)
FROM branches WHERE {column} = ? AND games > 1
GROUP BY run_id, parent_game_id, turn, tried, players ORDER BY turn, tried, run_id, players
"""
_LEAST_STAKE: Final = 1.0
"""Games that were all drawn may be so by chance: a reward may be as large as this, or as those that were."""


@dataclass(frozen=True, slots=True)
class SeatValue:
    """The value of a position for one seat, if the players of the branch go on from it."""

    seat: int
    player: str
    games: int
    value: float
    """The mean reward."""
    low: float
    """The beginning of its 95 % interval by Student's t."""
    high: float
    """The end of that interval."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Games of one run that were played on from one position."""

    run_id: str
    turn: int
    """The number of moves before the position."""
    tried: Sequence[str]
    """The moves that were tried there before the players went on."""
    values: Sequence[SeatValue]
    """By seat."""


@dataclass(frozen=True, slots=True)
class Course:
    """The values of the positions of a game, if the same players go on from each."""

    players: Sequence[str]
    """By seat."""
    positions: Sequence[Branch]
    """By turn, at least two; of several branches from one position that of the most games."""
    turned: tuple[Branch, Branch] | None
    """The neighbours whose values for seat 0 differ most; ``None``: all of the intervals overlap."""


def courses(branches: Sequence[Branch]) -> list[Course]:
    """Return how the value of a game's positions went on, for each set of players that did."""
    found: dict[tuple[str, ...], dict[int, Branch]] = {}
    for branch in sorted(branches, key=lambda each: (each.turn, each.values[0].games)):
        if not branch.tried:
            found.setdefault(tuple(value.player for value in branch.values), {})[branch.turn] = branch
    several = {players: list(by_turn.values()) for players, by_turn in found.items() if len(by_turn) > 1}
    return [Course(players, positions, _turned(positions)) for players, positions in several.items()]


def _turned(positions: Sequence[Branch]) -> tuple[Branch, Branch] | None:
    apart = [
        (abs(then.values[0].value - now.values[0].value), now.turn, (now, then))
        for now, then in pairwise(positions)
        if now.values[0].high < then.values[0].low or then.values[0].high < now.values[0].low
    ]
    return max(apart)[2] if apart else None


def branches_from(archive: ArchiveAddress, game_id: str) -> list[Branch]:
    """Return what was played on from a game, by turn and by the moves tried; a single game tells no value."""
    return _read(archive, "parent_game_id", game_id)


def branches_of(archive: ArchiveAddress, run_id: str) -> list[Branch]:
    """Return what a run played on from."""
    return _read(archive, "run_id", run_id)


def _read(archive: ArchiveAddress, column: str, value: str) -> list[Branch]:
    rows = query(archive, _BRANCHES.format(column=column), [value]).rows
    return [
        Branch(run, turn, json.loads(tried), [_value(*each) for each in seats])
        for run, turn, tried, seats in rows
    ]


def _value(seat: int, player: str, rewards: list[float]) -> SeatValue:
    return SeatValue(seat, player, len(rewards), *interval_of_sum([rewards], _LEAST_STAKE))
