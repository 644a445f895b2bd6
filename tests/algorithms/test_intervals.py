"""Wilson intervals: within 0 and 1, and the textbook's numbers."""

import pytest

from unstable_stream.algorithms.intervals import wilson_interval


@pytest.mark.parametrize("total", [1, 7, 40, 100, 999])
def test_the_bounds_of_never_and_always_are_rates(total: int) -> None:
    assert f"{wilson_interval(0, total)[0]:.1%}" == "0.0%", "not -0.0%"
    assert wilson_interval(total, total)[1] == pytest.approx(1.0)
    assert wilson_interval(total, total)[1] <= 1.0


def test_eight_of_ten() -> None:
    assert wilson_interval(8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-6)
