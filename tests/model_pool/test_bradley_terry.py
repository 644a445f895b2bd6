"""Bradley-Terry strengths: known numbers, what must hold for any results, and slow versions of the fit."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstable_stream.model_pool.bradley_terry import ELO, bradley_terry

Wins = list[list[float]]


@st.composite
def results(draw: st.DrawFn) -> Wins:
    """Wins among two to five players, draws as halves; some never met."""
    players = draw(st.integers(2, 5))
    halves = st.integers(0, 20).map(lambda number: number / 2)
    return [[draw(halves) if a != b else 0.0 for b in range(players)] for a in range(players)]


def elos(wins: Wins) -> list[float]:
    return [strength.elo for strength in bradley_terry(wins)]


def test_many_games_by_hand() -> None:
    """So many that the prior, one drawn game with a player of strength 0, hardly counts."""
    winner, loser = bradley_terry([[0, 30_000], [10_000, 0]])
    assert winner.elo - loser.elo == pytest.approx(400 * math.log10(3), abs=0.1)
    assert winner.elo == pytest.approx(-loser.elo)
    # The information about the distance is 40,000 games of p (1 - p) = 3/16; to the mean it is half as far.
    half = 1.959964 * math.sqrt(4 / 30_000) / 2 * ELO
    assert winner.high - winner.elo == pytest.approx(half, rel=1e-3)
    assert winner.elo - winner.low == pytest.approx(half, rel=1e-3)


def test_the_probability_to_be_stronger_by_hand() -> None:
    """Of two with 30 to 20 wins, each of whom has one drawn game with a player of strength 0, too.

    Their distance d solves 30 - 50 p(d) = p(d / 2) - 1/2.
    """
    winner, loser = bradley_terry([[0, 30], [20, 0]])
    d = (winner.elo - loser.elo) / ELO
    p = 1 / (1 + math.exp(-d))
    half = 1 / (1 + math.exp(-d / 2))
    assert 30 - 50 * p == pytest.approx(half - 0.5)
    information = 50 * p * (1 - p) + half * (1 - half) / 2
    sure = 0.5 * math.erfc(-d * math.sqrt(information) / math.sqrt(2))
    assert winner.ahead == pytest.approx((0.5, sure))
    assert loser.ahead == pytest.approx((1 - sure, 0.5))


@pytest.mark.parametrize("wins", [[[0, 5], [0, 0]], [[0, 1, 0], [1, 0, 0], [0, 0, 0]]])
def test_the_prior_keeps_the_undefeated_and_the_unknown_finite(wins: Wins) -> None:
    for strength in bradley_terry(wins):
        assert abs(strength.elo) < 1000
        assert strength.low < strength.elo < strength.high < math.inf


def test_many_games_without_a_loss_are_fitted() -> None:
    stronger, weaker = bradley_terry([[0, 1_000_000], [0, 0]])
    assert 800 < stronger.elo - weaker.elo < 5000


def test_nobody_and_one_alone() -> None:
    assert bradley_terry([]) == []
    assert elos([[0]]) == [0]


def test_the_interval_holds_the_truth_in_19_of_20_tournaments() -> None:
    rng = random.Random(4)
    truth = [0.5, 0.1, -0.6]
    held = 0
    for _ in range(400):
        wins = [[0.0] * 3 for _ in truth]
        for a, b in itertools.combinations(range(3), 2):
            for _ in range(60):
                won = rng.random() < 1 / (1 + math.exp(truth[b] - truth[a]))
                wins[a if won else b][b if won else a] += 1
        held += sum(
            found.low <= ELO * true <= found.high
            for found, true in zip(bradley_terry(wins), truth, strict=True)
        )
    assert 0.93 < held / 1200 < 0.97


@given(results(), st.permutations(range(5)))
def test_permuting_the_players_permutes_the_strengths(wins: Wins, order: list[int]) -> None:
    order = [player for player in order if player < len(wins)]
    shuffled = [[wins[a][b] for b in order] for a in order]
    plain = bradley_terry(wins)
    for place, strength in zip(order, bradley_terry(shuffled), strict=True):
        assert strength.elo == pytest.approx(plain[place].elo, abs=1e-5)
        assert strength.low == pytest.approx(plain[place].low, abs=1e-5)


@given(results())
def test_it_is_what_hunters_mm_algorithm_finds(wins: Wins) -> None:
    # Equation 3 of Hunter (2004); the prior is one drawn game with a player whose strength stays 1.
    players = range(len(wins))
    strength = [1.0 for _ in players]
    for _ in range(20_000):
        before = list(strength)
        for a in players:
            won = sum(wins[a]) + 0.5
            met = [(wins[a][b] + wins[b][a]) / (strength[a] + strength[b]) for b in players if b != a]
            strength[a] = won / (sum(met) + 1 / (strength[a] + 1.0))
        if max(abs(new / old - 1) for new, old in zip(strength, before, strict=True)) < 1e-12:
            break
    logs = [math.log(each) for each in strength]
    mean = sum(logs) / len(logs)
    assert elos(wins) == pytest.approx([(each - mean) * ELO for each in logs], abs=1e-4)
