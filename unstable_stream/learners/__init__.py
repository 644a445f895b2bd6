"""The learner: the trained policy, an optimizer and durable checkpoints. The caller passes the algorithm."""

from unstable_stream.learners.checkpoint import (
    CheckpointInfo,
    CheckpointState,
    LoadedCheckpoint,
    attempts,
    load_checkpoint,
    prune_optimizer_states,
    remove_attempts,
    save_checkpoint,
)
from unstable_stream.learners.learning_rate import LrSchedule
from unstable_stream.learners.lora import LoraSettings
from unstable_stream.learners.standard_learner import Algorithm, Sample, StandardLearner, UpdateResult

__all__ = [
    "Algorithm",
    "CheckpointInfo",
    "CheckpointState",
    "LoadedCheckpoint",
    "LoraSettings",
    "LrSchedule",
    "Sample",
    "StandardLearner",
    "UpdateResult",
    "attempts",
    "load_checkpoint",
    "prune_optimizer_states",
    "remove_attempts",
    "save_checkpoint",
]
