"""Recent results of the trained model, and what follows from them: prioritised opponents, curricula."""

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model_pool.outcomes import make_outcome
from unstable_stream.model_pool import ModelPool
from unstable_stream.model_pool.results import CurriculumMode, RecentResults, environment_shares

ME = "ckpt-000003"


def _results(
    *rewards: float, opponent: str = "a", env_id: str = "Env-v0", window: int = 200
) -> RecentResults:
    results = RecentResults(window)
    for index, reward in enumerate(rewards):
        results.add(make_outcome(index, {0: (ME, reward), 1: (opponent, -reward)}, env_id=env_id))
    return results


def test_scores_are_means_of_wins_draws_and_losses() -> None:
    results = _results(1.0, 0.0, -1.0, 1.0)
    assert results.against("a", "Env-v0") == (2.5 / 4, 4)
    assert results.against("a") == (2.5 / 4, 4)
    assert results.against("a", "Other-v0") == (0.5, 0)
    assert results.smoothed("a") == pytest.approx(3.5 / 6)
    assert results.smoothed("nobody") == 0.5
    assert results.in_env("Env-v0") == (1.0, 0.5, 0.0, 1.0)


def test_only_the_latest_games_count() -> None:
    results = _results(-1.0, -1.0, 1.0, 1.0, window=2)
    assert results.against("a") == (1.0, 2)
    assert results.matches == {"a": {"Env-v0": 4}}


def test_the_policy_has_no_score_against_itself() -> None:
    results = RecentResults()
    results.add(make_outcome(0, {0: (ME, 1.0), 1: (ME, -1.0)}, trained=(0, 1)))
    assert results.in_env("Env-v0") == ()
    assert results.matches == {ME: {"Env-v0": 1}}


def test_with_more_players_each_opponent_has_its_own_score() -> None:
    results = RecentResults()
    # The policy holds two seats: one is ahead of a and level with b, one is behind both.
    seats = {0: (ME, 0.0), 1: ("a", -0.5), 2: ("b", 0.0), 3: (ME, -1.0)}
    results.add(make_outcome(0, seats, trained=(0, 3)))
    assert results.against("a") == (0.5, 1)
    assert results.against("b") == (0.25, 1)
    assert sorted(results.in_env("Env-v0")) == [0.25, 0.5]


def test_alone_the_reward_is_the_score() -> None:
    results = RecentResults()
    for index, reward in enumerate((1.0, 0.25, -1.0)):
        results.add(make_outcome(index, {0: (ME, reward)}))
    assert results.in_env("Env-v0") == (1.0, 0.25, 0.0)


def _pool(mode: str, temperature: float = 1.0) -> ModelPool:
    pool = ModelPool(mode, fixed=("beaten", "even", "strong"), temperature=temperature)
    pool.add_checkpoint(None, 0)
    index = 0
    for opponent, wins in (("beaten", 8), ("even", 4), ("strong", 0)):
        for game in range(8):
            reward = 1.0 if game < wins else -1.0
            pool.apply(make_outcome(index, {0: ("ckpt-000000", reward), 1: (opponent, -reward)}))
            index += 1
    return pool


@pytest.mark.parametrize(
    ("mode", "temperature", "weights"),
    [
        # The smoothed probabilities to win are 9/10, 5/10 and 1/10.
        ("pfsp-hard", 1.0, {"beaten": 0.1, "even": 0.5, "strong": 0.9}),
        ("pfsp-hard", 0.5, {"beaten": 0.01, "even": 0.25, "strong": 0.81}),
        ("pfsp-variance", 1.0, {"beaten": 0.09, "even": 0.25, "strong": 0.09}),
    ],
)
def test_opponents_are_prioritised_by_what_is_won_against_them(
    mode: str, temperature: float, weights: dict[str, float]
) -> None:
    pool, rng = _pool(mode, temperature), random.Random(3)
    draws = Counter(pool.sample("ckpt-000000", rng, "Env-v0") for _ in range(20_000))
    for opponent, weight in weights.items():
        assert draws[opponent] / 20_000 == pytest.approx(weight / sum(weights.values()), abs=0.015)


