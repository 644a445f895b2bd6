"""The learner: the trained policy, an optimizer and durable checkpoints. The caller passes the algorithm."""

from unstable_stream.learners.checkpoint import (
    CheckpointInfo,
    CheckpointState,
    LoadedCheckpoint,
    attempts,
    copy_loadable,
    is_attempt,
    load_checkpoint,
    prune_optimizer_states,
    remove_attempts,
    save_checkpoint,
    saved_model,
)
from unstable_stream.learners.learning_rate import LrSchedule
from unstable_stream.learners.lora import LoraSettings
from unstable_stream.learners.merging import merge_adapter
from unstable_stream.learners.rank import Alone, Rank
from unstable_stream.learners.standard_learner import (
    Algorithm,
    LearnerSample,
    LearnerSettings,
    StandardLearner,
    UpdateResult,
)
from unstable_stream.learners.torch_rank import TorchRank

__all__ = [
    "Algorithm",
    "Alone",
    "CheckpointInfo",
    "CheckpointState",
    "LearnerSample",
    "LearnerSettings",
    "LoadedCheckpoint",
    "LoraSettings",
    "LrSchedule",
    "Rank",
    "StandardLearner",
    "TorchRank",
    "UpdateResult",
    "attempts",
    "copy_loadable",
    "is_attempt",
    "load_checkpoint",
    "merge_adapter",
    "prune_optimizer_states",
    "remove_attempts",
    "save_checkpoint",
    "saved_model",
]
