"""Change rewards on their way from the environment to the learner.

Three kinds, applied in this order: *final* (once per game, on all seats' rewards), *step* (each turn of
a trajectory), *sampling* (a batch, just before it is trained on). The first two run in the reward
processor and are part of the log; the third runs in the learner. A new one is a subclass with a
``__call__``; name it in the configuration as ``module:Class``.
"""

from unstable_stream.reward_transformations.final import (
    ComposeFinalRewardTransforms,
    FinalRewardTransform,
    RewardVector,
    RoleAdvantageByEnvFormatter,
    RoleAdvantageFormatter,
    WinDrawLossFormatter,
    build_final,
)
from unstable_stream.reward_transformations.reward_processor import (
    RewardProcessor,
    expected_step_ids,
    expected_steps_of,
)
from unstable_stream.reward_transformations.sampling import (
    ComposeSamplingRewardTransforms,
    GroupRelativeAdvantage,
    LeaveOneOutAdvantage,
    NormalizeRewards,
    NormalizeRewardsByEnv,
    Sample,
    SamplingRewardTransform,
    build_sampling,
)
from unstable_stream.reward_transformations.step import (
    ComposeStepRewardTransforms,
    Discount,
    PenaltyForInvalidMove,
    RewardForFormat,
    StepRewardTransform,
    TrajectoryView,
    build_step,
)

__all__ = [
    "ComposeFinalRewardTransforms",
    "ComposeSamplingRewardTransforms",
    "ComposeStepRewardTransforms",
    "Discount",
    "FinalRewardTransform",
    "GroupRelativeAdvantage",
    "LeaveOneOutAdvantage",
    "NormalizeRewards",
    "NormalizeRewardsByEnv",
    "PenaltyForInvalidMove",
    "RewardForFormat",
    "RewardProcessor",
    "RewardVector",
    "RoleAdvantageByEnvFormatter",
    "RoleAdvantageFormatter",
    "Sample",
    "SamplingRewardTransform",
    "StepRewardTransform",
    "TrajectoryView",
    "WinDrawLossFormatter",
    "build_final",
    "build_sampling",
    "build_step",
    "expected_step_ids",
    "expected_steps_of",
]
