"""NashConv against what is known, and against OpenSpiel's slow Python implementation."""

import random
from typing import Any

import numpy as np
import pytest
from open_spiel.python import policy as open_spiel_policy
from open_spiel.python.algorithms.exploitability import nash_conv as slow_nash_conv

from unstable_stream.errors import ConfigError
from unstable_stream.games.openspiel.games import load_game
from unstable_stream.games.openspiel.solution import best_responses, information_states

PASS, BET = 0, 1


def uniform(game: Any) -> dict[str, dict[int, float]]:
    states = information_states(game)
    return {state.key: dict.fromkeys(state.moves, 1 / len(state.moves)) for state in states}


def kuhn_equilibrium(alpha: float) -> dict[str, dict[int, float]]:
    """Return the equilibrium in which the first player bets with J at probability ``alpha``, up to 1/3.

    H. W. Kuhn, "Simplified two-person poker", 1950.
    """
    bets = {"0": alpha, "2": 3 * alpha, "1pb": alpha + 1 / 3, "2pb": 1.0}
    bets |= {"0p": 1 / 3, "2p": 1.0, "1b": 1 / 3, "2b": 1.0}
    states = [f"{card}{moves}" for card in "012" for moves in ("", "p", "b", "pb")]
    return {state: {PASS: 1 - bets.get(state, 0.0), BET: bets.get(state, 0.0)} for state in states}


@pytest.mark.parametrize(
    ("name", "nash_conv", "states"), [("kuhn_poker", 0.917, 12), ("leduc_poker", 4.747, 936)]
)
def test_uniform_play_has_the_known_nash_conv(name: str, nash_conv: float, states: int) -> None:
    game = load_game(name)
    assert len(information_states(game)) == states
    assert best_responses(game, uniform(game)).nash_conv == pytest.approx(nash_conv, abs=5e-4)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1 / 3])
def test_an_equilibrium_of_kuhn_poker_has_none(alpha: float) -> None:
    found = best_responses(load_game("kuhn_poker"), kuhn_equilibrium(alpha))
    assert found.nash_conv == pytest.approx(0, abs=1e-12)
    assert found.values == pytest.approx((-1 / 18, 1 / 18))


def test_each_player_gains_what_its_best_response_gains() -> None:
    # The first player always passes: the second always bets, which the first never calls.
    policy = kuhn_equilibrium(0.0) | {card: {PASS: 1.0, BET: 0.0} for card in ("0pb", "1pb", "2pb", "2")}
    found = best_responses(load_game("kuhn_poker"), policy)
    # Betting with every card wins the first player's chip in each game.
    assert found.values[1] + found.gains[1] == pytest.approx(1.0)
    assert found.gains[0] >= 0


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("kuhn_poker", {}), ("liars_dice", {"dice_sides": 2}), ("nim", {"pile_sizes": "1;2;3"})],
)
def test_random_policies_are_as_in_the_slow_implementation(name: str, parameters: dict[str, Any]) -> None:
    game = load_game(name, parameters)
    rng = random.Random(0)
    for _ in range(3):
        policy = {}
        for key, moves in uniform(game).items():
            weights = [rng.random() for _ in moves]
            policy[key] = {move: weight / sum(weights) for move, weight in zip(moves, weights, strict=True)}
        table = open_spiel_policy.TabularPolicy(game)
        for key, chances in policy.items():
            row = table.policy_for_key(key)
            row[:] = np.zeros_like(row)
            for move, chance in chances.items():
                row[move] = chance
        assert best_responses(game, policy).nash_conv == pytest.approx(slow_nash_conv(game, table))


def test_a_game_that_is_too_large_is_refused() -> None:
    with pytest.raises(ConfigError, match="openspiel:leduc_poker: more than 1,000 positions"):
        information_states(load_game("leduc_poker"), at_most=1000)


def test_a_game_without_information_states_is_refused() -> None:
    with pytest.raises(ConfigError, match="openspiel:backgammon: OpenSpiel does not tell"):
        information_states(load_game("backgammon"))
