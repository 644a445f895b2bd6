"""A step-reward transformation of your own: early turns earn less than late ones.

[rewards]
step = [{ type = "examples/extensions/step_transformation.py:Discounted", gamma = 0.95 }]
"""

from unstable_stream.reward_transformations import StepRewardTransform, TrajectoryView


class Discounted(StepRewardTransform):
    def __init__(self, gamma: float = 0.99) -> None:
        self.gamma = gamma

    def __call__(self, trajectory: TrajectoryView, step_index: int, base_reward: float) -> float:
        turns_left = trajectory.num_turns - 1 - step_index
        return float(base_reward * self.gamma**turns_left)
