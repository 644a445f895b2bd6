"""Step- and sampling-reward transformations: hand-worked numbers and the safe corners."""

import math
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reward_transformations.trajectories import make_trajectory, make_turn
from unstable_stream.errors import ConfigError
from unstable_stream.events import Step, pack_tokens
from unstable_stream.reward_transformations import (
    BranchAdvantage,
    ComposeSamplingRewardTransforms,
    ComposeStepRewardTransforms,
    Discount,
    GroupRelativeAdvantage,
    LeaveOneOutAdvantage,
    NormalizeRewards,
    NormalizeRewardsByEnv,
    PenaltyForInvalidMove,
    PenaltyForLength,
    RewardForFormat,
    RewardProcessor,
    Sample,
    SamplingRewardTransform,
    StepRewardTransform,
    TrajectoryView,
    build_sampling,
)


def test_the_view_offers_the_documented_names() -> None:
    turns = [make_turn(0), make_turn(1, valid=False, format_feedback={"correct_answer_format": False})]
    view = TrajectoryView(make_trajectory(seat=1, trained_seats=(1,), turns=turns))
    assert (view.pid, view.env_id, view.num_turns) == (1, "Env-v0", 2)
    assert (view.obs, view.actions) == (["board 0", "board 1"], ["I play [0]", "I play [1]"])
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


def test_answers_near_the_limit_are_punished_more_and_more() -> None:
    turns = [make_turn(0, completion=range(length)) for length in (6, 8, 9, 10, 11)]
    view = TrajectoryView(make_trajectory(turns=turns))
    shaped = [PenaltyForLength(10, 4, -2.0)(view, index, 1.0) for index in range(5)]
    assert shaped == [1.0, 0.0, -0.5, -1.0, -1.0]
    with pytest.raises(ConfigError, match=r"margin is 11 and penalty -1\.0; expected 1 to max_tokens, 10"):
        PenaltyForLength(10, 11)


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


def _step(stack: ComposeStepRewardTransforms | None = None) -> Step:
    step = RewardProcessor("run-a", step=stack).handle(make_trajectory())[0]
    assert isinstance(step, Step)
    return step


def _samples(rewards: list[float], env_ids: list[str] | None = None) -> list[Sample]:
    step = _step()
    envs = env_ids or ["Env-v0"] * len(rewards)
    return [Sample(step, reward, env_id) for reward, env_id in zip(rewards, envs, strict=True)]


def _rewards(samples: list[Sample]) -> list[float]:
    return [sample.reward for sample in samples]


def test_a_sample_starts_at_the_shaped_reward_and_leaves_the_event_alone() -> None:
    step = _step(ComposeStepRewardTransforms([RewardForFormat(0.5)]))
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


@pytest.mark.parametrize(
    "normalize",
    [
        *(kind(z_score) for kind in (NormalizeRewards, NormalizeRewardsByEnv) for z_score in (False, True)),
        GroupRelativeAdvantage(),
        LeaveOneOutAdvantage(),
    ],
)
def test_equal_rewards_single_samples_and_nothing(normalize: SamplingRewardTransform) -> None:
    # The ancestor divides by a deviation of 0 here and answers NaN.
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


# -- groups ------------------------------------------------------------------------------------------

REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=8)


def advantages(
    transform: SamplingRewardTransform, rewards: list[float], seats: list[int] | None = None
) -> list[float]:
    batch = _samples(rewards)
    for sample, seat in zip(batch, seats or [0] * len(rewards), strict=True):
        sample.step = msgspec.structs.replace(sample.step, seat=seat)
    return _rewards(transform(batch))


def test_three_rewards_by_hand() -> None:
    rewards = [1.0, 2.0, 6.0]
    deviation = (14 / 3) ** 0.5
    assert advantages(GroupRelativeAdvantage(normalize=False), rewards) == [-2.0, -1.0, 3.0]
    expected = [-2 / deviation, -1 / deviation, 3 / deviation]
    assert advantages(GroupRelativeAdvantage(), rewards) == pytest.approx(expected, rel=1e-5)
    assert advantages(LeaveOneOutAdvantage(), rewards) == [1 - 4, 2 - 3.5, 6 - 1.5]


def test_answers_to_a_position_are_compared_with_each_other_alone() -> None:
    batch = _samples([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    answers = (("game:2", 1.0), ("game:2", -1.0), (None, 7.0), ("game:2", 1.0), ("game:4", 1.0), (None, 1.0))
    for sample, (branch, result) in zip(batch, answers, strict=True):
        sample.step = msgspec.structs.replace(sample.step, branch=branch, raw_reward=result)
    assert _rewards(BranchAdvantage()(batch)) == pytest.approx([1.0, -2.0, 0.3, 1.0, 0.0, 0.6])


@pytest.mark.parametrize("transform", [GroupRelativeAdvantage(), LeaveOneOutAdvantage()])
def test_each_role_has_its_own_baseline(transform: SamplingRewardTransform) -> None:
    """Seat 0 always wins: what it does well is only seen beside other turns of seat 0."""
    assert advantages(transform, [1.0, -1.0, 1.0, -1.0], [0, 1, 0, 1]) == [0.0] * 4
    mixed = advantages(transform, [1.0, -1.0, 0.0, -1.0], [0, 1, 0, 1])
    assert mixed[0] > 0 > mixed[2]
    assert mixed[1] == mixed[3] == 0.0


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
    others = [statistics.fmean(rewards[:place] + rewards[place + 1 :]) for place in range(len(rewards))]
    expected = [reward - other for reward, other in zip(rewards, others, strict=True)]
    assert advantages(LeaveOneOutAdvantage(), rewards) == pytest.approx(expected, abs=1e-9)


def test_groups_by_prompt_are_those_of_the_papers() -> None:
    batch = _samples([1.0, 9.0, 3.0])
    batch[1].step = msgspec.structs.replace(batch[1].step, prompt_token_ids=pack_tokens([7]))
    assert _rewards(GroupRelativeAdvantage(by=["prompt"], normalize=False)(batch)) == [-1.0, 0.0, 1.0]


def test_they_are_named_in_a_configuration() -> None:
    stack = build_sampling([{"type": "LeaveOneOutAdvantage", "by": ["env", "turn"]}])
    assert advantages(stack, [1.0, 3.0], [0, 1]) == [-2.0, 2.0]
    expected = r"LeaveOneOutAdvantage\(by=\['colour'\]\): expected one or more of env, seat, turn, game, pr"
    with pytest.raises(ConfigError, match=expected):
        LeaveOneOutAdvantage(by=["colour"])
    with pytest.raises(ConfigError, match="expected one or more of"):
        GroupRelativeAdvantage(by=[])
