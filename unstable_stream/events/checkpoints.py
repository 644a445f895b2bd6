"""Topic ``checkpoints``: written by the learner; read by the collector and the archive.

Weights never ride on a topic: the event says where they are and how to recognise them.
"""

from typing import Any

import msgspec

from unstable_stream.events.envelope import Event, Int64

__all__ = ["Checkpoint", "checkpoint_uid"]


def checkpoint_uid(iteration: int) -> str:
    """Return the uid of the checkpoint made by learner update ``iteration``; 0 is the initial policy."""
    return f"ckpt-{iteration:06d}"


class Checkpoint(Event, frozen=True, kw_only=True, tag="checkpoint"):
    """A saved policy. Natural key: iteration. Iteration 0 is the policy before any update."""

    TOPIC = "checkpoints"

    model_uid: str
    """The checkpoint."""
    iteration: int
    """Learner update that made it; 0: before any update."""
    path: str | None
    """Directory or URI of the adapter; ``None``: the base model without an adapter."""
    sha256: str | None = None
    """Digest of the adapter's weight file; ``None``: there is no file."""
    size_bytes: Int64 = 0
    """Size of the weight file, bytes."""
    base_model: str = ""
    """The model that the adapter belongs to."""
    lora: dict[str, Any] = msgspec.field(default_factory=dict)
    """LoRA configuration."""
    parent_uid: str | None = None
    """The checkpoint it was trained from; ``None``: it is the first."""
