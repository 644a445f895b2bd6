"""The custom transformations of the reference documentation, run as they are printed there."""

import pytest

import unstable_stream.reward_transformations as retra
from tests.reward_transformations.trajectories import make_trajectory
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


def test_the_documented_examples_run_unchanged() -> None:
    names: dict[str, object] = {name: getattr(retra, name) for name in retra.__all__}
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


def test_the_quick_start_stack() -> None:
    final = retra.ComposeFinalRewardTransforms([retra.RoleAdvantageByEnvFormatter()])
    step = retra.ComposeStepRewardTransforms(
        [retra.RewardForFormat(1.5), retra.PenaltyForInvalidMove(1.0, -1.0)]
    )
    retra.ComposeSamplingRewardTransforms([retra.NormalizeRewardsByEnv(True)])
    steps = retra.RewardProcessor("run-a", final, step).handle(make_trajectory())
    assert [s.reward for s in steps if isinstance(s, Step)] == [3.5, 3.5]
