"""The custom code of the reference documentation, run as it is printed there."""

from dataclasses import asdict
from typing import Any

import pytest

import unstable_stream.reward_transformations as retra
from tests.reward_transformations.trajectories import make_trajectory, make_turn
from unstable_stream.algorithms.update_decisions import decide_batch
from unstable_stream.errors import ConfigError
from unstable_stream.events import Step

FINAL = '''
class ScaleRewardTransform(FinalRewardTransform):
    """Multiply every reward by *alpha*."""
    def __init__(self, alpha: float = 0.1):
        self.alpha = alpha
    def __call__(self, x, env_id=None):
        return {pid: r * self.alpha for pid, r in x.items()}

# Register it:
transforms = ComposeFinalRewardTransforms([
    WinDrawLossFormatter(),
    ScaleRewardTransform(alpha=0.2),
])
'''

STEP = '''
class DiscountFutureRewards(StepRewardTransform):
    """Apply γ^t discount to every intermediate reward."""
    def __init__(self, gamma: float = 0.99):
        self.gamma = gamma
    def __call__(self, trajectory, step_index, base_reward):
        return base_reward * (self.gamma ** step_index)

step_transforms = ComposeStepRewardTransforms([
    RewardForFormat(reward=0.05, penalty=-0.05),
    DiscountFutureRewards(gamma=0.97),
])
'''

SAMPLING = '''
class ClampRewards(SamplingRewardTransform):
    """Clip rewards into [min_r, max_r]."""
    def __init__(self, min_r: float = -1.0, max_r: float = 1.0):
        self.min_r, self.max_r = min_r, max_r
    def __call__(self, steps, env_id=None):
        for s in steps:
            s.reward = max(self.min_r, min(self.max_r, s.reward))
        return steps

sampling_transforms = ComposeSamplingRewardTransforms([
    NormalizeRewardsByEnv(z_score=True),
    ClampRewards(min_r=-2, max_r=2),
])
'''

CURIOSITY = """
from dataclasses import dataclass

@dataclass
class CuriosityStep:
    pid: int
    obs: str
    act: str
    reward: float
    curiosity: float  # ğ your extra field
"""


def test_the_documented_examples_run_unchanged() -> None:
    names: dict[str, object] = dict(vars(retra))
    for source in (FINAL, STEP, SAMPLING):
        exec(source, names)  # the point of the test: the printed text itself
    final, step, sampling = (names[n] for n in ("transforms", "step_transforms", "sampling_transforms"))
    assert isinstance(final, retra.ComposeFinalRewardTransforms)
    assert isinstance(step, retra.ComposeStepRewardTransforms)
    assert isinstance(sampling, retra.ComposeSamplingRewardTransforms)

    processor = retra.RewardProcessor("run-a", final, step)
    steps = [s for s in processor.handle(make_trajectory(rewards={0: 3.0, 1: 1.0})) if isinstance(s, Step)]
    assert [s.final_reward for s in steps] == [0.2, 0.2]
    assert [s.reward for s in steps] == pytest.approx([0.25, 0.25 * 0.97])

    # One reward far from twenty others has a z-score of about 4.4: the clamp must see it.
    samples = [retra.Sample(steps[0], reward, "Env-v0") for reward in [0.0] * 20 + [1.0]]
    result = sampling(samples)
    assert result[-1].reward == 2
    assert result[0].reward == pytest.approx(-0.2236, abs=1e-4)


class WithoutEnv(retra.SamplingRewardTransform):
    """Called with the steps alone, as the documentation's API says."""

    def __call__(self, steps: list[retra.Sample]) -> list[retra.Sample]:  # type: ignore[override]
        for each in steps:
            each.reward += len(each.obs)
        return steps


class FinalWithoutEnv(retra.FinalRewardTransform):
    def __call__(self, x: dict[int, float]) -> dict[int, float]:  # type: ignore[override]
        return {seat: -reward for seat, reward in x.items()}


def negated(x: dict[int, float]) -> dict[int, float]:
    return {seat: -reward for seat, reward in x.items()}


def as_given(steps: list[retra.Sample]) -> list[retra.Sample]:
    return steps


def steps_with_texts() -> list[Step]:
    turns = [make_turn(0), make_turn(1, valid=False)]
    made = retra.RewardProcessor("run-a", step_texts=True).handle(make_trajectory(turns=turns))
    return [step for step in made if isinstance(step, Step)]


def test_transformations_may_take_no_environment() -> None:
    samples = [retra.Sample.from_step(step) for step in steps_with_texts()]
    stack = retra.ComposeSamplingRewardTransforms([WithoutEnv(), retra.NormalizeRewards()])
    assert [each.reward for each in stack(samples)] == [0.0, 0.0]
    assert retra.build_sampling([f"{__name__}:as_given"])(samples, "Env-v0") == samples
    final = retra.ComposeFinalRewardTransforms([FinalWithoutEnv()])
    assert final({0: 1.0, 1: -1.0}, "Env-v0") == {0: -1.0, 1: 1.0}
    assert retra.build_final([f"{__name__}:negated"])({0: 1.0}, "Env-v0") == {0: -1.0}


def test_a_sample_has_the_documented_fields_of_a_step() -> None:
    first, second = (retra.Sample.from_step(step) for step in steps_with_texts())
    assert (first.pid, first.obs, first.act, first.env_id) == (0, "board 0", "I play [0]", "Env-v0")
    assert (first.extracted_action, first.step_info, first.reward) == ("[0]", {"n": 0}, 1.0)
    assert second.format_feedback == {"correct_answer_format": True, "invalid_move": True}
    (bare, _) = retra.RewardProcessor("run-a").handle(make_trajectory())
    assert isinstance(bare, Step)
    with pytest.raises(ConfigError, match=r"carries no texts; set rewards\.step_texts = true"):
        _ = retra.Sample.from_step(bare).obs


def test_a_step_of_ones_own_reaches_the_algorithm() -> None:
    names: dict[str, Any] = {"__name__": __name__}
    exec(CURIOSITY, names)  # the point of the test: the printed text itself
    curiosity_step = names["CuriosityStep"]

    def curious(steps: list[retra.Sample]) -> list[Any]:
        return [curiosity_step(s.pid, s.obs, s.act, s.reward + 0.5, curiosity=len(s.act)) for s in steps]

    steps = steps_with_texts()
    samples = decide_batch(steps, 4, curious, lambda sample: "train").samples
    assert [sample.advantage for sample in samples] == [1.5, 1.5]
    assert all(isinstance(sample.shaped, curiosity_step) for sample in samples)
    first: Any = samples[0].shaped
    assert asdict(first) == {"pid": 0, "obs": "board 0", "act": "I play [0]", "reward": 1.5, "curiosity": 10}
    assert decide_batch(steps, 4, lambda given: given, lambda sample: "train").samples[0].shaped is None
    mistakes: tuple[Any, ...] = (lambda given: curious(given)[::-1], lambda given: [object()] * len(given))
    for wrong in mistakes:
        with pytest.raises(ConfigError, match="expected the same samples in the same order"):
            decide_batch(steps, 4, wrong, lambda sample: "train")
