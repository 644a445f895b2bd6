"""Intervals: within 0 and 1, and the textbook's numbers."""

import math

import pytest

from unstable_stream.algorithms.intervals import rates_interval, t_quantile, wilson_interval


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


@pytest.mark.parametrize("freedom", [1, 2, 4, 5, 6, 9, 30, 200])
def test_the_quantile_leaves_two_and_a_half_percent_above(freedom: int) -> None:
    """Against the density of Student's t, added up in small steps from 0."""
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    step = t_quantile(freedom) / 20_000
    middles = (step * (place + 0.5) for place in range(20_000))
    area = sum(scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2) * step for x in middles)
    assert area == pytest.approx(0.475, abs=2e-5)
