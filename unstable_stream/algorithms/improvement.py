"""The probability that one way to train is better than another: over runs of each, or by games of two."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from unstable_stream.algorithms.intervals import wilson_interval

_RESAMPLES: Final = 2000
_POINTS: Final = 20_000
"""Of the numerical integral: within 0.0005 up to a million games."""


class Better(NamedTuple):
    """The probability that one group of runs is better than another, 0 to 1."""

    probability: float
    low: float | None
    """Lower bound of its 95 % interval; ``None``: it is of the games of two runs, and has none."""
    high: float | None


def better_by_runs(values: Sequence[float], others: Sequence[float], *, seed: int = 0) -> Better:
    """Return the probability of improvement: that a run of one group has a higher value than one of another.

    It is the share of all pairs of runs in which the one is higher, an equal pair counting half: that of one
    task in R. Agarwal et al. (2021), arXiv:2108.13264, section 4.3. Its interval is that of their stratified
    bootstrap, which draws the runs of each group anew, by percentiles, and at least as wide as Wilson's of as
    many pairs as share no run: of a few runs one may by chance be above all others, which every draw repeats.

    Args:
        values: one for each run of the group.
        others: one for each run of the other group.
        seed: of the draws.

    Raises:
        ValueError: a group has no run.
    """
    if not values or not others:
        raise ValueError("no runs, so no probability of improvement")
    pairs = (np.sign(np.subtract.outer(np.asarray(values), np.asarray(others))) + 1) / 2
    share, fewest = float(pairs.mean()), min(pairs.shape)
    generator = np.random.default_rng(seed)
    drawn = [generator.multinomial(size, [1 / size] * size, _RESAMPLES) / size for size in pairs.shape]
    shares = ((drawn[0] @ pairs) * drawn[1]).sum(axis=1)
    drawn_low, drawn_high = map(float, np.quantile(shares, (0.025, 0.975)))
    low, high = wilson_interval(share * fewest, fewest)
    return Better(share, min(low, drawn_low), max(high, drawn_high))


def better_by_games(won: float, games: int, other_won: float, other_games: int) -> Better:
    """Return the probability that one policy's win rate is above another's, by the games of both alone.

    Each rate has the posterior of a uniform prior, Beta(1 + won, 1 + not won): A. Gelman et al. (2013),
    Bayesian Data Analysis, 3rd edition, section 2.4. It says nothing of other seeds.

    Args:
        won: games won by the one.
        games: its games; those that repeat others count once.
        other_won: games won by the other one.
        other_games: its games.
    """
    # Points at equal distances of the angle: a posterior is as wide there for every rate.
    rates = np.sin((np.arange(_POINTS) + 0.5) * np.pi / 2 / _POINTS) ** 2
    one, other = (
        np.exp(logs - logs.max())
        for k, n in ((won, games), (other_won, other_games))
        for logs in [(k + 0.5) * np.log(rates) + (n - k + 0.5) * np.log1p(-rates)]
    )
    below = np.cumsum(other) - other / 2
    return Better(float((one * below).sum() / (one.sum() * other.sum())), None, None)
