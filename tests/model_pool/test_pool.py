"""The model pool: membership, modes, exploration."""

import math
import random
from collections import Counter
from typing import Any

import pytest

from tests.builders import made
from tests.model_pool.outcomes import make_outcome
from unstable_stream.errors import ConfigError
from unstable_stream.events import OVERALL, Checkpoint, Rating, checkpoint_uid
from unstable_stream.model_pool import ExplorationTracker, ModelPool, Skill, TrueSkill


def _pool(mode: str, checkpoints: int = 6, **options: Any) -> ModelPool:
    pool = ModelPool(mode, **options)
    for iteration in range(checkpoints):
        parent = checkpoint_uid(iteration - 1) if iteration else None
        pool.add_checkpoint(f"/ckpt/{iteration}" if iteration else None, iteration, parent_uid=parent)
    return pool


def _draws(pool: ModelPool, n: int = 2000, env_id: str | None = None) -> Counter[str]:
    rng = random.Random(5)
    me = pool.current_uid()
    assert me is not None
    return Counter(pool.sample(me, rng, env_id) for _ in range(n))


def _rating(uid: str, mu: float, *, env_id: str = OVERALL, games: int = 1) -> Rating:
    return made(Rating, env_id=env_id, model_uid=uid, mu=mu, sigma=2.0, games=games, game_id=f"g{games}")


def _active(pool: ModelPool) -> list[int]:
    return [m.iteration for m in pool.members() if m.kind == "checkpoint" and m.active]


# -- membership -------------------------------------------------------------------------------


def test_the_newest_checkpoint_is_current_whatever_the_order_of_arrival() -> None:
    pool = ModelPool()
    assert pool.current_uid() is None
    pool.add_checkpoint("/c/2", 2)
    pool.add_checkpoint(None, 0)
    assert pool.current_uid() == "ckpt-000002"
    pool.add_fixed("gpt", "openai")
    assert [(member.path_or_name, member.kind) for member in pool.members()] == [
        ("/c/2", "checkpoint"),
        (None, "checkpoint"),
        ("gpt", "openai"),
    ]
    assert ModelPool().add_checkpoint(None, -1) == "ckpt-000000"


def test_events_and_calls_build_the_same_pool() -> None:
    by_event = ModelPool("random")
    for iteration in (0, 1, 1, 2):  # one delivered twice
        by_event.apply(
            made(
                Checkpoint,
                iteration=iteration,
                path=f"/ckpt/{iteration}" if iteration else None,
                parent_uid=checkpoint_uid(iteration - 1) if iteration else None,
            )
        )
    by_call = _pool("random", 3)
    assert by_event.members() == by_call.members()
    assert [by_event.rating(one.uid) for one in by_event.members()] == [
        by_call.rating(one.uid) for one in by_call.members()
    ]


@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [
        ("mirror", {"max_active_lora": 3}, [3, 4, 5]),
        ("random", {"max_active_lora": 1}, [5]),
        ("random", {"max_active_lora": 99}, [0, 1, 2, 3, 4, 5]),
        ("lagged", {"max_active_lora": 3, "lag_range": (1, 7)}, [3, 4, 5]),
        ("lagged", {"max_active_lora": 3, "lag_range": (3, 5)}, [1, 2, 5]),
        ("lagged", {"max_active_lora": 4, "lag_range": (5, 9)}, [0, 5]),
    ],
)
def test_only_so_many_checkpoints_are_active(mode: str, options: dict[str, Any], expected: list[int]) -> None:
    assert _active(_pool(mode, **options)) == expected


def test_weighted_modes_keep_the_checkpoints_they_would_draw() -> None:
    pool = _pool("ts-dist", 4, max_active_lora=2)
    for iteration, mu in enumerate([30.0, 10.0, 12.0, 29.0]):
        pool.apply(_rating(checkpoint_uid(iteration), mu))
    pool.add_checkpoint("/ckpt/4", 4, parent_uid=checkpoint_uid(3))  # starts at its parent's 29
    assert _active(pool) == [3, 4]
    pool.apply(_rating(checkpoint_uid(4), 30.0))
    pool.add_checkpoint("/ckpt/5", 5, parent_uid=checkpoint_uid(0))
    assert _active(pool) == [4, 5]  # 0 and 4 are as near: the newer is kept


