"""Hold games and ratings as columns of numbers: the input and the output of the rating fold."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Names:
    """The names behind the integers in :class:`GameColumns`. Models are numbered by first appearance."""

    envs: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)
    """Of each model: the update that made it; ``None`` for a fixed opponent."""
    parents: list[str | None] = field(default_factory=list)
    """Of each model: the uid of the checkpoint it was trained from."""
    env_of: dict[str, int] = field(default_factory=dict)
    model_of: dict[str, int] = field(default_factory=dict)

    def env(self, env_id: str) -> int:
        """Return the number of an environment, a new one if need be."""
        number = self.env_of.setdefault(env_id, len(self.envs))
        if number == len(self.envs):
            self.envs.append(env_id)
        return number

    def model(self, uid: str, version: int | None, parent: str | None) -> int:
        """Return the number of a model, a new one if need be; the first to know its version tells it."""
        number = self.model_of.setdefault(uid, len(self.models))
        if number == len(self.models):
            self.models.append(uid)
            self.versions.append(version)
            self.parents.append(parent)
        elif version is not None and self.versions[number] is None:
            self.versions[number], self.parents[number] = version, parent
        return number


@dataclass(frozen=True, slots=True)
class GameColumns:
    """Consecutive games. ``starts`` has one entry more than there are games."""

    envs: Sequence[int]
    """Of each game."""
    starts: Sequence[int]
    """Of each game: its first place in the columns of seats; then the number of seats of all games."""
    models: Sequence[int]
    """Of each seat, the seats of a game together."""
    ranks: Sequence[int]
    """Of each seat; lower is better, and equal ranks draw."""
    teams: Sequence[int] | None = None
    """Of each seat, its team, -1: it plays for itself; ``None``: all do."""


class RatingHistory:
    """Every rating given in a stretch of games, in order; 48 bytes each."""

    def __init__(self) -> None:
        self.numbers = array("d")
        """For each rating the game's place in its :class:`GameColumns`, the scope (number of the environment,
        -1 for all), the model's number, mu, sigma, and its rated games so far, this one included. All
        integers here are exact as floats."""

    def rows(self) -> list[tuple[float, ...]]:
        """Return the six numbers of each rating: cheaper for a single game."""
        numbers = iter(self.numbers)
        return list(zip(*[numbers] * 6, strict=True))

    def columns(self) -> tuple[NDArray[np.float64], ...]:
        """Return the same six numbers as columns, ``float64[ratings]`` each."""
        return tuple(np.frombuffer(self.numbers, dtype=np.float64).reshape(-1, 6).T)
