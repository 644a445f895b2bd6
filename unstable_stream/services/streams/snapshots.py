"""Snapshots of the state of a partition: disposable, and saved with the positions that they belong to.

A snapshot of a partition is a few saved states (:meth:`~unstable_stream.log.port.Transaction.save`) in the
partition's scope:

- ``position``: the offset up to which the snapshot goes;
- ``run/RUN``, for each run that has records below it: the state of the run's fold there. It may be missing
  if it cannot be saved.

A snapshot rewrites the position and the states of those runs that had records since the last one. All of it
is saved in one transaction, together with results and position. So whatever is read of it is of one moment.

The collector folds several topics of one run into one state, so it holds its positions itself; its scope is
:func:`scope_of_topics`. See :mod:`unstable_stream.services.workers.collector_snapshot`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unstable_stream.log.port import TopicPartition
from unstable_stream.log.saved_state import SavedState, UnusableStateError, pack_state, unpack_state

POSITION: Final = "position"
"""The name of the state that holds the snapshot's position."""
FORMAT: Final = 1
MOST_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of one state."""


class FoldState(SavedState, frozen=True, kw_only=True, omit_defaults=True):
    """A saved state of one partition: its offset is enough, and its scope names the partition."""

    format: int
    digest: str = ""
    log_id: str = ""
    positions: list[tuple[str, int, int]] = msgspec.field(default_factory=list)
    position: int = 0
    """The state is the fold of all records below this offset."""
    state: Any = None
    """As JSON; ``None``: only the position."""
    set_aside: bool = False
    """Earlier versions saved the last good state of a run whose code had failed; it is not used."""


def pack(position: int, digest: str = "", state: Any = None) -> bytes:
    """Return the bytes of a state to be saved.

    Raises:
        TypeError: the state is not made of JSON values.
        ValueError: the state is too large to be saved.
    """
    packed = pack_state(FoldState(format=FORMAT, position=position, digest=digest, state=state))
    if len(packed) > MOST_BYTES:
        raise ValueError(f"the state takes {len(packed)} bytes, and at most {MOST_BYTES} are saved")
    return packed


def unpack(packed: bytes, digest: str = "", last: int | None = None) -> FoldState:
    """Return a saved state.

    Args:
        packed: the bytes that were saved.
        digest: the digest of the run's fold as it is now.
        last: the last position at which the state may be; ``None``: any.

    Raises:
        UnusableStateError: it is damaged, of another format, fold or position, or holds no state of a run.
    """
    saved = unpack_state(packed, FoldState, FORMAT, digest)
    if last is not None and saved.position > last:
        raise UnusableStateError(f"it is of offset {saved.position}, and usable is one up to {last}")
    if digest and (saved.state is None or saved.set_aside):
        raise UnusableStateError("the state could not be saved")
    return saved


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


@dataclass(slots=True)
class SinceSnapshot:
    """Counts what came since the last snapshot."""

    pace: SnapshotPace
    records: int = 0
    events: int = 0
    bytes: int = 0
    """Of the events."""
    last_size: int = 0
    """Bytes of the last snapshot."""
    began_s: float = 0.0
    """The time of the first record."""

    def count(self, event_bytes: int | None, now_s: float) -> None:
        """Count a record; ``event_bytes``: its size, ``None`` if it is of another run."""
        if not self.records:
            self.began_s = now_s
        self.records += 1
        if event_bytes is not None:
            self.events += 1
            self.bytes += event_bytes

    def is_due(self, now_s: float) -> bool:
        """Return whether a restart would have to read much again."""
        pace = self.pace
        if not self.records:
            return False
        if self.records >= pace.passed or now_s - self.began_s >= pace.seconds:
            return True
        return self.events >= pace.events and self.bytes >= pace.times_its_size * self.last_size

    def saved(self, size: int) -> None:
        """Begin anew after a snapshot of so many bytes."""
        self.last_size, self.records, self.events, self.bytes = size, 0, 0, 0


def scope_of(group: str, at: TopicPartition) -> str:
    """Return the scope of the saved states of a partition."""
    return f"{group}/{at.topic}/{at.partition}"


def scope_of_topics(group: str, topics: Iterable[str]) -> str:
    """Return the scope of the saved states of a fold of all partitions of several topics."""
    return f"{group}/{'+'.join(topics)}/all"


def group_of_scope(scope: str) -> str:
    """Return the group of a scope."""
    return scope.rsplit("/", 2)[0]


def run_name(run_id: str) -> str:
    """Return the name of the saved state of a run."""
    return f"run/{run_id}"
