"""TrueSkill: the closed form against the package, published numbers, and properties."""

import math

import pytest
import trueskill
from hypothesis import given
from hypothesis import strategies as st

from unstable_stream.model_pool import Skill, TrueSkillSettings, match_quality, rate_game, rate_pair

DEFAULT = TrueSkillSettings()
DRIFTING = TrueSkillSettings(tau=25 / 300)
"""The package's settings for people; ours assume that a model does not change."""
skills = st.builds(Skill, st.floats(-20, 70), st.floats(0.5, 12))
probabilities = st.floats(0.01, 0.9)


def _close(a: Skill, b: Skill) -> bool:
    return math.isclose(a.mu, b.mu, abs_tol=2e-4) and math.isclose(a.sigma, b.sigma, abs_tol=2e-4)


def test_published_numbers() -> None:
    # Two new players at draw probability 0.1: the values in the trueskill package's documentation.
    fresh = DEFAULT.default
    winner, loser = rate_pair(DEFAULT, 0.1, fresh, fresh, drawn=False)
    assert winner == pytest.approx((29.396, 7.171), abs=1e-3)
    assert loser == pytest.approx((20.604, 7.171), abs=1e-3)
    a, b = rate_pair(DEFAULT, 0.1, fresh, fresh, drawn=True)
    assert a == b == pytest.approx((25.0, 6.458), abs=1e-3)
    assert match_quality(DEFAULT, fresh, fresh) == pytest.approx(0.447, abs=1e-3)


@given(skills, skills, probabilities, st.booleans())
def test_the_closed_form_agrees_with_the_package(a: Skill, b: Skill, p: float, drawn: bool) -> None:
    package = trueskill.TrueSkill(draw_probability=p, tau=DRIFTING.tau)
    try:
        expected = package.rate(
            [(trueskill.Rating(*a),), (trueskill.Rating(*b),)], ranks=[0, 0 if drawn else 1]
        )
    except (FloatingPointError, ValueError, ZeroDivisionError):
        return  # too unexpected for the package's arithmetic; ours is checked below
    surprise = abs(a.mu - b.mu) / math.sqrt(2 * DEFAULT.beta**2 + a.sigma**2 + b.sigma**2)
    if surprise > 4:
        return  # the package's erfc has seven digits: out there it is the less exact of the two
    ours = rate_pair(DRIFTING, p, a, b, drawn=drawn)
    for mine, (theirs,) in zip(ours, expected, strict=True):
        assert _close(mine, Skill(theirs.mu, theirs.sigma)), (mine, theirs)
    quality = package.quality([(trueskill.Rating(*a),), (trueskill.Rating(*b),)])
    assert match_quality(DEFAULT, a, b) == pytest.approx(quality, rel=1e-9)


@given(
    st.builds(Skill, st.floats(-1e4, 1e4), st.floats(1e-3, 100)),
    st.builds(Skill, st.floats(-1e4, 1e4), st.floats(1e-3, 100)),
    probabilities,
)
def test_no_result_is_too_unexpected(a: Skill, b: Skill, p: float) -> None:
    for drawn in (False, True):
        new_a, new_b = rate_pair(DEFAULT, p, a, b, drawn=drawn)
        assert all(map(math.isfinite, (*new_a, *new_b)))
        for old, new in ((a, new_a), (b, new_b)):
            assert 0 < new.sigma <= math.hypot(old.sigma, DEFAULT.tau) * (1 + 1e-12)
        if not drawn:
            assert new_a.mu >= a.mu
            assert new_b.mu <= b.mu


def test_a_model_that_does_not_change_is_known_better_with_every_game() -> None:
    model, other = DEFAULT.default, DEFAULT.default
    for _ in range(500):
        before = model.sigma
        model, other = rate_pair(DEFAULT, 0.1, model, other, drawn=False)
        other, model = rate_pair(DEFAULT, 0.1, other, model, drawn=False)
        assert model.sigma < before
    assert model.sigma < 0.3
    assert rate_pair(DRIFTING, 0.1, model, other, drawn=True)[0].sigma > model.sigma * 0.99


@given(skills, skills, probabilities)
def test_a_draw_does_not_depend_on_the_order(a: Skill, b: Skill, p: float) -> None:
    new_a, new_b = rate_pair(DEFAULT, p, a, b, drawn=True)
    assert rate_pair(DEFAULT, p, b, a, drawn=True) == (new_b, new_a)


