"""How probably one is better than another: by hand, and against every draw of the bootstrap there is."""

import itertools
from statistics import fmean

import numpy as np
import pytest

from unstable_stream.algorithms.improvement import better_by_games, better_by_runs
from unstable_stream.algorithms.intervals import wilson_interval


def _share(values: tuple[float, ...], others: tuple[float, ...]) -> float:
    pairs = list(itertools.product(values, others))
    return fmean(1.0 if one > other else 0.5 if one == other else 0.0 for one, other in pairs)


def test_the_share_of_pairs_by_hand() -> None:
    """Of six pairs 0.5 is above 0.2 and 0.4 and equal to 0.5; 0.3 is above 0.2: 3.5 of 6."""
    assert better_by_runs([0.5, 0.3], [0.2, 0.4, 0.5]).probability == pytest.approx(3.5 / 6)
    assert better_by_runs([0.2, 0.4, 0.5], [0.5, 0.3]).probability == pytest.approx(2.5 / 6)


def test_the_interval_is_that_of_every_draw_of_the_runs() -> None:
    """27 draws of one group and 27 of the other make 729 pairs of them, all as likely."""
    values, others = (0.1, 0.6, 0.7), (0.2, 0.3, 0.65)
    every = [list(itertools.product(each, repeat=3)) for each in (values, others)]
    shares = [_share(*drawn) for drawn in itertools.product(*every)]
    assert len(shares) == 729
    found = better_by_runs(values, others)
    assert found.probability == pytest.approx(fmean(shares)) == _share(values, others)
    low, high = np.quantile(shares, (0.025, 0.975))
    assert (found.low, found.high) == (low, high)
    wilson = wilson_interval(3 * found.probability, 3)
    assert low < wilson[0]
    assert high > wilson[1], "the draws are wider"


@pytest.mark.parametrize(
    ("values", "others", "share", "pairs"),
    [([0.9, 0.8], [0.1, 0.2], 1.0, 2), ([0.1], [0.2, 0.3, 0.4], 0.0, 1), ([0.5] * 5, [0.4] * 9, 1.0, 5)],
)
def test_runs_that_say_the_same_by_chance_are_no_certainty(
    values: list[float], others: list[float], share: float, pairs: int
) -> None:
    """Each draw of them is the same, so the interval is Wilson's."""
    assert better_by_runs(values, others) == (share, *wilson_interval(share * pairs, pairs))
    with pytest.raises(ValueError, match="no runs"):
        better_by_runs(values, [])


def test_of_two_single_runs_by_hand() -> None:
    """Beta(2, 1) has density 2x, Beta(1, 2) has 2(1 - x): 5/6. Without games a rate is uniform."""
    assert better_by_games(1, 1, 0, 1).probability == pytest.approx(5 / 6, abs=1e-4)
    assert better_by_games(1, 1, 0, 0).probability == pytest.approx(2 / 3, abs=1e-4)
    assert better_by_games(3, 7, 3, 7).probability == pytest.approx(0.5)
    assert better_by_games(3, 7, 3, 7).low is None


def test_of_many_games_against_draws_from_both_posteriors() -> None:
    generator = np.random.default_rng(1)
    one, other = generator.beta(1 + 520, 1 + 480, 200_000), generator.beta(1 + 500, 1 + 500, 200_000)
    drawn = float((one > other).mean())
    assert better_by_games(520, 1000, 500, 1000).probability == pytest.approx(drawn, abs=0.005)


@pytest.mark.parametrize(
    ("games", "share"),
    [((10**6, 10**6, 10**6 - 10, 10**6), 1 - 2**-11), ((1, 10**6, 5, 10**6), 1 / 16)],
)
def test_of_very_many_games_at_the_ends_of_the_scale(games: tuple[int, int, int, int], share: float) -> None:
    """Rates near 0 are like Gamma variables, of which tosses of a coin tell which is larger."""
    assert better_by_games(*games).probability == pytest.approx(share, abs=5e-4)