# -- modes ------------------------------------------------------------------------------------


def _shares(pool: ModelPool, **expected: float) -> None:
    """Each opponent is drawn as often as its weight says, and nobody else. An underscore is a hyphen."""
    total = sum(expected.values())
    found = {uid.replace("-", "_"): count / 10_000 for uid, count in _draws(pool, 10_000).items()}
    assert found == pytest.approx({uid: weight / total for uid, weight in expected.items()}, abs=0.02)


def test_each_mode_draws_whom_it_says() -> None:
    _shares(_pool("fixed", fixed=("a", "b")), a=1, b=1)
    _shares(_pool("fixed", fixed={"often": 3.0, "seldom": 1.0}), often=3, seldom=1)
    _shares(_pool("mirror", fixed=("a",)), ckpt_000005=1)
    lagged = _pool("lagged", max_active_lora=3, lag_range=(2, 4), fixed=("a",))
    _shares(lagged, ckpt_000002=1, ckpt_000003=1)  # active past ones in range
    _shares(_pool("random", max_active_lora=2, fixed=("a", "b")), a=1, b=1, ckpt_000004=1, ckpt_000005=1)
    _shares(_pool("random", 1, fixed={"often": 3.0, "seldom": 1.0}), often=3, seldom=1, ckpt_000000=1)


def test_modes_by_rating_prefer_the_nearer() -> None:
    """Never itself."""
    ratings = {"ckpt-000000": 25.0, "near": 25.0, "far": 25.0 + 25.0 / 6.0}
    by_quality = _pool("match-quality", 1, fixed=("near", "far"))
    by_distance = _pool("ts-dist", 1, fixed=("near", "far"), temperature=0.5)
    for pool in (by_quality, by_distance):
        for uid, mu in ratings.items():
            pool.apply(_rating(uid, mu))
    near, far = (TrueSkill().match_quality((25.0, 2.0), (ratings[uid], 2.0)) for uid in ("near", "far"))
    _shares(by_quality, near=near, far=far)
    _shares(by_distance, near=math.e**2, far=1)  # one beta apart at temperature 1/2


def test_fixed_without_opponents_is_an_error() -> None:
    pool = _pool("fixed")
    with pytest.raises(ConfigError, match="'fixed' needs fixed opponents"):
        pool.validate()
    with pytest.raises(ConfigError, match="'fixed' needs fixed opponents"):
        pool.sample("ckpt-000005", random.Random(0))
    pool.add_fixed("a")
    pool.validate()


@pytest.mark.parametrize("mode", ["lagged", "match-quality", "ts-dist", "exploration"])
def test_the_newest_is_mirrored_while_there_is_nobody_else(mode: str) -> None:
    assert _draws(_pool(mode, 1), 20).keys() == {"ckpt-000000"}
    if mode == "lagged":
        assert _draws(_pool("lagged", 3, lag_range=(5, 6)), 20).keys() == {"ckpt-000002"}


def test_ratings_of_the_environment_come_before_overall_ones() -> None:
    pool = _pool("ts-dist", 1, fixed=("a", "b"), temperature=0.01)
    for uid, mu in (("ckpt-000000", 25.0), ("a", 25.0), ("b", 40.0)):
        pool.apply(_rating(uid, mu))
    pool.apply(_rating("a", 60.0, env_id="Tak"))
    assert _draws(pool).keys() == {"a"}
    assert _draws(pool, env_id="Tak").keys() == {"b"}


@pytest.mark.parametrize("mode", ["match-quality", "ts-dist"])
def test_opponents_immeasurably_far_away_can_still_be_drawn(mode: str) -> None:
    pool = _pool(mode, 1, fixed=("a", "b"))
    pool.apply(_rating("a", 1e6))
    pool.apply(_rating("b", -1e6))
    assert set(_draws(pool)) <= {"a", "b"}


