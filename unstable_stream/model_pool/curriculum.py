"""Curricula: the weight of each training environment, by what the model achieves there.

Both signals are known from the literature on automatic curricula:

- ``win-rate``: ``4 p (1 - p)`` of the probability ``p`` to win, 1 where the model wins half of its games and
  0 where it wins or loses all. It is the variance of a game's result, "learnability" in Rutherford et al.,
  "No Regrets", arXiv:2408.15099.
- ``learning-progress``: the absolute change of the mean score between the older and the newer half of the
  latest games, as in Matiisen et al., "Teacher-Student Curriculum Learning", arXiv:1707.00183. Absolute, so
  that an environment that the model forgets is played again, too.
"""

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

CurriculumMode: TypeAlias = Literal["fixed", "win-rate", "learning-progress"]

_LEAST_GAMES: Final = 20
"""An environment with fewer scores than this counts as if nothing were known: its signal is 1."""


def environment_shares(
    mode: CurriculumMode, weights: Sequence[float], scores: Sequence[Sequence[float]], floor: float
) -> list[float]:
    """Return the probability of each environment's draw.

    Args:
        mode: the signal; ``fixed``: the weights alone.
        weights: the configured weight of each environment, above 0.
        scores: the latest scores of each, in [0, 1], oldest first.
        floor: the share of the games that is drawn by the weights alone, so that none is forgotten.
    """
    by_weight = _normalized(weights)
    if mode == "fixed":
        return by_weight
    signals = [_signal(mode, each) for each in scores]
    wanted = [weight * signal for weight, signal in zip(weights, signals, strict=True)]
    if not any(wanted):
        return by_weight
    return [
        floor * plain + (1.0 - floor) * share
        for plain, share in zip(by_weight, _normalized(wanted), strict=True)
    ]


def learning_progress(scores: Sequence[float]) -> float:
    """Return the absolute difference of the means of the older and the newer half, in [0, 1]."""
    half = len(scores) // 2
    older, newer = scores[:half], scores[len(scores) - half :]
    return abs(sum(newer) - sum(older)) / half if half else 0.0


def _signal(mode: CurriculumMode, scores: Sequence[float]) -> float:
    if len(scores) < _LEAST_GAMES:
        return 1.0
    if mode == "learning-progress":
        return learning_progress(scores)
    win = sum(scores) / len(scores)
    return 4.0 * win * (1.0 - win)


def _normalized(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights]
