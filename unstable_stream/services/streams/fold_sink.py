"""The sink of the stream processors: from a record to a committed fold and its results.

There is one state for each run and input partition. Order is defined only within a partition, so only such a
state is the same when it is folded again. Events that must share state must share a key.

The hosts of one processor share its partitions, and a partition may move to another host at any moment. What
a host does when it opens one is lettered a to e in :meth:`FoldSink._open_partition`, and the commit steps of
each batch are numbered 1 to 8 in :meth:`FoldSink._process` and :meth:`FoldSink._commit`. A kill between any
two steps loses nothing and publishes nothing twice. The next host reads again what is not committed, and its
state is a fold of exactly what was committed.

What needs no log is in :mod:`unstable_stream.services.streams.partition_state`: where a partition begins, the
folds of its runs, and when a snapshot of them is due.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from unstable_stream.console import get_logger
from unstable_stream.errors import (
    ConfigError,
    EventError,
    EventLogError,
    FencedError,
    OffsetOutOfRangeError,
    PartitionsChangedError,
    ServiceError,
)
from unstable_stream.events import Event
from unstable_stream.log.cpu_time import spending
from unstable_stream.log.port import EventLog, Positions, Producer, Record, StoredRecord, TopicPartition
from unstable_stream.log.reading import of_run
from unstable_stream.log.records import event_from_record, source_header
from unstable_stream.log.saved_state import UnusableStateError
from unstable_stream.log.topic_drift import WHEN_OPENED, partitions_changed
from unstable_stream.services.streams.consumer import is_processed, loop_time, read_partition
from unstable_stream.services.streams.dead_letters import DeadLetters
from unstable_stream.services.streams.partition_state import (
    QUARANTINED,
    Decoded,
    Found,
    PartitionState,
    Rejected,
    RunFold,
    decide,
)
from unstable_stream.services.streams.processor import KeepsState, ProcessorSpec, group_of
from unstable_stream.services.streams.run_configs import RunDirectory
from unstable_stream.services.streams.snapshots import POSITION, SnapshotPace, run_name, scope_of, unpack

_REOPEN_AFTER_S: Final = 3.0
"""Seconds to wait before opening a lost partition again. The new host may know of the move this much earlier
than the old one.
"""
_UNEXPLAINED_WITHIN_S: Final = 60.0
"""Seconds. If a host is fenced twice within this time and keeps the partition assigned, another process uses
the group.
"""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Partition:
    """An open partition."""

    at: TopicPartition
    producer: Producer
    state: PartitionState


class FoldSink:
    """The open partitions of one host of a processor."""

    def __init__(
        self,
        log: EventLog,
        spec: ProcessorSpec,
        runs: RunDirectory,
        run_id: str | None,
        *,
        reopen_after_s: float = _REOPEN_AFTER_S,
        pace: SnapshotPace = SnapshotPace(),  # noqa: B008  # frozen
    ) -> None:
        """Store the arguments; open nothing.

        Args:
            log: the event log.
            spec: the processor.
            runs: the runs of the log; each is folded with its first configuration.
            run_id: only events of this run are folded; ``None``: events of all runs. Then a run that cannot
                be folded is quarantined, and the others go on.
            reopen_after_s: seconds to wait before opening a partition again that another host took over.
            pace: how often the state of a partition is saved.
        """
        self.log = log
        self.spec = spec
        self.run_id = run_id
        self.group = group_of(spec.name, run_id)
        """The group whose committed positions count."""
        self._runs = runs
        self._source = None if run_id is None else source_header(run_id)
        self._letters = DeadLetters(self.group, run_id)
        self._reopen_after_s = reopen_after_s
        self._pace = pace
        self._open: dict[TopicPartition, _Partition] = {}
        self._fenced_at: dict[TopicPartition, float] = {}
        self._quarantined: dict[str, str] = {}
        """By run, the reason why no fold of it can be made here."""

    def producer_id(self, at: TopicPartition) -> str:
        """Return the id with which the hosts of a partition fence each other."""
        return scope_of(self.group, at)

    def positions(self) -> Positions:
        """Return the next offset to be processed of every open partition."""
        return {at: partition.state.next_offset for at, partition in self._open.items()}

    # -- a partition comes, or moves to another host ----------------------------------------------

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        """Close lost partitions and open new ones; see the port.

        Raises:
            ServiceError: part of the history was deleted, so the state of a partition cannot be restored.
            OffsetOutOfRangeError: the log has lost records that were processed, or deleted such as were not.
            PartitionsChangedError: partitions were added to an input.
        """
        lost = self._open.keys() - assigned
        for at in lost:
            await self._close(self._open.pop(at))
        if lost:
            _log.info("partitions closed", group=self.group, partitions=[*map(str, sorted(lost))])
        self._fenced_at = {at: when for at, when in self._fenced_at.items() if at in assigned}
        reopened_before = loop_time() - self._reopen_after_s
        gained = [
            at
            for at in sorted(assigned - self._open.keys())
            if self._fenced_at.get(at, reopened_before) <= reopened_before
        ]
        for error in await asyncio.gather(*map(self._open_partition, gained), return_exceptions=True):
            if error is not None:
                raise error
        if gained:
            _log.info("partitions opened", group=self.group, partitions=[*map(str, gained)])
        return {at: self._open[at].state.next_offset for at in gained}

    async def _open_partition(self, at: TopicPartition) -> None:
        """Fence the earlier host of a partition, and restore the state of what was committed."""
        # a. From here on an earlier host can commit nothing.
        producer = await self.log.producer(self.producer_id(at))
        try:
            # b. Nobody else can change the committed position now.
            # c. Where there is no snapshot of the state, it is folded from its beginning.
            start = decide(at, await self._find(at))
            partition = _Partition(at, producer, PartitionState(self.producer_id(at), start, self._pace))
            # d. Fold again what was committed after the snapshot, and throw the results away.
            async for records in read_partition(self.log, at, start.replay_from, start.next_offset):
                await self._fold(partition, records)
            partition.state.next_offset = start.next_offset
        except BaseException:
            await producer.close()
            raise
        # e. Records are processed from the committed position on.
        self._open[at] = partition

    async def _find(self, at: TopicPartition) -> Found:
        firsts = await self.log.beginning_offsets(at.topic)
        if at not in firsts:  # the group knows it before this process does
            before = len(firsts)
            raise partitions_changed(at.topic, before, max(before, at.partition) + 1, WHEN_OPENED)
        begin = firsts[at]  # a first host of all runs begins with what there is
        if self.run_id is not None:
            begin = (await self._runs.starts(self.run_id, [at.topic])).get(at, 0)
        committed = (await self.log.committed_positions(self.group)).get(at)
        # Only now: another member may commit what comes while this process is paused between two requests.
        end = (await self.log.end_offsets(at.topic))[at]
        if not committed:
            return Found(firsts[at], end, begin)
        snapshot = None
        scope = self.producer_id(at)
        saved = (await self.log.saved(scope, [POSITION])).get(POSITION)
        if saved is not None:
            try:
                snapshot = unpack(saved).position
            except UnusableStateError as error:
                _log.warning("snapshot not used", scope=scope, reason=str(error))
        return Found(firsts[at], end, begin, committed, snapshot)

    # -- from a record to a committed fold ----------------------------------------------------------

    async def process(self, records: Sequence[StoredRecord], read_up_to: Positions) -> None:
        """Process the partitions in parallel, each in a transaction of its own.

        Raises:
            ServiceError: a fold failed; nothing of its batch was committed.
            FencedError: a process outside the sharing takes partitions over.
        """
        batches: dict[TopicPartition, list[StoredRecord]] = {}
        for record in records:
            batches.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        held = [self._open[at] for at in batches if at in self._open]
        results = await asyncio.gather(
            *(self._process(partition, batches[partition.at]) for partition in held), return_exceptions=True
        )
        errors = {held[index].at: error for index, error in enumerate(results) if error is not None}
        for error in errors.values():
            if not isinstance(error, FencedError):
                raise error
        for at, error in errors.items():
            await self._hand_over(at, error)

    async def _process(self, partition: _Partition, records: Sequence[StoredRecord]) -> None:
        # 1. Records are read; the partition is open.
        state = partition.state
        if records[-1].offset < state.next_offset:
            return
        state.is_consistent = False
        # 2. Every record is decoded and folded, in memory only.
        outputs, rejected = await self._fold(partition, records)
        letters = [
            letter
            for record, reason, reported in rejected
            for letter in self._letters.about(record, reason, warn=not reported)
        ]
        await self._commit(partition, outputs, letters, moved=True, save=state.since.is_due(loop_time()))

    async def _fold(
        self, partition: _Partition, records: Sequence[StoredRecord]
    ) -> tuple[list[Record], list[Rejected]]:
        with spending("processors"):
            decoded: list[Decoded] = [(record, self._decode(record)) for record in records]
        run_ids = {event.run_id: None for _, event in decoded if isinstance(event, Event)}
        await self._runs.learn(run_ids)
        await self._ensure_folds(partition, run_ids)
        with spending("processors"):
            return partition.state.fold(decoded, loop_time())

    def _decode(self, record: StoredRecord) -> Event | EventError | None:
        # The header saves decoding records of other runs. A record without the header is decoded.
        if self._source is not None and record.headers.get("ce_source", self._source) != self._source:
            return None
        try:
            event = event_from_record(record)
        except EventError as error:
            return error
        return event if self.run_id in (None, event.run_id) else None

    async def _commit(
        self,
        partition: _Partition,
        outputs: Sequence[Record] = (),
        letters: Sequence[Record] = (),
        *,
        moved: bool,
        save: bool,
        closing: bool = False,
    ) -> None:
        """Publish results and position together. After an exception, only close the partition.

        Args:
            partition: the partition.
            outputs: the events that follow from what was folded.
            letters: the dead letters about records that were rejected.
            moved: the position is another than before.
            save: save the states of the runs that have changed, and publish what the folds that are let go
                have not published yet.
            closing: all folds are let go.

        Raises:
            FencedError: another host has opened the partition; nothing was committed.
        """
        state = partition.state
        state.is_consistent = False
        states = state.snapshot() if save else {}
        if states and state.since.records:
            outputs = [*outputs, *state.rest(of_all=closing)]
        # 3. A transaction is open.
        async with partition.producer.transaction() as transaction:
            # 4. The results are in it.
            if outputs:
                await transaction.append(outputs)
            # 5. The dead letters are in it.
            if letters:
                await transaction.append(letters)
            # 6. The position is in it, without naming a member: the producer's id decides who may commit.
            if moved:
                await transaction.commit_positions(self.group, {partition.at: state.next_offset})
            # 7. The states are in it, with that position.
            if states:
                await transaction.save(state.scope, states)
        # 8. All of it is visible. Until here, none of it is.
        if states:
            state.saved(states)
        state.is_consistent = True

    async def flush(self, read_up_to: Positions) -> None:
        """Save snapshots that records have waited for, and commit positions past offsets without a record.

        Such as the markers of transactions: once all records have expired, a position before the last marker
        would look like a gap.
        """
        for at, partition in list(self._open.items()):
            state = partition.state
            due, moved = state.since.is_due(loop_time()), state.next_offset < read_up_to.get(at, 0)
            state.next_offset = max(state.next_offset, read_up_to.get(at, 0))
            # If no record came since the snapshot, it is one of this position too.
            save = due or (moved and not state.since.records)
            try:
                if moved or save:
                    await self._commit(partition, moved=moved, save=save)
            except FencedError as error:
                await self._hand_over(at, error)

    # -- the fold of a run --------------------------------------------------------------------------

    async def _ensure_folds(self, partition: _Partition, run_ids: Collection[str]) -> None:
        """Have a fold of each run, with the state after all records below the partition's position."""
        state = partition.state
        # A fold that is not there was let go, or its run had no records here yet.
        absent = [run_name(run_id) for run_id in run_ids if run_id not in state.folds]
        saved: Mapping[str, bytes] = {}
        if absent and state.snapshot_position is not None:
            saved = await self.log.saved(state.scope, absent)
        for run_id in run_ids:
            fold = state.folds.get(run_id)
            # The event that starts a run may come after its first records.
            if fold is None or (fold.processor is None and not fold.reported):
                packed = saved.get(run_name(run_id))
                state.folds[run_id] = await self._restored_fold(partition, run_id, packed)

    async def _restored_fold(self, partition: _Partition, run_id: str, saved: bytes | None) -> RunFold:
        """Return a run's fold from its saved state, or by folding all its records again."""
        at, state = partition.at, partition.state
        fold = self._new_fold(run_id)
        if fold.processor is None:
            return fold
        if saved is not None and isinstance(fold.processor, KeepsState):
            try:
                found = unpack(saved, fold.digest, state.snapshot_position)
                fold.processor.load_state(found.state)
                return fold
            except Exception as error:  # noqa: BLE001  # whatever is wrong with it, folding again needs no snapshot
                message = "snapshot not used: the run is folded again"
                _log.warning(message, scope=state.scope, run=run_id, reason=str(error))
                fold = self._new_fold(run_id)
        first = (await self._runs.starts(run_id, [at.topic])).get(at, 0)
        kept = (await self.log.beginning_offsets(at.topic))[at]
        if first < min(kept, state.next_offset):
            missing_history = (
                f"{at} begins at offset {kept}, but the state of run {run_id!r} is a fold from {first}, and "
                "no snapshot holds it. Records were deleted: restore the log, or start a new run"
            )
            if self.run_id is not None:
                raise ServiceError(f"{self.group}: {missing_history}")
            return self._quarantine(run_id, missing_history)
        fold.changed = True  # the next snapshot has its state
        async for records in read_partition(self.log, at, first, state.next_offset):
            for record in of_run(records, run_id):
                event = self._decode(record)
                if isinstance(event, Event) and event.run_id == run_id:
                    try:
                        fold.fold(record, event)
                    except EventError:
                        continue  # it was rejected when it was first read
        return fold

    def _new_fold(self, run_id: str) -> RunFold:
        """Return a fold of a run that has folded nothing, or one that says why there can be none.

        Raises:
            ConfigError: this host serves only this run, and no processor can be made from its configuration.
            PartitionsChangedError: this host serves only this run, and its input has other partitions since.
        """
        if run_id in self._quarantined:
            return RunFold(None, quarantine_reason=self._quarantined[run_id], reported=True)
        brings_code = False
        try:
            config = self._runs.config(run_id)
            brings_code = self.spec.runs_code_of(config)
            self._runs.check_partitions(run_id, self.spec.inputs)
            processor, digest = self.spec.make(run_id, config), self.spec.digest(config)
            return RunFold(processor, self.group, digest, may_fail=brings_code and self.run_id is None)
        except EventError as error:
            return RunFold(None, quarantine_reason=str(error))
        except Exception as error:
            # Code that the run names raises what it likes when it is loaded and made.
            expected = isinstance(error, ConfigError | PartitionsChangedError)
            if self.run_id is not None or not (brings_code or expected):
                raise
            return self._quarantine(run_id, str(error) if expected else f"{type(error).__name__}: {error}")

    def _quarantine(self, run_id: str, reason: str) -> RunFold:
        self._quarantined[run_id] = f"run {run_id!r} cannot be folded by this host: {reason}"
        _log.warning(QUARANTINED, group=self.group, run=run_id, reason=reason)
        return self._new_fold(run_id)

    # -- the end ------------------------------------------------------------------------------------

    def deleted(self, error: OffsetOutOfRangeError) -> None:
        """Raise it: no fold goes on over a gap."""
        raise error

    async def may_finish(self, other_ends: Positions) -> bool:
        """Return true when other hosts have processed the rest."""
        starts: Positions = {}
        if self.run_id is not None:
            starts = await self._runs.starts(self.run_id, {at.topic for at in other_ends})
        return await is_processed(self.log, self.group, other_ends, starts)

    async def close(self) -> None:
        """Close all partitions; the next host goes on from the committed positions."""
        partitions, self._open = list(self._open.values()), {}
        await asyncio.gather(*map(self._close, partitions))

    async def _close(self, partition: _Partition) -> None:
        """If records came since the last snapshot, publish what waits for later events and save another."""
        try:
            if partition.state.is_consistent and partition.state.since.records:
                await self._commit(partition, moved=False, save=True, closing=True)
        except FencedError:
            pass  # the next host has opened the partition; it saves the next snapshot
        except EventLogError as error:
            _log.warning("snapshot not saved", partition=str(partition.at), reason=str(error))
        finally:
            await partition.producer.close()

    async def _hand_over(self, at: TopicPartition, error: BaseException) -> None:
        """Drop a partition that another host has opened; only the work since the last commit is lost.

        It may still be assigned to this host, if it moved there and came back between two polls. So it is
        opened again after a while. If this happens twice in a row, a process outside the sharing uses the
        group, and the two would take the partition from each other for ever.
        """
        await self._close(self._open.pop(at))
        before, now = self._fenced_at.get(at), loop_time()
        if before is not None and now - before < _UNEXPLAINED_WITHIN_S:
            raise FencedError(
                f"{self.group}: {at} is assigned to this host, yet another keeps taking it over. "
                "This one stops; nothing was lost. Hosts share partitions only with hosts of the same "
                f"runtime: is one of the other runtime running too? ({error})"
            ) from error
        self._fenced_at[at] = now
        _log.info("partition taken over by another host", group=self.group, partition=str(at))
