"""Snapshots of the state of a fold: disposable, and saved with the positions that they belong to.

A snapshot of a partition is a few saved states (:meth:`~unstable_stream.log.port.Transaction.save`) in the
partition's scope:

- ``position``: the offset up to which the snapshot goes;
- ``run/RUN``, for each run that has records below it: the state of the run's fold there.

A snapshot rewrites the position and the states of those runs that had records since the last one. All of it
is saved in one transaction, together with results and position. So whatever is read of it is of one moment.

It may be deleted at any time: then the partition is folded again from its beginning. So is a state that is
damaged, of another format, or of a fold with other settings or other code.

The collector folds several topics of one run into one state, so it holds its positions itself; its scope is
:func:`scope_of_topics`. See :mod:`unstable_stream.workers.collector_snapshot`.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from unstable_stream.log.port import EventLog, TopicPartition
from unstable_stream.log_lines import get_logger

__all__ = [
    "MOST_BYTES",
    "POSITION",
    "SavedRun",
    "SnapshotPace",
    "group_of_scope",
    "load_position",
    "pack_position",
    "pack_run",
    "run_name",
    "scope_of",
    "scope_of_topics",
    "unpack_run",
]

POSITION: Final = "position"
"""The name of the state that holds the snapshot's position."""
_AND: Final = "+"
_ALL: Final = "all"
_FORMAT: Final = 1
MOST_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of one state."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotPace:
    """The pace of the snapshots of a partition.

    A restart folds again what came after the last snapshot, so these numbers bound its time. They also bound
    the cost of snapshots: at most a tenth of the bytes that are read, but for the one a minute.
    """

    events: int = 500
    """A snapshot is due after so many folded events."""
    times_its_size: int = 10
    """But not before so many times its own size was folded: large states are saved less often."""
    passed: int = 50_000
    """It is also due after so many records, of which few or none were folded here: those of other runs."""
    seconds: float = 60.0
    """It is also due so long after the first record behind the last one."""


class SavedRun(msgspec.Struct, frozen=True):
    """The saved state of the fold of one run in one partition."""

    format: int
    first: int
    """No record of the run lies below this offset. Folding the run again begins here."""
    position: int
    """The state is that after all records of the run below this offset."""
    digest: str
    """Identifies the fold: its version, settings and code."""
    state: Any
    """As JSON; ``None``: it cannot be saved, so the run is folded again from its first record."""
    set_aside: bool = False
    """Earlier versions saved the last good state of a run so whose code had failed; it is not used."""


class _SavedPosition(msgspec.Struct, frozen=True):
    format: int
    position: int


_S = TypeVar("_S", SavedRun, _SavedPosition)


def scope_of(group: str, at: TopicPartition) -> str:
    """Return the scope of the saved states of a partition."""
    return f"{group}/{at.topic}/{at.partition}"


def scope_of_topics(group: str, topics: Iterable[str]) -> str:
    """Return the scope of the saved states of a fold of all partitions of several topics."""
    return f"{group}/{_AND.join(topics)}/{_ALL}"


def group_of_scope(scope: str) -> str:
    """Return the group of a scope."""
    return scope.rsplit("/", 2)[0]


def run_name(run_id: str) -> str:
    """Return the name of the saved state of a run."""
    return f"run/{run_id}"


def pack_position(position: int) -> bytes:
    """Return the bytes to be saved as :data:`POSITION`."""
    return _packed(_SavedPosition(_FORMAT, position))


def pack_run(first: int, position: int, digest: str, state: Any) -> bytes:
    """Return the bytes to be saved for a run.

    Raises:
        TypeError: the state is not made of JSON values.
        ValueError: the state is too large to be saved.
    """
    packed = _packed(SavedRun(_FORMAT, first, position, digest, state))
    if len(packed) > MOST_BYTES:
        raise ValueError(f"the state takes {len(packed)} bytes, and at most {MOST_BYTES} are saved")
    return packed


async def load_position(log: EventLog, scope: str) -> int | None:
    """Return the position of a partition's snapshot; ``None`` if there is none that can be used."""
    saved = (await log.saved(scope, [POSITION])).get(POSITION)
    if saved is None:
        return None
    found = _unpacked(saved, _SavedPosition)
    if found is None:
        _log.warning("snapshot not used", scope=scope, reason="its position is damaged or of another format")
        return None
    return found.position


def unpack_run(saved: bytes) -> SavedRun | None:
    """Return a run's saved state; ``None`` if it is damaged or of another format."""
    return _unpacked(saved, SavedRun)


def _packed(value: msgspec.Struct) -> bytes:
    return zlib.compress(msgspec.json.encode(value), 1)  # its checksum tells damaged bytes


def _unpacked(saved: bytes, kind: type[_S]) -> _S | None:
    try:
        found = msgspec.json.decode(zlib.decompress(saved), type=kind)
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found if found.format == _FORMAT else None
