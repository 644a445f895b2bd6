"""One open partition of a host: a fold of each run in it, restored from a snapshot and folded on.

A run's fold is loaded when its first record comes: from its saved state, or by folding its records again. A
fold without records between two snapshots is let go, since it is saved. So memory holds the runs at work,
not all runs ever.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unstable_stream.errors import EventError, EventLogError, FencedError, ServiceError
from unstable_stream.events import Event
from unstable_stream.log.port import Producer, Record, StoredRecord, TopicPartition
from unstable_stream.log.reading import read_on
from unstable_stream.log.records import record_from_event, source_header
from unstable_stream.log_lines import get_logger
from unstable_stream.streams.hosted_folds import HostedFolds
from unstable_stream.streams.processor import HasRest, KeepsState, Processor
from unstable_stream.streams.snapshots import (
    POSITION,
    SavedRun,
    SnapshotPace,
    pack_position,
    pack_run,
    run_name,
    scope_of,
    unpack_run,
)

__all__ = ["PartitionFold"]

_log = get_logger(__name__)


@dataclass(slots=True)
class _RunFold:
    """The fold of one run in one partition."""

    processor: Processor | None
    """``None``: the run is set aside."""
    digest: str
    first: int
    """No record of the run lies below this offset: folding it again begins here."""
    reason: str = ""
    """The reason why the run is set aside."""
    failed: bool = False
    """Its own code failed, so it stays set aside until the partition is opened again."""
    changed: bool = False
    """It had records since the last snapshot."""
    savable: bool = True
    """False once its state could not be saved."""


class PartitionFold:
    """One partition: its producer, a fold of each run, and the next offset."""

    def __init__(
        self,
        host: HostedFolds,
        at: TopicPartition,
        producer: Producer,
        next_offset: int,
        snapshot: int | None,
        pace: SnapshotPace,
    ) -> None:
        """Begin at a snapshot, or without one.

        Args:
            host: makes the folds.
            at: the partition.
            producer: a producer of this partition.
            next_offset: the committed position.
            snapshot: the position of the snapshot to begin with; ``None``: begin with nothing.
            pace: how often snapshots are saved.
        """
        self.next_offset = next_offset
        self._host = host
        self._at = at
        self._producer = producer
        self._pace = pace
        self._scope = scope_of(host.group, at)
        self._folds: dict[str, _RunFold] = {}
        self._saved_at = snapshot
        self._events = self._bytes = self._passed = self._last_size = 0
        self._behind_since_s = 0.0
        """When the first of ``_passed`` records came that are behind the snapshot."""
        self._whole = True
        """False while a batch is under way: the folds may then be ahead of what is committed."""

    # -- processing -----------------------------------------------------------------------------

    async def process(self, records: Sequence[StoredRecord]) -> None:
        """Fold records and publish the resulting events; skip records that were folded before.

        Raises:
            FencedError: another host has opened the partition; nothing of the batch was committed.
            ServiceError: the fold failed; nothing of the batch was committed.

        After an exception, close this object: it cannot be used any more.
        """
        if not records or records[-1].offset < self.next_offset:
            return
        self._whole = False
        outputs: list[Record] = []
        dead_letters: list[Record] = []
        decoded = await self._host.decode(records)
        await self._load(decoded, self.next_offset)
        for record, event in decoded:
            if record.offset < self.next_offset:
                continue
            try:
                if isinstance(event, EventError):
                    raise event
                if event is not None:
                    outputs.extend(map(record_from_event, self._fold(event, record)))
            except EventError as error:
                reason = f"{type(error).__name__}: {error}"
                dead_letters += self._host.letters.about(record, reason, warn=not self._is_told(event))
            self._count(record, event)
            self.next_offset = record.offset + 1
        states = self._snapshot() if self._is_due() else {}
        if states:
            outputs += self._rest_of_unchanged()
        async with self._producer.transaction() as transaction:
            if outputs:
                await transaction.append(outputs)
            if dead_letters:
                await transaction.append(dead_letters)
            # Commit for the group without naming a member: the producer's id decides who may commit.
            await transaction.commit_positions(self._host.group, {self._at: self.next_offset})
            if states:
                await transaction.save(self._scope, states)
        if states:
            self._saved(states)
        self._whole = True

    async def fold_again(self, records: Sequence[StoredRecord]) -> int:
        """Fold records that were processed before, only to restore the state; return their number."""
        folded = 0
        decoded = [
            (record, event)
            for record, event in await self._host.decode(records)
            if record.offset < self.next_offset and isinstance(event, Event)
        ]
        if decoded:
            await self._load(decoded, decoded[0][0].offset)
        for record, event in decoded:
            self._count(record, event)
            try:
                self._fold(event, record)
            except EventError:
                continue  # it was set aside when it was first read
            folded += 1
        return folded

    async def settle(self, up_to: int) -> None:
        """Save a snapshot if records have waited long for one, then commit the position ``up_to``.

        No record lies before ``up_to`` that was not processed; a lower one changes nothing.

        Raises:
            FencedError: another host has opened the partition.
        """
        if self._is_due():
            self._whole = False
            states = self._snapshot()
            rest = self._rest_of_unchanged()
            async with self._producer.transaction() as transaction:
                if rest:
                    await transaction.append(rest)
                await transaction.save(self._scope, states)
            self._saved(states)
            self._whole = True
        if self.next_offset < up_to:
            await self._pass_over(up_to)

    async def _pass_over(self, up_to: int) -> None:
        still = not self._passed  # if no record came since the snapshot, it is one of this position too
        self._whole = False
        async with self._producer.transaction() as transaction:
            await transaction.commit_positions(self._host.group, {self._at: up_to})
            if still:
                await transaction.save(self._scope, {POSITION: pack_position(up_to)})
        self._whole = True
        self.next_offset = up_to
        if still:
            self._saved_at = up_to

    async def close(self) -> None:
        """If records came since the last snapshot, publish what waits for later events and save another."""
        try:
            if self._whole and self._passed:
                states = self._snapshot()
                rest = self._rest(self._folds.values())
                async with self._producer.transaction() as transaction:
                    if rest:
                        await transaction.append(rest)
                    await transaction.save(self._scope, states)
        except FencedError:
            pass  # the next holder has opened the partition; it saves the next snapshot
        except EventLogError as error:
            _log.warning("snapshot not saved", partition=str(self._at), reason=str(error))
        finally:
            await self._producer.close()

    def _fold(self, event: Event, record: StoredRecord) -> Sequence[Event]:
        fold = self._folds[event.run_id]
        fold.changed = True
        if fold.processor is None:
            raise EventError(f"{record}: {fold.reason}")
        try:
            return fold.processor.handle(event)
        except EventError as error:
            raise type(error)(f"{record}: {error}") from error
        except Exception as error:
            reason = self._host.failed(event.run_id, record, error)
            if reason is None:
                raise ServiceError(
                    f"{self._host.group}: folding {record} (event {event.event_id} of run {event.run_id}) "
                    f"failed with {type(error).__name__}: {error}. Nothing of its batch was committed; "
                    "correct the cause and start again"
                ) from error
            fold.processor, fold.reason, fold.failed = None, reason, True
            raise EventError(f"{record}: {reason}") from error

    def _rest(self, folds: Iterable[_RunFold]) -> list[Record]:
        """Return what these folds have not published yet."""
        processors: list[object] = [fold.processor for fold in folds]
        return [
            record_from_event(event)
            for processor in processors
            if isinstance(processor, HasRest)
            for event in processor.rest()
        ]

    def _rest_of_unchanged(self) -> list[Record]:
        """Return what the folds that a snapshot lets go have not published yet."""
        return self._rest([fold for fold in self._folds.values() if not fold.changed])

    def _is_told(self, event: Event | EventError | None) -> bool:
        """Return whether a warning told that all records of the run are set aside."""
        if not isinstance(event, Event):
            return False
        return self._host.is_set_aside(event.run_id) or self._folds[event.run_id].failed

    # -- loading --------------------------------------------------------------------------------

    async def _load(
        self, decoded: Sequence[tuple[StoredRecord, Event | EventError | None]], up_to: int
    ) -> None:
        """Load the folds of these events' runs, with the state after all records below ``up_to``."""
        run_ids = dict.fromkeys(event.run_id for _, event in decoded if isinstance(event, Event))
        wanted = [run_id for run_id in run_ids if run_id not in self._folds]
        saved: Mapping[str, bytes] = {}
        if wanted and self._saved_at is not None:
            saved = await self._host.log.saved(self._scope, [run_name(run_id) for run_id in wanted])
        for run_id in wanted:
            self._folds[run_id] = await self._loaded(run_id, saved.get(run_name(run_id)), up_to)
        for run_id in run_ids:
            fold = self._folds[run_id]
            if fold.processor is None and not fold.failed and not self._host.is_set_aside(run_id):
                # The event that starts a run may come after its first records.
                self._folds[run_id] = await self._loaded(run_id, None, up_to)

    async def _loaded(self, run_id: str, saved: bytes | None, up_to: int) -> _RunFold:
        state = None if saved is None else unpack_run(saved)
        if state is None:
            # A new run, or one whose state was forgotten because it was over.
            if saved is not None:
                self._not_used(run_id, "it is damaged or of another format")
            return await self._made(run_id, await self._start_of(run_id), None, up_to)
        # It may be saved before the group lost its positions, or newer than the position that could be read:
        # what comes before this batch is folded again.
        usable = self._saved_at is not None and state.position <= self._saved_at
        return await self._made(run_id, state.first, state if usable else None, up_to)

    async def _start_of(self, run_id: str) -> int:
        return (await self._host.starts(run_id, [self._at.topic])).get(self._at, 0)

    async def _made(self, run_id: str, first: int, state: SavedRun | None, up_to: int) -> _RunFold:
        try:
            processor, digest = self._host.fresh(run_id)
        except EventError as error:
            return _RunFold(None, "", first, str(error))
        try:
            fold = _RunFold(processor, digest, first)
            if state is not None and state.state is not None and not state.set_aside:
                if state.digest != digest:
                    self._not_used(run_id, "its settings, its code or the version of the fold are others now")
                elif self._takes(processor, state.state, run_id):
                    return fold
                else:
                    fold.processor, _ = self._host.fresh(run_id)
            await self._check_kept(run_id, first, up_to)
        except EventError as error:
            return _RunFold(None, "", first, str(error))
        await self._fold_from(first, up_to, run_id, fold)
        return fold

    async def _check_kept(self, run_id: str, first: int, up_to: int) -> None:
        """Raise an error if records were deleted that must be folded again."""
        begin = (await self._host.log.beginning_offsets(self._at.topic))[self._at]
        if first < min(begin, up_to):
            raise self._host.gone(
                run_id,
                f"{self._at} begins at offset {begin}, but the state of run {run_id!r} is a fold from "
                f"{first}, and no snapshot holds it. Records were deleted: restore the log, or start a new "
                "run",
            )

    def _takes(self, processor: Processor, state: Any, run_id: str) -> bool:
        if not isinstance(processor, KeepsState):
            return False
        try:
            processor.load_state(state)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with it, folding again needs no snapshot
            self._not_used(run_id, f"{type(error).__name__}: {error}")
            return False
        return True

    def _not_used(self, run_id: str, reason: str) -> None:
        _log.warning(
            "snapshot not used: the run is folded again", scope=self._scope, run=run_id, reason=reason
        )

    async def _fold_from(self, first: int, up_to: int, run_id: str, fold: _RunFold) -> None:
        """Fold the records of one run again, from its first one."""
        self._folds[run_id] = fold
        source = source_header(run_id)
        async for records in self._read(first, up_to):
            own = [record for record in records if record.headers.get("ce_source", source) == source]
            for record, event in await self._host.decode(own):
                if record.offset < up_to and isinstance(event, Event) and event.run_id == run_id:
                    try:
                        self._fold(event, record)
                    except EventError:
                        if fold.processor is None:
                            return
        fold.changed = True  # the next snapshot has its state

    async def _read(self, first: int, up_to: int) -> AsyncIterator[Sequence[StoredRecord]]:
        at = self._at
        if up_to <= first:
            return
        consumer = await self._host.log.consumer([at.topic], start="end")
        try:
            await consumer.seek({at: first})
            async for records in read_on(consumer, {at: up_to}):
                yield [record for record in records if record.partition == at.partition]
        finally:
            await consumer.close()

    # -- saving ---------------------------------------------------------------------------------

    def _count(self, record: StoredRecord, event: Event | EventError | None) -> None:
        if not self._passed:
            self._behind_since_s = _now_s()
        self._passed += 1
        if event is not None:
            self._events += 1
            self._bytes += len(record.value)

    def _is_due(self) -> bool:
        pace = self._pace
        if self._passed >= pace.passed:
            return True
        if self._passed and _now_s() - self._behind_since_s >= pace.seconds:
            return True
        return self._events >= pace.events and self._bytes >= pace.times_its_size * self._last_size

    def _snapshot(self) -> dict[str, bytes]:
        """Return the states to save: of all runs that have changed."""
        states = {POSITION: pack_position(self.next_offset)}
        for run_id, fold in self._folds.items():
            if fold.changed:
                states[run_name(run_id)] = self._packed(run_id, fold, fold.first)
        return states

    def _packed(self, run_id: str, fold: _RunFold, first: int) -> bytes:
        if fold.savable and isinstance(fold.processor, KeepsState):
            try:
                return pack_run(first, self.next_offset, fold.digest, fold.processor.state())
            except Exception as error:  # noqa: BLE001  # custom code raises anything, and no snapshot is needed
                _log.warning(
                    "state not saved: a restart folds the run from its beginning",
                    scope=self._scope,
                    run=run_id,
                    reason=f"{type(error).__name__}: {error}",
                )
                fold.savable = False
        return pack_run(first, self.next_offset, fold.digest, None)

    def _saved(self, states: Mapping[str, bytes]) -> None:
        self._saved_at = self.next_offset
        self._last_size = sum(map(len, states.values()))
        self._events = self._bytes = self._passed = 0
        for run_id, fold in list(self._folds.items()):
            if not fold.changed and fold.savable and isinstance(fold.processor, KeepsState):
                del self._folds[run_id]
            fold.changed = False


def _now_s() -> float:
    return asyncio.get_running_loop().time()
