"""Ratings of teams, against the ``trueskill`` package."""

import math

import pytest
import trueskill

from unstable_stream.model_pool.rating_columns import GameColumns, Names, RatingHistory
from unstable_stream.model_pool.ratings import Ratings
from unstable_stream.model_pool.skill import Belief, TrueSkill, cdf, inverse_cdf, pdf
from unstable_stream.model_pool.systems import Elo, RatingSystem
from unstable_stream.model_pool.teams import Side, rate_sides, sides_of

BELIEFS: dict[int, Belief] = {0: (25.0, 8.0), 1: (28.0, 3.0), 2: (22.0, 5.0), 3: (31.0, 1.5)}
ENV = "Taboo-v0"


def by_package(sides: list[list[int]], ranks: list[int]) -> dict[int, Belief]:
    package = trueskill.TrueSkill(tau=0.0, draw_probability=0.1, backend=(cdf, pdf, inverse_cdf))
    rated = package.rate([[trueskill.Rating(*BELIEFS[m]) for m in side] for side in sides], ranks=ranks)
    return {
        model: (rating.mu, rating.sigma)
        for side, ratings in zip(sides, rated, strict=True)
        for model, rating in zip(side, ratings, strict=True)
    }


def ours(sides: list[list[int]], ranks: list[int]) -> dict[int, Belief]:
    columns = [
        (model, rank, team)
        for team, (side, rank) in enumerate(zip(sides, ranks, strict=True))
        for model in side
    ]
    models, seat_ranks, teams = (list(column) for column in zip(*columns, strict=True))
    return rate_sides(TrueSkill(), ENV, BELIEFS, sides_of(models, seat_ranks, teams))


@pytest.mark.parametrize("ranks", [[0, 1], [1, 0], [0, 0]])
@pytest.mark.parametrize("sides", [[[0, 1], [2, 3]], [[0], [1, 2, 3]], [[3], [0]], [[0, 1, 2], [3]]])
def test_two_teams_are_rated_as_the_package_does(sides: list[list[int]], ranks: list[int]) -> None:
    theirs = by_package(sides, ranks)
    for model, belief in ours(sides, ranks).items():
        assert belief == pytest.approx(theirs[model], abs=1e-9)


def test_who_plays_on_both_sides_alike_learns_nothing() -> None:
    assert ours([[0, 1], [0, 1]], [0, 1]) == {}
    after = ours([[0, 1], [0, 2]], [0, 1])
    assert after.keys() == {1, 2}
    assert after[1][0] > BELIEFS[1][0]
    assert after[2][0] < BELIEFS[2][0]


@pytest.mark.parametrize("system", [TrueSkill(), Elo()])
@pytest.mark.parametrize("ranks", [[0, 1], [1, 0], [0, 0]])
def test_a_model_on_both_of_two_unequal_sides_is_not_rated(system: RatingSystem, ranks: list[int]) -> None:
    assert rate_sides(system, ENV, BELIEFS, [Side({0: 2}, ranks[0]), Side({0: 4}, ranks[1])]) == {}
    names = Names()
    env, model = names.env(ENV), names.model("ckpt-000005", 5, None)
    ratings, history = Ratings(names, system), RatingHistory()
    teams = [1, 0, 1, 1, 0, 1]
    seat_ranks = [ranks[team] for team in teams]
    ratings.apply(GameColumns([env], [0, 6], [model] * 6, seat_ranks, teams), history)
    assert (ratings.games, ratings.rated, list(history.numbers)) == (1, 0, [])
    assert ratings.belief(ENV, "ckpt-000005") == system.start


def test_of_three_sides_those_of_one_model_are_not_rated_against_each_other() -> None:
    sides = [Side({0: 2}, 1), Side({0: 1}, 2), Side({1: 1}, 0)]
    after = rate_sides(TrueSkill(), ENV, BELIEFS, sides)
    by_pair = [rate_sides(TrueSkill(), ENV, BELIEFS, [side, sides[2]]) for side in sides[:2]]
    for model in (0, 1):
        for number in (0, 1):
            assert after[model][number] == pytest.approx(sum(each[model][number] for each in by_pair) / 2)


@pytest.mark.parametrize("ranks", [[0, 1], [1, 0], [0, 0]])
@pytest.mark.parametrize(
    ("sides", "shares"),
    [
        ([[0, 0, 1], [0, 2]], [{0: 1, 1: 1}, {2: 1}]),
        ([[0, 1], [0, 2, 2, 2]], [{1: 1}, {2: 3}]),
        ([[0], [0, 1, 1]], [{}, {1: 2}]),
        ([[0], [0, 0, 1]], [{}, {0: 1, 1: 1}]),
        ([[1, 1], [2, 2]], [{1: 2}, {2: 2}]),  # as whole teams
    ],
)
def test_who_plays_on_both_sides_unequally_learns_by_the_seats_it_has_more(
    sides: list[list[int]], shares: list[dict[int, int]], ranks: list[int]
) -> None:
    """The package weighs its players; one certain to be of skill 0 stands for a side that is even."""
    weights = [each or {99: 1} for each in shares]
    squares = sum(weight**2 for each in weights for weight in each.values())
    seats = sum(map(len, sides))
    # The package takes the noise by the weights and the margin by the players; here are those of all seats.
    beta = TrueSkill().beta * math.sqrt(seats / squares)
    margin = inverse_cdf(0.55) * math.sqrt(seats) * TrueSkill().beta
    draws = 2.0 * cdf(margin / (beta * math.sqrt(sum(map(len, weights))))) - 1.0
    package = trueskill.TrueSkill(tau=0.0, beta=beta, draw_probability=draws, backend=(cdf, pdf, inverse_cdf))
    groups = [
        {model: trueskill.Rating(*BELIEFS.get(model, (0.0, 1e-9))) for model in each} for each in weights
    ]
    theirs = package.rate(
        groups, ranks=ranks, weights={(n, m): w for n, each in enumerate(weights) for m, w in each.items()}
    )
    after = ours(sides, ranks)
    assert after.keys() == {model for each in shares for model in each}
    for rated in theirs:
        for model, rating in rated.items():
            if model in after:
                assert after[model] == pytest.approx((rating.mu, rating.sigma), abs=1e-6)


def test_three_teams_and_lone_players_are_rated_pair_by_pair() -> None:
    sides = sides_of([0, 0, 1, 2], [0, 0, 1, 2], [0, 0, -1, -1])
    assert sides == [Side({0: 2}, 0), Side({1: 1}, 1), Side({2: 1}, 2)]
    after = rate_sides(TrueSkill(), ENV, BELIEFS, sides)
    assert after[0][0] > BELIEFS[0][0]
    assert after[2][0] < BELIEFS[2][0]
    assert all(after[model][1] < BELIEFS[model][1] for model in after)


def test_another_system_takes_a_team_of_one_model_for_one_player() -> None:
    elo = Elo()
    beliefs = {0: (1500.0, 0.0), 1: (1500.0, 0.0), 2: (1500.0, 0.0)}
    whole = rate_sides(elo, ENV, beliefs, sides_of([0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]))
    assert whole == {0: (1516.0, 0.0), 1: (1484.0, 0.0)}
    mixed = rate_sides(elo, ENV, beliefs, sides_of([0, 2, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]))
    assert mixed == {0: (1516.0, 0.0), 2: (1516.0, 0.0), 1: (1484.0, 0.0)}
