"""The state of one partition of a stream processor, without a log: where it begins, and a fold of each run.

:mod:`unstable_stream.services.streams.fold_sink` reads the records, and commits what comes of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from unstable_stream.console import get_logger
from unstable_stream.errors import EventError, OffsetOutOfRangeError, ServiceError
from unstable_stream.events import Event
from unstable_stream.log.port import Record, StoredRecord, TopicPartition
from unstable_stream.log.records import record_from_event
from unstable_stream.services.streams.processor import HasRest, KeepsState, Processor
from unstable_stream.services.streams.snapshots import POSITION, SinceSnapshot, SnapshotPace, pack, run_name

Decoded = tuple[StoredRecord, Event | EventError | None]
"""A record with its event, or its decoding error; ``None``: it is of another run."""

QUARANTINED: Final = "a run is quarantined: its records go to dead-letters"

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """The offsets that a host finds of a partition that it opens."""

    first: int
    """The first offset that the log has."""
    end: int
    """The offset after its last."""
    begin: int
    """The offset at which a host begins that has committed nothing."""
    committed: int | None = None
    snapshot: int | None = None
    """The position of the saved states; ``None``: there are none that can be read."""


class Start(NamedTuple):
    """The offsets at which a host begins with a partition."""

    next_offset: int
    """The first record to process."""
    replay_from: int
    """The records from here up to ``next_offset`` are folded again, and their results are thrown away."""
    snapshot: int | None
    """The position of the saved states that are used."""


def decide(at: TopicPartition, found: Found) -> Start:
    """Return where to begin.

    Half a history is never folded as if it were whole.

    Raises:
        OffsetOutOfRangeError: the log has lost records that were processed, or deleted such as were not.
        ServiceError: records were deleted that the state is a fold of, and no snapshot reaches it.
    """
    next_offset = found.begin if found.committed is None else found.committed
    if not found.first <= next_offset <= found.end:
        raise OffsetOutOfRangeError.of(at, next_offset, found.first, found.end)
    if found.committed is None:
        return Start(next_offset, next_offset, None)
    snapshot = found.snapshot
    if snapshot is not None and not found.first <= snapshot <= next_offset:
        reason = f"it is of offset {snapshot}; usable is one of {found.first} to {next_offset}"
        _log.warning("snapshot not used", partition=str(at), reason=reason)
        snapshot = None
    replay_from = min(found.begin if snapshot is None else snapshot, next_offset)
    if replay_from < found.first:
        raise ServiceError(
            f"{at} holds offsets {found.first} to {found.end}, but the state up to {next_offset} is a fold "
            f"from {replay_from}, and no snapshot reaches it. Records were deleted: restore the log, or "
            "start a new run"
        )
    return Start(next_offset, replay_from, snapshot)


@dataclass(slots=True)
class RunFold:
    """The fold of one run in one partition."""

    processor: Processor | None
    """``None``: the run is quarantined."""
    group: str = ""
    """The processor's group, for messages."""
    digest: str = ""
    may_fail: bool = False
    """Its code is the run's own, and must not stop the host: if it fails, the run is quarantined."""
    quarantine_reason: str = ""
    reported: bool = False
    """It is quarantined until the partition is opened again, and a warning has said so."""
    changed: bool = False
    """It had records since the last snapshot."""
    savable: bool = True
    """False once its state could not be saved."""

    @property
    def can_be_let_go(self) -> bool:
        """True if its state is saved, and it had no records since."""
        return not self.changed and self.savable and isinstance(self.processor, KeepsState)

    def fold(self, record: StoredRecord, event: Event) -> Sequence[Event]:
        """Fold one event.

        Raises:
            EventError: the event is impossible, or the run is quarantined.
            ServiceError: the fold failed, and its code is ours.
        """
        self.changed = True
        if self.processor is None:
            raise EventError(f"{record}: {self.quarantine_reason}")
        try:
            return self.processor.handle(event)
        except EventError as error:
            raise type(error)(f"{record}: {error}") from error
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            if not self.may_fail:
                raise ServiceError(
                    f"{self.group}: folding {record} (event {event.event_id} of run {event.run_id}) failed "
                    f"with {failure}. Nothing of its batch was committed; correct the cause and start again"
                ) from error
            self.processor, self.reported = None, True
            self.quarantine_reason = (
                f"run {event.run_id!r} cannot be folded by this host any more: its own code failed on "
                f"{record} with {failure}"
            )
            _log.warning(QUARANTINED, group=self.group, run=event.run_id, reason=self.quarantine_reason)
            raise EventError(f"{record}: {self.quarantine_reason}") from error


