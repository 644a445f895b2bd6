"""Intervals: of a rate that a few games show, of a mean that a few seeds show, of a sum of means, and of a
mean that is looked at again and again.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Final, NamedTuple

_T: Final = (12.706205, 4.302653, 3.182446, 2.776445)
"""Quantile 0.975 of Student's t for 1 to 4 degrees of freedom."""
_STAKES: Final = tuple(0.95 * 2 ** (-power / 2) for power in range(12))
"""The shares of its capital that :func:`sequential_interval` bets."""


def wilson_interval(count: float, total: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the score interval of a rate (E. B. Wilson, 1927); (0, 1) if nothing was counted.

    Args:
        count: how often it happened.
        total: of how many.
        z: standard normal quantile of the confidence; by default that of 95 %.
    """
    if total == 0:
        return (0.0, 1.0)
    p = count / total
    centre = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * (p * (1 - p) / total + z * z / (4 * total * total)) ** 0.5
    # Rounding may put the bound of a rate of 0 or 1 a little outside.
    return (max(0.0, centre - half), min(1.0, centre + half))


def rates_interval(rates: Sequence[float], games: int) -> tuple[float, float, float]:
    """Return the mean of some rates, 0 to 1, and its 95 % interval by Student's t, cut to 0 and 1.

    It is at least as wide as Wilson's of so many games: a few rates may come out alike by chance.

    Args:
        rates: independent of each other, one for each seed. One alone says nothing of the others: (0, 1).
        games: of all rates together; games that repeat others count once.

    Raises:
        ValueError: there is no rate.
    """
    if not rates:
        raise ValueError("no rates, so no mean of them")
    mean, number = fmean(rates), len(rates)
    if number == 1:
        return (mean, 0.0, 1.0)
    half = t_quantile(number - 1) * stdev(rates) / number**0.5
    low, high = wilson_interval(mean * games, games)
    return (mean, min(low, max(0.0, mean - half)), max(high, min(1.0, mean + half)))


class Interval(NamedTuple):
    """A mean, or a sum of means, with its 95 % interval."""

    mean: float
    low: float
    high: float


def interval_of_sum(groups: Sequence[Sequence[float]], largest: float = 0.0) -> Interval:
    """Return the sum of the groups' means with its 95 % interval by Student's t.

    Its degrees of freedom are those of the smallest group, which is at most what Welch's are (B. L. Welch,
    Biometrika 34, 1947). The standard error of a group is at least what Wilson's interval gives to one that
    won all: values that are all alike may be so by chance.

    Args:
        groups: independent values, two or more in each group.
        largest: the size that a value can have, if it is more than those that there are.
    """
    z = t_quantile(10**9)
    largest = max(largest, *(abs(value) for group in groups for value in group))
    errors = (
        max(stdev(group) / len(group) ** 0.5, 2 * largest * z / (len(group) + z * z)) for group in groups
    )
    half = t_quantile(min(map(len, groups)) - 1) * sum(error * error for error in errors) ** 0.5
    mean = sum(map(fmean, groups))
    return Interval(mean, mean - half, mean + half)


def sequential_interval(values: Sequence[float], alpha: float = 0.05) -> Interval:
    """Return the mean of values from -1 to 1, with an interval that may be looked at after every value.

    With probability 1 - ``alpha`` the true mean is in all of the intervals that the growing values give, so
    these may decide when to stop. It holds for every distribution, and for few values too. A mean is outside
    if somebody who bets against it at fair odds, a fixed share of the capital on each value, would have made
    1 of ``alpha`` / 2, which has at most this probability (J. Ville, 1939). The capital is spread over
    several shares. See I. Waudby-Smith and A. Ramdas, Estimating means of bounded random variables by
    betting, Journal of the Royal Statistical Society B 86 (2024).

    Args:
        values: independent of each other; none: from -1 to 1.
        alpha: the probability that the true mean is ever outside.
    """
    counts = Counter(values)
    mirrored = {-value: number for value, number in counts.items()}
    mean = fmean(values) if values else 0.0
    return Interval(mean, _lowest_mean(counts, alpha / 2), -_lowest_mean(mirrored, alpha / 2))


def _lowest_mean(counts: Mapping[float, int], alpha: float) -> float:
    """Return the lowest mean that bets on a higher one do not refute; their capital falls as it rises."""
    low, high = 0.0, 1.0  # of values from 0 to 1
    for _ in range(30):
        middle = (low + high) / 2
        gains = (
            sum(
                number * math.log(1 - stake + stake * (1 + value) / 2 / middle)
                for value, number in counts.items()
            )
            for stake in _STAKES
        )
        capital = fmean(math.exp(min(gain, 700.0)) for gain in gains)
        low, high = (middle, high) if capital * alpha >= 1 else (low, middle)
    return 2 * low - 1


def t_quantile(freedom: int) -> float:
    """Return the quantile 0.975 of Student's t, within 0.0003, for 1 degree of freedom or more.

    From 5 on by the normal distribution's with a correction in powers of 1/freedom: Abramowitz and Stegun
    (1964), Handbook of Mathematical Functions, 26.7.5.
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    correction = 0.0
    for term in (1.589534, 2.555850, 2.822499, 2.372271):
        correction = (correction + term) / freedom
    return 1.959964 + correction
