"""Step- and sampling-reward transformations: hand-worked numbers and the safe corners."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reward_transformations.trajectories import make_trajectory, make_turn
from unstable_stream.errors import ConfigError
from unstable_stream.events import Step
from unstable_stream.reward_transformations import (
    ComposeSamplingRewardTransforms,
    ComposeStepRewardTransforms,
    Discount,
    NormalizeRewards,
    NormalizeRewardsByEnv,
    PenaltyForInvalidMove,
    RewardForFormat,
    RewardProcessor,
    Sample,
    StepRewardTransform,
    TrajectoryView,
)


def test_the_view_offers_the_documented_names() -> None:
    turns = [make_turn(0), make_turn(1, valid=False, format_feedback={"correct_answer_format": False})]
    view = TrajectoryView(make_trajectory(seat=1, trained_seats=(1,), turns=turns))
    assert view.pid == 1
    assert view.env_id == "Env-v0"
    assert view.num_turns == 2
    assert view.obs == ["board 0", "board 1"]
    assert view.actions == ["I play [0]", "I play [1]"]
    assert view.extracted_actions == ["[0]", "[1]"]
    assert view.infos == [{"n": 0}, {"n": 1}]
    assert view.final_rewards == {0: 1.0, 1: -1.0}
    assert view.format_feedbacks == [
        {"correct_answer_format": True, "invalid_move": False},
        {"correct_answer_format": False, "invalid_move": True},
    ]
    assert view.event.game_index == 0


def test_format_and_invalid_move_rewards_add_up() -> None:
    turns = [
        make_turn(0),
        make_turn(1, format_feedback={"correct_answer_format": False}),
        make_turn(2, format_feedback={"other": True}, valid=False),
    ]
    view = TrajectoryView(make_trajectory(turns=turns))
    stack = ComposeStepRewardTransforms([RewardForFormat(1.5), PenaltyForInvalidMove(1.0, -1.0)])
    assert [stack(view, index, 10.0) for index in range(3)] == [12.5, 11.0, 9.0]
    assert [RewardForFormat(0.5, -0.25)(view, index, 0.0) for index in range(3)] == [0.5, -0.25, -0.25]
    assert ComposeStepRewardTransforms([])(view, 0, -1.0) == -1.0


def test_earlier_turns_are_discounted() -> None:
    view = TrajectoryView(make_trajectory(turns=[make_turn(index) for index in range(3)]))
    assert [Discount(0.5)(view, index, -2.0) for index in range(3)] == [-0.5, -1.0, -2.0]
    assert [Discount(1.0)(view, index, -2.0) for index in range(3)] == [-2.0, -2.0, -2.0]
    assert [Discount(0.0)(view, index, -2.0) for index in range(3)] == [0.0, 0.0, -2.0]
    for gamma in (-0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match=r"Discount: gamma is .*, expected 0 to 1"):
            Discount(gamma)


class _Broken(StepRewardTransform):
    def __init__(self, result: object) -> None:
        self.result = result

    def __call__(self, trajectory: TrajectoryView, step_index: int, base_reward: float) -> float:
        return self.result  # type: ignore[return-value]


@pytest.mark.parametrize("result", [None, math.nan, -math.inf, "1"])
def test_a_step_reward_that_is_no_number_is_named(result: object) -> None:
    stack = ComposeStepRewardTransforms([RewardForFormat(), _Broken(result)])
    with pytest.raises(ConfigError, match=r"_Broken turned reward 1\.0 of turn 0 into"):
        stack(TrajectoryView(make_trajectory()), 0, 1.0)


@pytest.mark.parametrize("arguments", [{"reward": math.nan}, {"penalty": math.inf}])
def test_bonus_arguments_are_checked(arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"RewardForFormat: {next(iter(arguments))}"):
        RewardForFormat(**arguments)


def _samples(rewards: list[float], env_ids: list[str] | None = None) -> list[Sample]:
    step = RewardProcessor("run-a").handle(make_trajectory())[0]
    assert isinstance(step, Step)
    envs = env_ids or ["Env-v0"] * len(rewards)
    return [Sample(step, reward, env_id) for reward, env_id in zip(rewards, envs, strict=True)]


def _rewards(samples: list[Sample]) -> list[float]:
    return [sample.reward for sample in samples]


def test_a_sample_starts_at_the_shaped_reward_and_leaves_the_event_alone() -> None:
    step = RewardProcessor("run-a", step=ComposeStepRewardTransforms([RewardForFormat(0.5)])).handle(
        make_trajectory()
    )[0]
    assert isinstance(step, Step)
    sample = Sample.from_step(step)
    assert (sample.reward, sample.env_id, sample.pid) == (1.5, "Env-v0", 0)
    assert sample.step_id == step.event_id
    sample.reward = 9.0
    assert step.reward == 1.5


def test_normalising_by_hand() -> None:
    assert _rewards(NormalizeRewards()(_samples([1.0, 2.0, 6.0]))) == [-2.0, -1.0, 3.0]
    scored = _rewards(NormalizeRewards(z_score=True)(_samples([1.0, 3.0])))
    assert scored == pytest.approx([-1.0, 1.0], abs=1e-7)
    by_env = NormalizeRewardsByEnv(True)(_samples([1.0, 10.0, 3.0, 30.0], ["A", "B", "A", "B"]))
    assert _rewards(by_env) == pytest.approx([-1.0, -1.0, 1.0, 1.0], abs=1e-7)


@pytest.mark.parametrize("transform", [NormalizeRewards, NormalizeRewardsByEnv])
@pytest.mark.parametrize("z_score", [False, True])
def test_equal_rewards_single_samples_and_nothing(transform: type[NormalizeRewards], z_score: bool) -> None:
    # The ancestor divides by a deviation of 0 here and answers NaN.
    normalize = transform(z_score=z_score)
    assert _rewards(normalize(_samples([0.1] * 3))) == [0.0, 0.0, 0.0]
    assert _rewards(normalize(_samples([7.0]))) == [0.0]
    assert normalize([]) == []


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.booleans())
def test_normalised_rewards_are_finite_centred_and_do_not_depend_on_order(
    rewards: list[float], z_score: bool
) -> None:
    stack = ComposeSamplingRewardTransforms([NormalizeRewards(z_score)])
    result = _rewards(stack(_samples(rewards)))
    assert all(map(math.isfinite, result))
    largest = max(map(abs, rewards))
    assert math.fsum(result) == pytest.approx(0.0, abs=1e-7 * max(1.0, largest))
    backwards = _rewards(stack(_samples(rewards[::-1])))
    assert backwards == pytest.approx(result[::-1], abs=0.0, rel=1e-12)
    if z_score and statistics.pstdev(rewards) > 1e-3:
        assert statistics.pstdev(result) == pytest.approx(1.0, rel=1e-4)
    in_order = [new for _, new in sorted(zip(rewards, result, strict=True))]
    assert in_order == sorted(result)  # who earned more still does