class Rejected(NamedTuple):
    """A record for ``dead-letters``."""

    record: StoredRecord
    reason: str
    reported: bool
    """A warning has said that all records of its run are rejected."""


class PartitionState:
    """The folds of the runs in one partition, and the next offset.

    A fold without records between two snapshots is let go, since it is saved. So memory holds the runs at
    work, not all runs ever.
    """

    def __init__(self, scope: str, start: Start, pace: SnapshotPace) -> None:
        """Begin without folds.

        Args:
            scope: the scope of the partition's saved states.
            start: where to begin.
            pace: how often snapshots are saved.
        """
        self.scope = scope
        self.next_offset = start.replay_from
        self.snapshot_position = start.snapshot
        """The position of the saved states; ``None``: those in the log belong to other records."""
        self.folds: dict[str, RunFold] = {}
        self.is_consistent = True
        """False while a batch is under way: the folds may then be ahead of what is committed."""
        self.since = SinceSnapshot(pace)

    def fold(self, decoded: Sequence[Decoded], now_s: float) -> tuple[list[Record], list[Rejected]]:
        """Fold records whose runs have folds here; skip those that were folded before.

        Returns the events that follow, to be published, and the records to be rejected.
        """
        outputs: list[Record] = []
        rejected: list[Rejected] = []
        for record, event in decoded:
            if record.offset < self.next_offset:
                continue
            try:
                if isinstance(event, EventError):
                    raise event
                if event is not None:
                    outputs += map(record_from_event, self.folds[event.run_id].fold(record, event))
            except EventError as error:
                reported = isinstance(event, Event) and self.folds[event.run_id].reported
                rejected.append(Rejected(record, f"{type(error).__name__}: {error}", reported))
            self.since.count(None if event is None else len(record.value), now_s)
            self.next_offset = record.offset + 1
        return outputs, rejected

    def snapshot(self) -> dict[str, bytes]:
        """Return the states to save: the position, and those of all runs that have changed."""
        states = {POSITION: pack(self.next_offset)}
        for run_id, fold in self.folds.items():
            if fold.changed:
                states[run_name(run_id)] = self._packed(run_id, fold)
        return states

    def _packed(self, run_id: str, fold: RunFold) -> bytes:
        """Return the state of a run; nothing, which deletes it, if the run must be folded again."""
        if not fold.savable or not isinstance(fold.processor, KeepsState):
            return b""
        try:
            return pack(self.next_offset, fold.digest, fold.processor.state())
        except Exception as error:  # noqa: BLE001  # custom code raises anything, and no snapshot is needed
            _log.warning(
                "state not saved: a restart folds the run from its beginning",
                scope=self.scope,
                run=run_id,
                reason=f"{type(error).__name__}: {error}",
            )
            fold.savable = False
            return b""

    def saved(self, states: dict[str, bytes]) -> None:
        """Let the folds go that had no records since the snapshot before."""
        self.snapshot_position = self.next_offset
        if not self.since.records:
            return
        self.since.saved(sum(map(len, states.values())))
        self.folds = {run_id: fold for run_id, fold in self.folds.items() if not fold.can_be_let_go}
        for fold in self.folds.values():
            fold.changed = False

    def rest(self, *, of_all: bool) -> list[Record]:
        """Return what folds have not published yet: those that a snapshot lets go, or all."""
        processors: list[object] = [
            fold.processor for fold in self.folds.values() if of_all or not fold.changed
        ]
        return [
            record_from_event(event)
            for processor in processors
            if isinstance(processor, HasRest)
            for event in processor.rest()
        ]
