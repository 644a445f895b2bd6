"""Final-reward transformations: hand-worked numbers, properties, state."""

import json
import math
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstable_stream.errors import ConfigError
from unstable_stream.reward_transformations import (
    ComposeFinalRewardTransforms,
    FinalRewardTransform,
    RewardForFormat,
    RewardVector,
    RoleAdvantageByEnvFormatter,
    RoleAdvantageFormatter,
    WinDrawLossFormatter,
)

scores = st.floats(-1e6, 1e6)
vectors = st.dictionaries(st.integers(0, 7), scores, min_size=1)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({0: 0.7, 1: 0.2}, {0: 1.0, 1: -1.0}),
        ({0: -3.0, 1: -1.0}, {0: -1.0, 1: 1.0}),
        ({0: 5.0, 1: 5.0}, {0: 0.0, 1: 0.0}),
        ({0: 4.0}, {0: 1.0}),
        ({0: 0.0}, {0: 0.0}),
        ({0: -0.1}, {0: -1.0}),
        ({0: 1.0, 1: 3.0, 2: 2.0}, {0: -1.0, 1: 1.0, 2: -1.0}),
        ({0: 3.0, 1: 3.0, 2: 2.0}, {0: 0.0, 1: 0.0, 2: -1.0}),
        ({0: 2.0, 1: 2.0, 2: 2.0}, {0: 0.0, 1: 0.0, 2: 0.0}),
        ({}, {}),
    ],
)
def test_win_draw_loss(raw: dict[int, float], expected: dict[int, float]) -> None:
    assert WinDrawLossFormatter()(raw) == expected


def test_a_shared_win_is_a_win_when_asked_for() -> None:
    team_game = {0: 1.0, 1: 1.0, 2: -1.0}
    assert WinDrawLossFormatter(shared_win=True)(team_game) == {0: 1.0, 1: 1.0, 2: -1.0}
    assert WinDrawLossFormatter(shared_win=True)({0: 1.0, 1: 1.0}) == {0: 0.0, 1: 0.0}


@given(vectors)
def test_win_draw_loss_does_not_depend_on_the_order_of_seats(x: dict[int, float]) -> None:
    result = WinDrawLossFormatter()(x)
    reversed_x = dict(reversed(x.items()))
    assert WinDrawLossFormatter()(reversed_x) == result
    assert WinDrawLossFormatter()(result) == result  # a map onto {-1, 0, 1} that keeps it
    assert list(result.values()).count(1.0) <= 1


def test_role_advantage_subtracts_the_baseline_before_this_reward_enters_it() -> None:
    transform = RoleAdvantageFormatter(tau=0.5)
    # The ancestor updated first and would answer 0.5 and -0.5 here.
    assert transform({0: 1.0, 1: -1.0}) == {0: 1.0, 1: -1.0}
    assert transform({0: 1.0, 1: -1.0}) == {0: 0.5, 1: -0.5}
    assert transform({0: 0.0, 1: 0.0}) == {0: -0.75, 1: 0.75}
    assert transform.role_advantage == {0: 0.375, 1: -0.375}


def test_baselines_learn_only_from_trained_seats() -> None:
    transform = RoleAdvantageFormatter(tau=0.5)
    assert transform(RewardVector({0: 1.0, 1: -1.0}, frozenset({1}))) == {0: 1.0, 1: -1.0}
    assert transform.role_advantage == {1: -0.5}
    assert transform(RewardVector({0: 1.0, 1: -1.0}, frozenset({0}))) == {0: 1.0, 1: -0.5}
    assert transform.role_advantage == {0: 0.5, 1: -0.5}


def test_a_baseline_by_dealt_role_follows_the_role_to_its_seat() -> None:
    transform = RoleAdvantageFormatter(tau=0.5, by="role")
    everyone = frozenset(range(3))
    first = RewardVector({0: 1.0, 1: -1.0, 2: 0.0}, everyone, {0: "Mafia", 1: "Villager", 2: "Villager"})
    assert transform(first) == {0: 1.0, 1: -1.0, 2: 0.0}
    # Both villagers move their one baseline once, by their mean: 0.5 * 0 + 0.5 * -0.5.
    assert transform.role_advantage == {"Mafia": 0.5, "Villager": -0.25}
    second = RewardVector({0: 1.0, 1: 1.0, 2: -1.0}, everyone, {2: "Mafia", 0: "Villager", 1: "Villager"})
    assert transform(second) == {0: 1.25, 1: 1.25, 2: -1.5}
    assert transform.role_advantage == {"Mafia": -0.25, "Villager": 0.375}


