"""Strengths from the results of all pairs: the model of Bradley and Terry (Biometrika 39, 1952).

A player of log-strength ``a`` beats one of ``b`` with probability ``1 / (1 + exp(b - a))``. The strengths
that make the results most likely do not depend on the order of the games, unlike Elo's or TrueSkill's. See
Hunter, "MM algorithms for generalized Bradley-Terry models", Annals of Statistics 32, 2004, for ways to find
them.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from unstable_stream.model_pool.skill import cdf

ELO: Final = 400 / math.log(10)
"""Elo points of one unit of log-strength: 400 points ahead, ten wins are expected for each loss."""

_PRIOR: Final = 1.0
"""As if each player had drawn so many games with one of strength 0. So a player who won or lost all games has
a finite strength, and players who never met can be compared."""
_Z: Final = 1.959963984540054
_MOST_STEPS: Final = 1000
_Matrix = npt.NDArray[np.float64]


class Strength(NamedTuple):
    """One player's strength in Elo points; the mean of all players is 0."""

    elo: float
    low: float
    """Lower bound of the 95 % interval."""
    high: float
    ahead: tuple[float, ...]
    """The probability that it is stronger than each of the players, in their order."""


def bradley_terry(wins: Sequence[Sequence[float]]) -> list[Strength]:
    """Return the most likely strengths, with intervals from the Fisher information.

    The intervals are of the distance to the mean of the players, and take games as independent of each other.

    Args:
        wins: ``wins[i][j]`` games that player i won against j; a draw is half a win for each.
    """
    table = np.array(wins, dtype=np.float64).reshape(len(wins), len(wins))
    np.fill_diagonal(table, 0.0)
    at = np.zeros(len(wins))
    for _ in range(_MOST_STEPS):
        gradient, information = _derivatives(table, at)
        step = np.linalg.solve(information, gradient)
        if np.max(np.abs(step), initial=0.0) < 1e-12:
            break
        step *= min(1.0, 1.0 / float(np.max(np.abs(step))))
        # The likelihood is concave: Newton's step, made short enough, always climbs.
        before = _likelihood(table, at)
        while _likelihood(table, at + step) < before - 1e-12 * abs(before):
            step /= 2
        at = at + step
    _, information = _derivatives(table, at)
    centre = np.eye(len(wins)) - 1.0 / max(1, len(wins))
    covariance = centre @ np.linalg.inv(information) @ centre
    variance = np.diagonal(covariance)
    apart = np.sqrt(variance[:, None] + variance[None, :] - 2 * covariance + np.eye(len(wins)))
    ahead = [tuple(map(cdf, row)) for row in (at[:, None] - at[None, :]) / apart]
    return [
        Strength(float(a) * ELO, float(a - _Z * sigma) * ELO, float(a + _Z * sigma) * ELO, row)
        for a, sigma, row in zip(centre @ at, np.sqrt(variance), ahead, strict=True)
    ]


def _likelihood(wins: _Matrix, at: _Matrix) -> float:
    """Return the logarithm of the likelihood, the prior's games included."""
    ahead = at[:, None] - at[None, :]
    own = np.logaddexp(0.0, at) + np.logaddexp(0.0, -at)
    return float(-(wins * np.logaddexp(0.0, -ahead)).sum() - _PRIOR / 2 * own.sum())


def _derivatives(wins: _Matrix, at: _Matrix) -> tuple[_Matrix, _Matrix]:
    """Return the gradient of the logarithm of the likelihood, and the Fisher information."""
    games = wins + wins.T
    p = 1.0 / (1.0 + np.exp(at[None, :] - at[:, None]))
    own = 1.0 / (1.0 + np.exp(-at))
    gradient = (wins - games * p).sum(axis=1) + _PRIOR * (0.5 - own)
    weights = games * p * (1.0 - p)
    return gradient, np.diag(weights.sum(axis=1) + _PRIOR * own * (1.0 - own)) - weights
