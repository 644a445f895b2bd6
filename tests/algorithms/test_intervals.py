"""Intervals: within 0 and 1, and the textbook's numbers."""

import math
import random

import pytest

from unstable_stream.algorithms.intervals import (
    interval_of_sum,
    rates_interval,
    sequential_interval,
    t_quantile,
    wilson_interval,
)


@pytest.mark.parametrize("total", [1, 7, 40, 100, 999])
def test_the_bounds_of_never_and_always_are_rates(total: int) -> None:
    assert f"{wilson_interval(0, total)[0]:.1%}" == "0.0%", "not -0.0%"
    assert wilson_interval(total, total)[1] == pytest.approx(1.0)
    assert wilson_interval(total, total)[1] <= 1.0


def test_eight_of_ten() -> None:
    assert wilson_interval(8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-6)


def test_the_mean_of_three_seeds_by_hand() -> None:
    """Mean 0.5, standard deviation 0.1, t of two degrees of freedom 4.302653."""
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert rates_interval([0.4, 0.6, 0.5], 3000) == pytest.approx((0.5, 0.5 - half, 0.5 + half))


def test_bounds_of_a_mean_are_rates_and_no_narrower_than_its_games_allow() -> None:
    assert rates_interval([0.0, 1.0], 40) == (0.5, 0.0, 1.0)
    assert rates_interval([0.25, 0.25], 8) == (0.25, *wilson_interval(2, 8))
    assert rates_interval([0.25], 4) == (0.25, 0.0, 1.0)
    with pytest.raises(ValueError, match="no rates"):
        rates_interval([], 0)


def test_the_sum_of_two_means_by_hand() -> None:
    """Variances 4 * 100/99 and 4 * 50/49 of the values, so 4/99 and 4/49 of the means; t of 49 degrees."""
    found = interval_of_sum([[3.5, -0.5] * 50, [1.0, -3.0] * 25])
    half = 2.009575 * math.sqrt(4 / 99 + 4 / 49)
    assert found == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-5)


def test_a_player_that_won_all_games_gets_no_certainty() -> None:
    low = wilson_interval(400, 400)[0]
    mean, below, _ = interval_of_sum([[1.0] * 400, [0.0] * 400])
    assert mean == 1.0
    # Each seat's error is that of Wilson's lower end, in rewards of -1 to 1.
    assert below == pytest.approx(1 - math.sqrt(2) * 2 * (1 - low), rel=0.01)


@pytest.mark.parametrize("freedom", [1, 2, 4, 5, 6, 9, 30, 200])
def test_the_quantile_leaves_two_and_a_half_percent_above(freedom: int) -> None:
    """Against the density of Student's t, added up in small steps from 0."""
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    step = t_quantile(freedom) / 20_000
    middles = (step * (place + 0.5) for place in range(20_000))
    area = sum(scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2) * step for x in middles)
    assert area == pytest.approx(0.475, abs=2e-5)


def test_an_interval_looked_at_after_every_value_holds_at_all_of_them() -> None:
    """Of 95 % of such series, the true mean 0 is always inside; a fixed interval loses it in every third."""
    outside = 0
    for seed in range(40):
        chance = random.Random(seed)
        values = [chance.choice([-1.0, -0.5, 0.0, 0.5, 1.0]) for _ in range(96)]
        looks = (sequential_interval(values[:number]) for number in range(8, 97, 8))
        outside += any(not low <= 0 <= high for _, low, high in looks)
    assert outside <= 2


def test_a_few_equal_values_do_not_decide_and_many_do() -> None:
    assert sequential_interval([]) == (0.0, -1.0, 1.0)
    assert sequential_interval([1.0] * 4).low < 0
    certain = sequential_interval([1.0] * 50)
    assert certain == pytest.approx((1.0, 0.767, 1.0), abs=1e-3)
    mean, low, high = sequential_interval([-0.5, 0.0, 0.5, 0.5])
    assert sequential_interval([0.5, 0.0, -0.5, -0.5]) == pytest.approx((-mean, -high, -low))


def test_one_value_is_bet_on_by_hand() -> None:
    """A share s of the capital on 1 of a mean m makes 1 - s + s / m; their mean is 1 / 0.025 at the bound."""
    shares = [0.95 * 2 ** (-power / 2) for power in range(12)]
    lowest = (sequential_interval([1.0]).low + 1) / 2
    assert sum(1 - share + share / lowest for share in shares) / 12 == pytest.approx(40.0, rel=1e-6)