def test_by_role_a_seat_without_one_has_its_own_baseline_and_the_untrained_teach_nothing() -> None:
    transform = RoleAdvantageByEnvFormatter(tau=0.5, by="role")
    x = RewardVector({0: 1.0, 1: -1.0, 2: 0.5}, frozenset({0, 2}), {0: "1", 1: "Villager"})
    transform(x, "A")
    assert transform.role_advantage_by_env == {"A": {"1": 0.5, 2: 0.25}}
    resumed = RoleAdvantageByEnvFormatter(tau=0.5, by="role")
    resumed.load_state(json.loads(json.dumps(transform.state())))
    assert resumed.role_advantage_by_env == transform.role_advantage_by_env
    by_seat = RoleAdvantageByEnvFormatter(tau=0.5)
    by_seat(x, "A")
    assert by_seat.role_advantage_by_env == {"A": {0: 0.5, 2: 0.25}}


def test_baselines_by_environment_are_apart() -> None:
    transform = RoleAdvantageByEnvFormatter(default_role_adv=0.25, tau=1.0)
    assert transform({0: 1.0}, "A") == {0: 0.75}
    assert transform({0: 1.0}, "B") == {0: 0.75}
    assert transform({0: 1.0}, "A") == {0: 0.0}
    assert transform({0: 1.0}) == {0: 0.75}


def _stack() -> ComposeFinalRewardTransforms:
    return ComposeFinalRewardTransforms(
        [WinDrawLossFormatter(), RoleAdvantageFormatter(), RoleAdvantageByEnvFormatter()]
    )


@given(st.lists(st.tuples(vectors, st.sampled_from(["A", "B"])), max_size=20))
def test_role_advantage_state_survives_json(games: list[tuple[dict[int, float], str]]) -> None:
    live = _stack()
    half = len(games) // 2
    for x, env_id in games[:half]:
        live(x, env_id)
    resumed = _stack()
    resumed.load_state(json.loads(json.dumps(live.state())))
    for x, env_id in games[half:]:
        result = live(x, env_id)
        assert resumed(x, env_id) == result
        assert all(map(math.isfinite, result.values()))
    assert resumed.state() == live.state()


class _Plain(FinalRewardTransform):
    def __init__(self, result: dict[int, float]) -> None:
        self.result = result

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        return self.result


@pytest.mark.parametrize(("by", "learned"), [("seat", {0: 0.5}), ("role", {"Mafia": 0.5})])
def test_trained_seats_and_roles_survive_a_transformation_that_returns_a_plain_dict(
    by: Literal["seat", "role"], learned: dict[int | str, float]
) -> None:
    role = RoleAdvantageFormatter(tau=1.0, by=by)
    stack = ComposeFinalRewardTransforms([_Plain({0: 0.5, 1: -0.5}), role])
    stack(RewardVector({0: 1.0, 1: -1.0}, frozenset({0}), {0: "Mafia"}))
    assert role.role_advantage == learned


@pytest.mark.parametrize("result", [{0: 1.0}, {0: math.nan, 1: 0.0}, {0: 1.0, 1: math.inf}, {}])
def test_a_stack_names_the_transformation_that_broke_the_vector(result: dict[int, float]) -> None:
    with pytest.raises(ConfigError, match=r"_Plain turned rewards .* expected a finite number for each"):
        ComposeFinalRewardTransforms([_Plain(result)])({0: 1.0, 1: -1.0}, "Env")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(({"tau": tau}, "RoleAdvantageByEnvFormatter: tau is") for tau in (0.0, -0.1, 1.1, math.nan)),
        ({"by": "player"}, "by is 'player', expected 'seat', 'role' or 'opponent'"),
        ({"default_role_adv": math.inf}, "default_role_adv is inf, not finite"),
    ],
)
def test_settings_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RoleAdvantageByEnvFormatter(**arguments)


def test_a_stack_refuses_transformations_of_another_kind() -> None:
    with pytest.raises(ConfigError, match="FinalRewardTransform"):
        ComposeFinalRewardTransforms([RewardForFormat()])


def test_state_is_refused_where_there_is_none() -> None:
    with pytest.raises(ValueError, match="keeps no state"):
        WinDrawLossFormatter().load_state({"baselines": {}})
    with pytest.raises(ValueError, match="state of 0 transformations given to a composition of 1"):
        ComposeFinalRewardTransforms([WinDrawLossFormatter()]).load_state({"stages": []})
