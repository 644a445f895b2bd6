"""The factor graph on plain floats gives the package's numbers, exactly, and gives up where it would."""

from itertools import pairwise

import trueskill
from hypothesis import given, settings
from hypothesis import strategies as st

from unstable_stream.model_pool import TrueSkillSettings
from unstable_stream.model_pool.factor_graph import rate_in_order
from unstable_stream.model_pool.normal import cdf, inverse_cdf, pdf
from unstable_stream.model_pool.skill import draw_margin

Belief = tuple[float, float]


@st.composite
def games(draw: st.DrawFn, spread: float, least_sigma: float) -> tuple[list[Belief], list[int]]:
    players = draw(st.integers(3, 6))
    beliefs = [(draw(st.floats(-spread, spread)), draw(st.floats(least_sigma, 12.0))) for _ in range(players)]
    return beliefs, sorted(draw(st.lists(st.integers(0, 3), min_size=players, max_size=players)))


def both(
    beliefs: list[Belief], ranks: list[int], beta: float, tau: float, p: float
) -> tuple[list[Belief] | None, list[Belief] | None]:
    """Our result and the package's; ``None`` where the arithmetic breaks down."""
    ours: list[Belief] | None
    theirs: list[Belief] | None
    drawn = [one == other for one, other in pairwise(ranks)]
    margin = draw_margin(TrueSkillSettings(beta=beta), p)
    try:
        ours = rate_in_order(beliefs, drawn, beta=beta, tau=tau, margin=margin)
    except FloatingPointError:
        ours = None
    package = trueskill.TrueSkill(beta=beta, tau=tau, draw_probability=p, backend=(cdf, pdf, inverse_cdf))
    try:
        rated = package.rate([(trueskill.Rating(*belief),) for belief in beliefs], ranks=ranks)
        theirs = [(rating.mu, rating.sigma) for (rating,) in rated]
    except (FloatingPointError, ValueError, ZeroDivisionError):
        theirs = None
    return ours, theirs


@settings(max_examples=300)
@given(games(40.0, 1.0), st.sampled_from([25 / 6, 1.0, 10.0]), st.sampled_from([0.0, 25 / 300, 2.0]))
def test_it_gives_the_packages_numbers_to_the_last_bit(
    game: tuple[list[Belief], list[int]], beta: float, tau: float
) -> None:
    ours, theirs = both(*game, beta, tau, 0.25)
    assert ours == theirs


@settings(max_examples=200)
@given(games(1000.0, 0.1), st.floats(0.01, 0.9))
def test_it_gives_up_where_the_package_does(game: tuple[list[Belief], list[int]], p: float) -> None:
    ours, theirs = both(*game, 25 / 6, 0.0, p)
    assert ours == theirs


def test_an_ordinary_game_does_not_break_down() -> None:
    ours, theirs = both([(25.0, 8.0), (30.0, 4.0), (22.0, 3.0), (20.0, 1.0)], [0, 1, 1, 2], 25 / 6, 0.0, 0.1)
    assert ours is not None
    assert ours == theirs
    assert ours[0][0] > 25.0, "who wins rises"
    assert all(after < before for (_, after), before in zip(ours, (8.0, 4.0, 3.0, 1.0), strict=True))