def test_the_choice_depends_on_the_generator_alone() -> None:
    pool = _pool("random", fixed=("a",))
    state = random.getstate()
    first = [pool.sample("ckpt-000005", random.Random(9)) for _ in range(5)]
    assert len(set(first)) == 1
    assert random.getstate() == state


def test_an_older_rating_does_not_replace_a_newer_one() -> None:
    pool = _pool("ts-dist", 1)
    pool.apply(_rating("ckpt-000000", 30.0, games=9))
    pool.apply(_rating("ckpt-000000", 20.0, games=8))
    assert pool.rating("ckpt-000000") == Skill(30.0, 2.0)


def test_an_unrated_checkpoint_is_taken_for_its_parent() -> None:
    pool = _pool("ts-dist", 3)
    assert pool.rating("ckpt-000002") == Skill(25.0, 25.0 / 3.0)
    pool.apply(_rating("ckpt-000000", 31.0))
    assert pool.rating("ckpt-000002") == TrueSkill().inherited(31.0, 2.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_mode": "self-play"}, "unknown opponent sampling 'self-play'; known: fixed, mirror"),
        ({"max_active_lora": 0}, "max_active_lora is 0"),
        ({"sample_mode": "lagged", "max_active_lora": 1}, "needs at least 2"),
        ({"lag_range": (0, 3)}, "lag_range"),
        ({"lag_range": (3, 2)}, "lag_range"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_the_constructor_checks(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelPool(**options)


# -- outcomes ---------------------------------------------------------------------------------


def test_a_training_game_is_explored_once_and_one_of_the_evaluation_never() -> None:
    pool = _pool("random", 1, fixed=("a",))
    seats = {0: ("ckpt-000000", 1.0), 1: ("a", -1.0)}
    pool.apply(make_outcome(0, seats, split="eval", actions=["x", "y", "z"]))
    assert pool.exploration.coverage() == {}
    for _ in range(2):
        pool.apply(make_outcome(0, seats, actions=["[1]", "[2]", "[3]", "[4]"]))
    assert pool.exploration.coverage() == {"Env-v0": 2}


def test_exploration_prefers_opponents_whose_games_are_new() -> None:
    pool = _pool("exploration", 1, fixed=("fresh", "stale"))
    for index in range(40):
        stale = index % 2 == 0
        actions = ["a", "b", "c", "d"] if stale else [f"{index}-{move}" for move in range(4)]
        opponent = "stale" if stale else "fresh"
        seats = {0: ("ckpt-000000", 1.0), 1: (opponent, -1.0)}
        pool.apply(make_outcome(index, seats, actions=actions))
    assert pool.exploration.novelty("fresh", "Env-v0") == 1.0
    assert pool.exploration.novelty("stale", "Env-v0") == pytest.approx(1 / 20)
    draws = _draws(pool, 10_000, env_id="Env-v0")
    assert draws["stale"] / 10_000 == pytest.approx(0.06 / (0.06 + 1.01), abs=0.02)


def test_novelty_by_hand() -> None:
    tracker = ExplorationTracker(n=2, window=2, recent=2)
    assert tracker.novelty("a") == 1.0
    assert tracker.add("E", ["a"], ["1", "2", "3"]) == 1.0
    assert tracker.add("E", ["a"], ["1", "2", "4"]) == 0.5
    assert tracker.novelty("a", "E") == 0.75
    # The window holds two games: the first is forgotten with the third, its shared n-gram with neither.
    assert tracker.add("E", ["a"], ["9"]) == 1.0
    assert tracker.coverage() == {"E": 3}
    assert tracker.add("E", ["b"], ["2", "3"]) == 1.0
    assert tracker.add("E", ["b"], ["2", "3"]) == 0.0
    assert tracker.novelty("a", "E") == 0.75  # the mean of its last two, 0.5 and 1
    assert tracker.add("F", ["b"], ["2", "3"]) == 1.0
    assert tracker.novelty("b", "E") == 0.5
    assert tracker.novelty("b") == pytest.approx(2 / 3)
    assert tracker.add("E", ["b"], []) is None
    assert tracker.add("G", ["c"], ["ab", "c"]) == tracker.add("G", ["c"], ["a", "bc"]) == 1.0