def test_a_snapshot_names_who_may_be_drawn() -> None:
    pool = _pool("pfsp-hard")
    snapshot = pool.snapshot()
    assert snapshot["model-pool/Env-v0/matches/beaten"] == 8.0
    assert snapshot["model-pool/Env-v0/score/even"] == 0.5
    assert snapshot["model-pool/checkpoints"] == 1.0
    for iteration in range(1, 20):
        pool.add_checkpoint(f"/c/{iteration}", iteration)
    named = {name.rpartition("/")[2] for name in pool.snapshot() if "/rating/" in name}
    assert {"beaten", "even", "strong", "ckpt-000019"} <= named
    assert len(named) == 3 + pool.max_active_lora


_RISING, _FALLING, _FLAT = [0.0] * 10 + [1.0] * 10, [0.5] * 10 + [0.25] * 10, [0.75] * 20


@pytest.mark.parametrize(
    ("mode", "weights", "scores", "floor", "shares"),
    [
        (
            # 4 p (1 - p) is 1, 0.36 and 0; a tenth of the games is drawn by the weights.
            "win-rate",
            [1.0, 1.0, 1.0],
            [[1.0] * 15 + [0.0] * 15, [1.0] * 27 + [0.0] * 3, [1.0] * 30],
            0.1,
            [0.1 / 3 + 0.9 / 1.36, 0.1 / 3 + 0.9 * 0.36 / 1.36, 0.1 / 3],
        ),
        # Results change by 1, 0.25 and 0.
        ("learning-progress", [1.0, 2.0, 1.0], [_RISING, _FALLING, _FLAT], 0.0, [1.0 / 1.5, 0.5 / 1.5, 0.0]),
        # Few results: as if all were to learn.
        ("win-rate", [1.0, 1.0], [[0.0] * 5, [0.0] * 30], 0.0, [1.0, 0.0]),
        # Nothing is left to learn.
        ("win-rate", [1.0, 3.0], [[1.0] * 30] * 2, 0.1, [0.25, 0.75]),
    ],
)
def test_environments_are_drawn_by_what_there_is_to_learn(
    mode: CurriculumMode, weights: list[float], scores: list[list[float]], floor: float, shares: list[float]
) -> None:
    assert environment_shares(mode, weights, scores, floor) == pytest.approx(shares)


@given(
    st.sampled_from(["fixed", "win-rate", "learning-progress"]),
    st.lists(
        st.tuples(st.floats(0.1, 10), st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=60)),
        min_size=1,
        max_size=6,
    ),
    st.floats(0.0, 1.0),
)
def test_shares_add_up_and_none_is_below_its_floor(mode, envs, floor) -> None:  # type: ignore[no-untyped-def]
    weights = [weight for weight, _ in envs]
    shares = environment_shares(mode, weights, [scores for _, scores in envs], floor)
    assert sum(shares) == pytest.approx(1.0)
    for weight, share in zip(weights, shares, strict=True):
        assert share >= floor * weight / sum(weights) - 1e-12


def test_several_trained_models_have_results_of_their_own() -> None:
    results = RecentResults()
    for index in range(8):
        model, reward = ("weak", -1.0) if index % 2 else ("strong", 1.0)
        game = make_outcome(index, {0: ("me", reward), 1: ("rival", -reward)})
        mine = msgspec.structs.replace(game.seats[0], model_uid=f"ckpt-{model}-000001", trained=True)
        results.add(msgspec.structs.replace(game, seats=(mine, game.seats[1])))
    assert results.against("rival") == (0.5, 8)
    assert results.smoothed("rival", model="strong") == pytest.approx(5 / 6)
    assert results.smoothed("rival", model="weak") == pytest.approx(1 / 6)
    assert results.in_env("Env-v0") == (1.0, 0.0) * 4
