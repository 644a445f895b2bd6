"""The rating systems: known numbers, symmetry, and settings that are refused."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openskill.models import PlackettLuce

from unstable_stream.errors import ConfigError
from unstable_stream.model_pool import TrueSkill
from unstable_stream.model_pool.systems import Elo, OpenSkill, RatingSystem

numbers = st.floats(0.0, 60.0)
deviations = st.floats(0.5, 10.0)


def test_elo_by_hand() -> None:
    # Equal players: half of k. 400 points ahead, ten wins are expected for each loss.
    elo = Elo(k=32)
    assert elo.start == (1500.0, 0.0)
    assert elo.pair("E")(1500.0, 0.0, 1500.0, 0.0, False) == (1516.0, 0.0, 1484.0, 0.0)
    assert elo.pair("E")(1500.0, 0.0, 1500.0, 0.0, True) == (1500.0, 0.0, 1500.0, 0.0)
    winner, _, loser, _ = elo.pair("E")(1500.0, 0.0, 1900.0, 0.0, False)
    assert winner - 1500.0 == pytest.approx(32 * (1 - 1 / 11)) == pytest.approx(1900.0 - loser)
    favourite, _, _, _ = elo.pair("E")(1900.0, 0.0, 1500.0, 0.0, False)
    assert favourite - 1900.0 == pytest.approx(32 / 11)
    assert elo.pair("E")(0.0, 0.0, 1e9, 0.0, False)[0] == 32.0, "however unexpected"


def test_elo_among_many_is_everybody_against_everybody() -> None:
    players = {"a": (1500.0, 0.0), "b": (1600.0, 0.0), "c": (1400.0, 0.0)}
    after = Elo(k=30).many("E", players, {"a": 0, "b": 1, "c": 1})

    def expected(mine: float, other: float) -> float:
        return 1 / (1 + 10 ** ((other - mine) / 400))

    assert after["a"][0] == pytest.approx(1500 + 15 * (2 - expected(1500, 1600) - expected(1500, 1400)))
    assert after["b"][0] == pytest.approx(1600 + 15 * (0.5 - expected(1600, 1500) - expected(1600, 1400)))
    assert sum(mu for mu, _ in after.values()) == pytest.approx(4500)


def test_openskill_is_the_packages() -> None:
    system = OpenSkill(tau=0.1)
    package = PlackettLuce(tau=0.1)
    teams = [[package.rating(mu=20.0, sigma=5.0)], [package.rating(mu=28.0, sigma=3.0)]]
    for ranks, drawn in (([0.0, 1.0], False), ([0.0, 0.0], True)):
        (a,), (b,) = package.rate(teams, ranks=ranks)
        assert system.pair("E")(20.0, 5.0, 28.0, 3.0, drawn) == (a.mu, a.sigma, b.mu, b.sigma)


@given(
    st.lists(st.tuples(numbers, deviations, st.integers(0, 2)), min_size=3, max_size=5),
    st.sampled_from([TrueSkill(), Elo(), OpenSkill()]),
)
def test_the_order_of_players_does_not_matter(
    game: list[tuple[float, float, int]], system: RatingSystem
) -> None:
    players = {f"m{place}": (mu, sigma) for place, (mu, sigma, _) in enumerate(game)}
    ranks = {f"m{place}": float(rank) for place, (_, _, rank) in enumerate(game)}
    shuffled = dict(reversed(players.items()))
    assert system.many("E", players, ranks) == system.many("E", shuffled, ranks)


@given(numbers, deviations, st.sampled_from([TrueSkill(), Elo(), OpenSkill()]))
def test_a_checkpoint_starts_at_its_parent_and_no_more_certain(
    mu: float, sigma: float, system: RatingSystem
) -> None:
    child_mu, child_sigma = system.inherited(mu, sigma)
    assert child_mu == mu
    if system.name != "elo":
        assert child_sigma == pytest.approx(min(25 / 3, math.hypot(sigma, 25 / 12)))


@pytest.mark.parametrize(
    ("system", "arguments", "message"),
    [
        (TrueSkill, {"sigma": 0.0}, "sigma is 0.0"),
        (TrueSkill, {"beta": -1.0}, "beta is -1.0"),
        (TrueSkill, {"tau": math.nan}, "tau is nan"),
        (TrueSkill, {"draw_probability": {"Tak": 1.0}}, "draw_probability of Tak is 1.0"),
        (TrueSkill, {"default_draw_probability": 0.0}, "draw_probability of default is 0.0"),
        (Elo, {"k": 0.0}, "Elo k is 0.0"),
        (Elo, {"mu": math.inf}, "Elo mu is inf"),
        (OpenSkill, {"sigma": -1.0}, "OpenSkill sigma is -1.0"),
        (OpenSkill, {"tau": -1.0}, "OpenSkill tau is -1.0"),
    ],
)
def test_settings_are_checked(system: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        system(**arguments)
