"""Topic ``checkpoints``: written by the learner; read by the collector and the archive.

Weights never ride on a topic: the event says where they are and how to recognise them.
"""

from typing import Any

import msgspec

from unstable_stream.events.envelope import Event

__all__ = ["Checkpoint", "checkpoint_uid"]


def checkpoint_uid(iteration: int) -> str:
    """Return the uid of the checkpoint made by learner update ``iteration``; 0 is the initial policy."""
    return f"ckpt-{iteration:06d}"


class Checkpoint(Event, frozen=True, kw_only=True, tag="checkpoint"):
    """A saved policy. Natural key: iteration. Iteration 0 is the policy before any update."""

    TOPIC = "checkpoints"

    model_uid: str
    iteration: int
    """Learner update that made it."""
    path: str | None
    """Directory or URI of the adapter; ``None``: the base model without an adapter."""
    sha256: str | None = None
    """Digest of the adapter's weight file."""
    size_bytes: int = 0
    base_model: str = ""
    lora: dict[str, Any] = msgspec.field(default_factory=dict)
    parent_uid: str | None = None
