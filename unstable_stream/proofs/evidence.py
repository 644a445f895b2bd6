"""Read what both proofs rest on: the ends of a run's topics at one moment, and its checkpoint files."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from unstable_stream.events import Checkpoint, GameOutcome, GameStarted, Trajectory
from unstable_stream.log.port import EventLog, Positions

__all__ = ["ends_of", "file_digest", "weights_of"]


async def ends_of(log: EventLog, topics: Sequence[str]) -> dict[str, Positions]:
    """Return the present ends of ``topics``, looked up in this order; the topics of games are among them.

    Name effects before causes: of a run that is going on, every effect below the ends then has its cause
    there.
    """
    ends = {topic: await log.end_offsets(topic) for topic in topics}
    # A game's trajectories and outcome are appended at once: take both or neither.
    while (again := await log.end_offsets(Trajectory.TOPIC)) != ends[Trajectory.TOPIC]:
        ends[Trajectory.TOPIC] = again
        for topic in (GameOutcome.TOPIC, GameStarted.TOPIC):
            ends[topic] = await log.end_offsets(topic)
    return ends


def weights_of(checkpoint: Checkpoint) -> Path | None:
    """Return where a checkpoint's weights should be; ``None``: it has none, or not on a file system."""
    if checkpoint.path is None or checkpoint.sha256 is None or "://" in checkpoint.path:
        return None
    return Path(checkpoint.path) / "adapter_model.safetensors"


def file_digest(path: Path) -> str:
    """Return a file's sha256 in hexadecimal, without holding the file in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
