"""Change rewards on their way from the environment to the learner.

Three kinds, applied in this order: *final* (once per game, on all seats' rewards), *step* (each turn of
a trajectory), *sampling* (a batch, just before it is trained on). The first two run in the reward
processor and are part of the log; the third runs in the learner. A new one is a subclass with a
``__call__``; name it in the configuration as ``module:Class``.
"""

from unstable_stream.reward_transformations.final import (
    ComposeFinalRewardTransforms as ComposeFinalRewardTransforms,
)
from unstable_stream.reward_transformations.final import FinalRewardTransform as FinalRewardTransform
from unstable_stream.reward_transformations.final import RewardVector as RewardVector
from unstable_stream.reward_transformations.final import (
    RoleAdvantageByEnvFormatter as RoleAdvantageByEnvFormatter,
)
from unstable_stream.reward_transformations.final import RoleAdvantageFormatter as RoleAdvantageFormatter
from unstable_stream.reward_transformations.final import WinDrawLossFormatter as WinDrawLossFormatter
from unstable_stream.reward_transformations.final import build_final as build_final
from unstable_stream.reward_transformations.reward_processor import RewardProcessor as RewardProcessor
from unstable_stream.reward_transformations.reward_processor import expected_step_ids as expected_step_ids
from unstable_stream.reward_transformations.reward_processor import expected_steps_of as expected_steps_of
from unstable_stream.reward_transformations.sampling import BranchAdvantage as BranchAdvantage
from unstable_stream.reward_transformations.sampling import (
    ComposeSamplingRewardTransforms as ComposeSamplingRewardTransforms,
)
from unstable_stream.reward_transformations.sampling import GroupRelativeAdvantage as GroupRelativeAdvantage
from unstable_stream.reward_transformations.sampling import LeaveOneOutAdvantage as LeaveOneOutAdvantage
from unstable_stream.reward_transformations.sampling import NormalizeRewards as NormalizeRewards
from unstable_stream.reward_transformations.sampling import NormalizeRewardsByEnv as NormalizeRewardsByEnv
from unstable_stream.reward_transformations.sampling import Sample as Sample
from unstable_stream.reward_transformations.sampling import SamplingRewardTransform as SamplingRewardTransform
from unstable_stream.reward_transformations.sampling import build_sampling as build_sampling
from unstable_stream.reward_transformations.step import (
    ComposeStepRewardTransforms as ComposeStepRewardTransforms,
)
from unstable_stream.reward_transformations.step import Discount as Discount
from unstable_stream.reward_transformations.step import PenaltyForInvalidMove as PenaltyForInvalidMove
from unstable_stream.reward_transformations.step import PenaltyForLength as PenaltyForLength
from unstable_stream.reward_transformations.step import RewardForFormat as RewardForFormat
from unstable_stream.reward_transformations.step import StepRewardTransform as StepRewardTransform
from unstable_stream.reward_transformations.step import TrajectoryView as TrajectoryView
from unstable_stream.reward_transformations.step import build_step as build_step
