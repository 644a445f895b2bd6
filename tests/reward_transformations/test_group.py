"""Group-relative and leave-one-out advantages: by hand, and what must hold for any batch."""

import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reward_transformations.trajectories import make_trajectory
from unstable_stream.errors import ConfigError
from unstable_stream.events import Step, pack_tokens
from unstable_stream.reward_transformations import (
    GroupRelativeAdvantage,
    LeaveOneOutAdvantage,
    RewardProcessor,
    Sample,
    SamplingRewardTransform,
    build_sampling,
)

REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=8)


def advantages(
    transform: SamplingRewardTransform, rewards: list[float], seats: list[int] | None = None
) -> list[float]:
    step = RewardProcessor("run-a").handle(make_trajectory())[0]
    assert isinstance(step, Step)
    batch = [
        Sample(msgspec.structs.replace(step, seat=seat), reward, step.env_id)
        for reward, seat in zip(rewards, seats or [0] * len(rewards), strict=True)
    ]
    return [sample.reward for sample in transform(batch)]


def test_three_rewards_by_hand() -> None:
    rewards = [1.0, 2.0, 6.0]
    deviation = (14 / 3) ** 0.5
    assert advantages(GroupRelativeAdvantage(normalize=False), rewards) == [-2.0, -1.0, 3.0]
    expected = [-2 / deviation, -1 / deviation, 3 / deviation]
    assert advantages(GroupRelativeAdvantage(), rewards) == pytest.approx(expected, rel=1e-5)
    assert advantages(LeaveOneOutAdvantage(), rewards) == [1 - 4, 2 - 3.5, 6 - 1.5]


@pytest.mark.parametrize("transform", [GroupRelativeAdvantage(), LeaveOneOutAdvantage()])
def test_each_role_has_its_own_baseline(transform: SamplingRewardTransform) -> None:
    """Seat 0 always wins: what it does well is only seen beside other turns of seat 0."""
    assert advantages(transform, [1.0, -1.0, 1.0, -1.0], [0, 1, 0, 1]) == [0.0] * 4
    mixed = advantages(transform, [1.0, -1.0, 0.0, -1.0], [0, 1, 0, 1])
    assert mixed[0] > 0 > mixed[2]
    assert mixed[1] == mixed[3] == 0.0


@pytest.mark.parametrize("transform", [GroupRelativeAdvantage(), LeaveOneOutAdvantage()])
def test_groups_of_one_and_of_equals_teach_nothing(transform: SamplingRewardTransform) -> None:
    assert advantages(transform, [5.0, 3.0], [0, 1]) == [0.0, 0.0]
    assert advantages(transform, [0.1] * 3) == [0.0] * 3
    assert transform([]) == []


@given(rewards=REWARDS, shift=st.floats(-5, 5))
def test_a_groups_advantages_add_up_to_nothing_and_ignore_a_shift(rewards: list[float], shift: float) -> None:
    for transform in (GroupRelativeAdvantage(normalize=False), LeaveOneOutAdvantage()):
        found = advantages(transform, rewards)
        assert sum(found) == pytest.approx(0.0, abs=1e-6)
        moved = advantages(transform, [reward + shift for reward in rewards])
        assert moved == pytest.approx(found, abs=1e-6)


@given(rewards=REWARDS)
def test_leaving_one_out_is_what_it_says(rewards: list[float]) -> None:
    """The obvious way: the mean of the others, one after another."""
    expected = [
        reward - statistics.fmean(rewards[:place] + rewards[place + 1 :])
        for place, reward in enumerate(rewards)
    ]
    assert advantages(LeaveOneOutAdvantage(), rewards) == pytest.approx(expected, abs=1e-9)


def test_groups_by_prompt_are_those_of_the_papers() -> None:
    step = RewardProcessor("run-a").handle(make_trajectory())[0]
    assert isinstance(step, Step)
    other = msgspec.structs.replace(step, prompt_token_ids=pack_tokens([7]))
    batch = [Sample(each, reward, "E") for each, reward in ((step, 1.0), (other, 9.0), (step, 3.0))]
    found = GroupRelativeAdvantage(by=["prompt"], normalize=False)(batch)
    assert [sample.reward for sample in found] == [-1.0, 0.0, 1.0]


def test_they_are_named_in_a_configuration() -> None:
    stack = build_sampling([{"type": "LeaveOneOutAdvantage", "by": ["env", "turn"]}])
    assert advantages(stack, [1.0, 3.0], [0, 1]) == [-2.0, 2.0]
    expected = r"LeaveOneOutAdvantage\(by=\['colour'\]\): expected one or more of env, seat, turn, game, pr"
    with pytest.raises(ConfigError, match=expected):
        LeaveOneOutAdvantage(by=["colour"])
    with pytest.raises(ConfigError, match="expected one or more of"):
        GroupRelativeAdvantage(by=[])
