"""TrueSkill: the closed form against the package, published numbers, and properties."""

import math
from collections.abc import Sequence

import pytest
import trueskill
from hypothesis import given
from hypothesis import strategies as st

from unstable_stream.model_pool import Skill, TrueSkill

DEFAULT = TrueSkill()
DRIFTING = TrueSkill(tau=25 / 300)
"""The package's settings for people; ours assume that a model does not change."""
FRESH = Skill(*DEFAULT.start)
skills = st.builds(Skill, st.floats(-20, 70), st.floats(0.5, 12))
probabilities = st.floats(0.01, 0.9)


def _rated(
    a: Skill, b: Skill, p: float = 0.1, *, drawn: bool = False, tau: float = 0.0
) -> tuple[Skill, Skill]:
    mu_a, sigma_a, mu_b, sigma_b = TrueSkill(tau=tau, default_draw_probability=p).pair("E")(*a, *b, drawn)
    return Skill(mu_a, sigma_a), Skill(mu_b, sigma_b)


def _package(players: Sequence[Skill], ranks: Sequence[int], p: float = 0.1) -> list[tuple[float, float]]:
    package = trueskill.TrueSkill(draw_probability=p, tau=DRIFTING.tau)
    rated = package.rate([(trueskill.Rating(*each),) for each in players], ranks=ranks)
    return [(rating.mu, rating.sigma) for (rating,) in rated]


def test_published_numbers() -> None:
    # Two new players at draw probability 0.1: the values in the trueskill package's documentation.
    winner, loser = _rated(FRESH, FRESH)
    assert winner == pytest.approx((29.396, 7.171), abs=1e-3)
    assert loser == pytest.approx((20.604, 7.171), abs=1e-3)
    a, b = _rated(FRESH, FRESH, drawn=True)
    assert a == b == pytest.approx((25.0, 6.458), abs=1e-3)
    assert DEFAULT.match_quality(FRESH, FRESH) == pytest.approx(0.447, abs=1e-3)


@given(skills, skills, probabilities, st.booleans())
def test_the_closed_form_agrees_with_the_package(a: Skill, b: Skill, p: float, drawn: bool) -> None:
    try:
        expected = _package([a, b], [0, 0 if drawn else 1], p)
    except (FloatingPointError, ValueError, ZeroDivisionError):
        return  # too unexpected for the package's arithmetic; ours is checked below
    surprise = abs(a.mu - b.mu) / math.sqrt(2 * DEFAULT.beta**2 + a.sigma**2 + b.sigma**2)
    if surprise > 4:
        return  # the package's erfc has seven digits: out there it is the less exact of the two
    for mine, theirs in zip(_rated(a, b, p, drawn=drawn, tau=DRIFTING.tau), expected, strict=True):
        assert mine == pytest.approx(theirs, abs=2e-4)
    quality = trueskill.TrueSkill().quality([(trueskill.Rating(*a),), (trueskill.Rating(*b),)])
    assert DEFAULT.match_quality(a, b) == pytest.approx(quality, rel=1e-9)


@given(
    st.builds(Skill, st.floats(-1e4, 1e4), st.floats(1e-3, 100)),
    st.builds(Skill, st.floats(-1e4, 1e4), st.floats(1e-3, 100)),
    probabilities,
)
def test_no_result_is_too_unexpected(a: Skill, b: Skill, p: float) -> None:
    for drawn in (False, True):
        new_a, new_b = _rated(a, b, p, drawn=drawn)
        assert all(map(math.isfinite, (*new_a, *new_b)))
        for old, new in ((a, new_a), (b, new_b)):
            assert 0 < new.sigma <= old.sigma * (1 + 1e-12)
        if not drawn:
            assert new_a.mu >= a.mu
            assert new_b.mu <= b.mu


def test_a_model_that_does_not_change_is_known_better_with_every_game() -> None:
    model, other = FRESH, FRESH
    for _ in range(500):
        before = model.sigma
        model, other = _rated(model, other)
        other, model = _rated(other, model)
        assert model.sigma < before
    assert model.sigma < 0.3
    assert _rated(model, other, drawn=True, tau=DRIFTING.tau)[0].sigma > model.sigma * 0.99


@given(skills, skills, probabilities)
def test_a_draw_does_not_depend_on_the_order(a: Skill, b: Skill, p: float) -> None:
    assert _rated(b, a, p, drawn=True) == _rated(a, b, p, drawn=True)[::-1]


def test_a_recorded_game_of_four_is_rated_the_same_to_the_last_bit() -> None:
    players = {"a": Skill(25.0, 8.0), "b": Skill(30.0, 4.0), "c": Skill(22.0, 3.0), "d": Skill(20.0, 1.0)}
    assert DEFAULT.many("E", players, {"a": 0, "b": 1, "c": 1, "d": 3}) == {
        "a": (31.267251088828672, 5.825376467113051),
        "b": (27.73712939812053, 3.280255225195325),
        "c": (23.112164551685662, 2.6755902678633223),
        "d": (19.919929775278334, 0.9923566416070286),
    }


def test_equal_players_who_tie_stay_equal() -> None:
    # The package alone gives the one in the middle of its chain another sigma.
    rated = DEFAULT.many("E", dict.fromkeys("abc", FRESH), dict.fromkeys("abc", 0.0))
    assert rated["a"] == rated["b"] == rated["c"]
    assert rated["a"][0] == pytest.approx(25.0, abs=1e-9)
    assert rated["a"][1] < FRESH.sigma
    mixed = DEFAULT.many("E", dict.fromkeys("abcd", FRESH), {"a": 0, "b": 1, "c": 1, "d": 2})
    assert mixed["b"] == mixed["c"]
    assert mixed["a"][0] > mixed["b"][0] > mixed["d"][0]


def test_many_players_where_the_factor_graph_breaks_down() -> None:
    players = {"a": Skill(-2000.0, 0.1), "b": Skill(0.0, 0.1), "c": Skill(2000.0, 0.1)}
    ranks = {"a": 0.0, "b": 0.0, "c": 0.0}
    rated = DEFAULT.many("E", players, ranks)
    assert all(math.isfinite(x) for belief in rated.values() for x in belief)
    assert players["a"].mu < rated["a"][0]
    assert rated["c"][0] < players["c"].mu
    assert rated == DEFAULT.many("E", dict(reversed(players.items())), ranks)


def test_draw_probability_is_per_environment() -> None:
    system = TrueSkill(draw_probability={"Drawish": 0.6})
    drawish, other = (system.pair(env)(30, 5, 20, 5, True) for env in ("Drawish", "Other"))
    assert other == DEFAULT.pair("Drawish")(30, 5, 20, 5, True)
    # Where draws are common, one says less about the difference.
    assert other[0] < drawish[0] < 30
