"""Keep what a learner knew at a checkpoint in a file beside it, so that a restart reads only what came later.

The file may be deleted at any time, and is ignored if it is damaged or of another run: the learner then folds
its whole history again, with the same result, and does not ask whether it is the same log. It holds:

- the steps that were pending after the draw, each with its place in the log: no other step before
  ``positions`` will be used;
- which steps were used before (:class:`~unstable_stream.events.used_ids.UsedIds`);
- what the watch for a collapse had learned, and the warnings so far.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from unstable_stream.errors import LearnerError
from unstable_stream.events import CollapseWarning
from unstable_stream.log.port import EventLog, TopicPartition
from unstable_stream.log.reading import check_offsets
from unstable_stream.log_lines import get_logger

__all__ = ["LearnerProgress", "StepPlace", "by_partition", "read_progress", "write_progress"]

_FILE: Final = "progress.json"
_FORMAT: Final = 1
"""To be raised when the content changes, also that of ``used`` or ``watch``."""
_logger = get_logger(__name__)


class StepPlace(msgspec.Struct, frozen=True, array_like=True):
    """The record of a step."""

    partition: int
    offset: int


class LearnerProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    format: int = _FORMAT
    run_id: str
    log_id: str
    """The log that the offsets belong to."""
    update: int
    """The update of the checkpoint."""
    first_update: int
    """The update after which the run began."""
    positions: dict[str, int]
    """``topic[partition]`` of ``steps`` and ``game-outcomes`` to the next offset at the draw."""
    updates_from: dict[str, int]
    """The next offsets of ``learner-updates`` before the update was published."""
    pending: dict[str, StepPlace]
    """Step id to the place of the step, all below ``positions``."""
    used: dict[str, Any]
    watched: int
    """The last update that the watch and the warnings know."""
    watch: dict[str, Any]
    warnings: tuple[CollapseWarning, ...]
    letters: dict[str, int] = {}
    """Partitions of ``dead-letters`` to the next offset: ``used`` knows what the earlier ones tell."""

    def first_needed(self, topic: str) -> dict[TopicPartition, int]:
        """Return, by partition of ``steps``, the first offset that holds a pending or a later step."""
        starts = {at: offset for at, offset in by_partition(self.positions).items() if at.topic == topic}
        for place in self.pending.values():
            at = TopicPartition(topic, place.partition)
            starts[at] = min(starts.get(at, place.offset), place.offset)
        return starts

    async def check(self, log: EventLog) -> None:
        """Look whether this is the log that was read, and still has what was read.

        Raises:
            LearnerError: it is another log.
            OffsetOutOfRangeError: it has lost records.
        """
        log_id = await log.log_id()
        if self.log_id != log_id:
            raise LearnerError(
                f"run {self.run_id}: the learner that saved checkpoint {self.update} read log {self.log_id}, "
                f"and this is log {log_id}. Open or restore that log, or begin a new run at the checkpoint: "
                f"unstable-stream fork {self.run_id} --at {self.update}"
            )
        for positions in (self.positions, self.updates_from, self.letters):
            await check_offsets(log, by_partition(positions), expiring=True)


def by_partition(named: Mapping[str, int]) -> dict[TopicPartition, int]:
    """Return the offsets that are recorded under names such as ``steps[3]``."""
    parts = ((name.partition("["), offset) for name, offset in named.items())
    return {TopicPartition(topic, int(number[:-1])): offset for (topic, _, number), offset in parts}


def write_progress(directory: Path, progress: LearnerProgress) -> None:
    """Write the file into a checkpoint's directory. Without it, as on a full disk, a restart takes longer."""
    content = msgspec.json.encode(progress)
    staging = directory / f".{_FILE}"
    try:
        with staging.open("wb") as file:
            file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
            file.flush()
            os.fsync(file.fileno())
        staging.rename(directory / _FILE)
    except OSError as error:
        _logger.warning("what the learner knows was not saved", path=str(staging), reason=str(error))


def read_progress(directory: Path, run_id: str, update: int) -> LearnerProgress | None:
    """Return what a learner of this run knew at the checkpoint of ``update``; ``None`` if that is unknown."""
    path = directory / _FILE
    if not path.is_file():
        return None
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
    except OSError as error:
        _logger.warning("unreadable file ignored: the whole history is read instead", reason=str(error))
        return None
    if hashlib.sha256(content).hexdigest().encode() != digest:
        _logger.warning("damaged file ignored: the whole history is read instead", path=str(path))
        return None
    try:
        progress = msgspec.json.decode(content, type=LearnerProgress)
    except msgspec.ValidationError as error:
        _logger.warning("file of another version ignored", path=str(path), reason=str(error))
        return None
    if progress.format != _FORMAT:
        _logger.warning("file of another version ignored", path=str(path), format=progress.format)
        return None
    return progress if (progress.run_id, progress.update) == (run_id, update) else None