@given(st.floats(0, 50), st.floats(1, 9), probabilities)
def test_mu_moves_by_equal_amounts_between_equally_certain_players(mu: float, sigma: float, p: float) -> None:
    a, b = Skill(mu, sigma), Skill(25.0, sigma)
    new_a, new_b = rate_pair(DEFAULT, p, a, b, drawn=False)
    assert new_a.mu - a.mu == pytest.approx(b.mu - new_b.mu, abs=1e-9)


def test_three_players_agree_with_the_package() -> None:
    players = {"a": Skill(25, 8), "b": Skill(30, 4), "c": Skill(20, 6)}
    ours = rate_game(DRIFTING, "E", players, {"a": 0, "b": 1, "c": 2})
    package = trueskill.TrueSkill(draw_probability=0.1, tau=DRIFTING.tau)
    expected = package.rate([(trueskill.Rating(*players[u]),) for u in "abc"], ranks=[0, 1, 2])
    for uid, (theirs,) in zip("abc", expected, strict=True):
        assert _close(ours[uid], Skill(theirs.mu, theirs.sigma))


def test_a_recorded_game_of_four_is_rated_the_same_to_the_last_bit() -> None:
    players = {"a": Skill(25.0, 8.0), "b": Skill(30.0, 4.0), "c": Skill(22.0, 3.0), "d": Skill(20.0, 1.0)}
    assert rate_game(DEFAULT, "E", players, {"a": 0, "b": 1, "c": 1, "d": 3}) == {
        "a": (31.267251088828672, 5.825376467113051),
        "b": (27.73712939812053, 3.280255225195325),
        "c": (23.112164551685662, 2.6755902678633223),
        "d": (19.919929775278334, 0.9923566416070286),
    }


@given(
    st.lists(st.tuples(skills, st.integers(0, 2)), min_size=2, max_size=4),
    st.randoms(use_true_random=False),
)
def test_seat_order_changes_nothing(draws: list[tuple[Skill, int]], rng: object) -> None:
    players = {f"m{i}": skill for i, (skill, _) in enumerate(draws)}
    ranks = {f"m{i}": float(rank) for i, (_, rank) in enumerate(draws)}
    shuffled = dict(reversed(players.items()))
    assert rate_game(DEFAULT, "E", players, ranks) == rate_game(DEFAULT, "E", shuffled, ranks)


def test_equal_players_who_tie_stay_equal() -> None:
    # The package alone gives the one in the middle of its chain another sigma.
    fresh = DEFAULT.default
    rated = rate_game(DEFAULT, "E", dict.fromkeys("abc", fresh), dict.fromkeys("abc", 0.0))
    assert rated["a"] == rated["b"] == rated["c"]
    assert rated["a"].mu == pytest.approx(25.0, abs=1e-9)
    assert rated["a"].sigma < fresh.sigma
    mixed = rate_game(DEFAULT, "E", dict.fromkeys("abcd", fresh), {"a": 0, "b": 1, "c": 1, "d": 2})
    assert mixed["b"] == mixed["c"]
    assert mixed["a"].mu > mixed["b"].mu > mixed["d"].mu


def test_many_players_where_the_factor_graph_breaks_down() -> None:
    players = {"a": Skill(-2000.0, 0.1), "b": Skill(0.0, 0.1), "c": Skill(2000.0, 0.1)}
    ranks = {"a": 0.0, "b": 0.0, "c": 0.0}
    rated = rate_game(DEFAULT, "E", players, ranks)
    assert all(math.isfinite(x) for skill in rated.values() for x in skill)
    assert players["a"].mu < rated["a"].mu
    assert rated["c"].mu < players["c"].mu
    assert rated == rate_game(DEFAULT, "E", dict(reversed(players.items())), ranks)


def test_draw_probability_is_per_environment() -> None:
    settings = TrueSkillSettings(draw_probability={"Drawish": 0.6})
    pair = {"a": Skill(30, 5), "b": Skill(20, 5)}
    ranks = {"a": 0, "b": 0}
    drawish = rate_game(settings, "Drawish", pair, ranks)
    other = rate_game(settings, "Other", pair, ranks)
    assert other == rate_game(DEFAULT, "Drawish", pair, ranks)
    # Where draws are common, one says less about the difference.
    assert other["a"].mu < drawish["a"].mu < 30
