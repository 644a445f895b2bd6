"""The sink of the stream processors folds each partition and publishes results and position together.

There is one state for each run and input partition. Order is defined only within a partition, so only such a
state is the same when it is folded again. Events that must share state must share a key.

The hosts of one processor share its partitions, and a partition may move to another host at any moment. A
host opens a partition in this order:

a. it opens the partition's producer; from here on an earlier host can commit nothing;
b. it reads the committed position, which nobody else can change now. If the log ends before it, the host
   stops: acknowledged records are lost;
c. it reads the position of the partition's snapshot (:mod:`unstable_stream.streams.snapshots`);
d. it folds the records from there up to the committed position again, and throws the results away. Without
   a snapshot it begins at the beginning of the partition. If the log has deleted some of these records, a
   host of one run stops, and one of all runs sets the runs aside that lack them: half a history is never
   folded as if it were whole;
e. it processes the records from the committed position on. If the log has deleted some of these, the host
   stops and names them. The first host of all runs begins with what the log has.

The commit steps, for each batch of a partition:

1. records are read; the partition is open;
2. every record is decoded and folded, in memory only;
3. a transaction is open;
4. the events that the fold returned are in it;
5. the dead letters of unreadable records are in it;
6. the position after the batch is in it;
7. if a snapshot is due, the states of the runs that have changed are in it, with that position;
8. the transaction is committed: all of it is visible. Until here, none of it is.

A kill between any two steps loses nothing and publishes nothing twice. The next host reads again what is not
committed, and its state is a fold of exactly what was committed.

A host that is fenced drops the partition and goes on with the others. It loses only the work since its last
commit. A host that closes a partition in order publishes what waits for later events, and saves a last
snapshot. A partition may be taken over and still be assigned to this host: perhaps it moved to another host
and came back between two polls. So this host opens it again after a while. If this happens twice in a row, a
process outside the sharing uses the same group. Then this host stops, because the two would take the
partition from each other for ever.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Final

from unstable_stream.errors import FencedError, OffsetOutOfRangeError, ServiceError
from unstable_stream.log.port import EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.log.reading import check_offsets, read_on
from unstable_stream.log.topic_drift import WHEN_OPENED, partitions_changed
from unstable_stream.log_lines import get_logger
from unstable_stream.streams.consumer import is_processed
from unstable_stream.streams.hosted_folds import HostedFolds
from unstable_stream.streams.partition_fold import PartitionFold
from unstable_stream.streams.processor import Processor, ProcessorSpec, group_of
from unstable_stream.streams.run_configs import RunDirectory
from unstable_stream.streams.snapshots import SnapshotPace, load_position, scope_of

__all__ = ["FoldSink", "Processor", "ProcessorSpec", "group_of"]

_SETTLE_S: Final = 3.0
"""Seconds to wait before opening a lost partition again. The new host may know of the move this much earlier
than the old one.
"""
_UNEXPLAINED_WITHIN_S: Final = 60.0
"""Seconds. If a host is fenced twice within this time and keeps the partition assigned, another process uses
the group.
"""

_log = get_logger(__name__)


class FoldSink:
    """The open partitions of one host of a processor."""

    def __init__(
        self,
        log: EventLog,
        spec: ProcessorSpec,
        runs: RunDirectory,
        run_id: str | None,
        *,
        settle_s: float = _SETTLE_S,
        pace: SnapshotPace = SnapshotPace(),  # noqa: B008  # frozen
    ) -> None:
        """Store the arguments; open nothing.

        Args:
            log: the event log.
            spec: the processor.
            runs: the runs of the log; each is folded with its first configuration.
            run_id: only events of this run are folded; ``None``: events of all runs.
            settle_s: seconds to wait before opening a partition again that another host took over.
            pace: how often the state of a partition is saved.
        """
        self.log = log
        self.spec = spec
        self.run_id = run_id
        self.group = group_of(spec.name, run_id)
        """The group whose committed positions count."""
        self._folds = HostedFolds(log, spec, runs, run_id)
        self._settle_s = settle_s
        self._pace = pace
        self._open: dict[TopicPartition, PartitionFold] = {}
        self._fenced_at: dict[TopicPartition, float] = {}

    def producer_id(self, at: TopicPartition) -> str:
        """Return the id with which the hosts of a partition fence each other."""
        return scope_of(self.group, at)

    def positions(self) -> Positions:
        """Return the next offset to be processed of every open partition."""
        return {at: one.next_offset for at, one in self._open.items()}

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        """Close lost partitions and open new ones; see the port.

        Raises:
            ServiceError: part of the history was deleted, so the state of a partition cannot be restored.
            OffsetOutOfRangeError: the log has lost records that were processed, or deleted such as were not.
            PartitionsChangedError: partitions were added to an input.
        """
        lost = self._open.keys() - assigned
        for at in lost:
            await self._open.pop(at).close()
        if lost:
            _log.info("partitions closed", group=self.group, partitions=[*map(str, sorted(lost))])
        self._fenced_at = {at: when for at, when in self._fenced_at.items() if at in assigned}
        settled_before = _now() - self._settle_s
        gained = {
            at
            for at in assigned - self._open.keys()
            if at not in self._fenced_at or self._fenced_at[at] <= settled_before
        }
        if not gained:
            return {}
        opened = await self._take_over(sorted(gained))
        self._open |= opened
        return {at: one.next_offset for at, one in opened.items()}

    async def process(self, records: Sequence[StoredRecord], read_up_to: Positions) -> Positions:
        """Process the partitions in parallel, each in a transaction of its own.

        Raises:
            ServiceError: a fold failed; nothing of its batch was committed.
            FencedError: a process outside the sharing takes partitions over.
        """
        batches = _by_partition(records)
        held = [at for at in batches if at in self._open]
        results = await asyncio.gather(
            *(self._open[at].process(batches[at]) for at in held), return_exceptions=True
        )
        errors = {at: error for at, error in zip(held, results, strict=True) if error is not None}
        for error in errors.values():
            if not isinstance(error, FencedError):
                raise error
        for at, error in errors.items():
            await self._hand_over(at, error)
        return {}

    async def settle(self, read_up_to: Positions) -> None:
        """Save snapshots that records have waited for, and commit positions past offsets without a record.

        Such as the markers of transactions: once all records have expired, a position before the last marker
        would look like a gap.
        """
        for at, one in list(self._open.items()):
            try:
                await one.settle(read_up_to.get(at, 0))
            except FencedError as error:
                await self._hand_over(at, error)

    def deleted(self, error: OffsetOutOfRangeError) -> None:
        """Raise it: no fold goes on over a gap."""
        raise error

    async def may_leave(self, elsewhere: Positions) -> bool:
        """Return true when other hosts have processed the rest."""
        starts: Positions = {}
        if self.run_id is not None:
            starts = await self._folds.starts(self.run_id, {at.topic for at in elsewhere})
        return await is_processed(self.log, self.group, elsewhere, starts)

    async def close(self) -> None:
        """Close all partitions; the next host goes on from the committed positions."""
        folds, self._open = self._open, {}
        await asyncio.gather(*(one.close() for one in folds.values()))

    # -- opening and handing over ---------------------------------------------------------------

    async def _take_over(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionFold]:
        """Open partitions: fence their earlier hosts and restore the committed state (a to d)."""
        log = self.log
        opened = await asyncio.gather(
            *(log.producer(self.producer_id(at)) for at in partitions), return_exceptions=True
        )
        producers = {
            at: one for at, one in zip(partitions, opened, strict=True) if not isinstance(one, BaseException)
        }
        try:
            for one in opened:
                if isinstance(one, BaseException):
                    raise one
            topics = {at.topic for at in partitions}
            beginnings = await self._beginnings(topics)
            for at in partitions:
                if at not in beginnings:  # the group knows it before this process does
                    before = sum(other.topic == at.topic for other in beginnings)
                    raise partitions_changed(at.topic, before, max(before, at.partition) + 1, WHEN_OPENED)
            # The first host of all runs begins with what there is.
            begun: Positions = beginnings
            if self.run_id is not None:
                begun = await self._folds.starts(self.run_id, topics)
            stored = await log.committed_positions(self.group)
            committed = {at: position for at in partitions if (position := stored.get(at))}
            next_offsets = {at: committed.get(at, begun.get(at, 0)) for at in partitions}
            await check_offsets(log, next_offsets)
            snapshots = await self._snapshots(committed, beginnings)
            folds = {
                at: PartitionFold(
                    self._folds,
                    at,
                    producer,
                    next_offsets[at],
                    snapshots.get(at),
                    self._pace,
                )
                for at, producer in producers.items()
            }
            folded = await self._restore(
                {at: one for at, one in folds.items() if at in committed}, {**begun, **snapshots}
            )
        except BaseException:
            await asyncio.gather(*(producer.close() for producer in producers.values()))
            raise
        _log.info("partitions opened", group=self.group, partitions=[*map(str, partitions)], restored=folded)
        return folds

    async def _beginnings(self, topics: Collection[str]) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for topic in topics:
            found |= await self.log.beginning_offsets(topic)
        return found

    async def _snapshots(self, committed: Positions, beginnings: Positions) -> dict[TopicPartition, int]:
        """Return the positions of the snapshots of partitions that can be used."""
        usable: dict[TopicPartition, int] = {}
        for at, last in committed.items():
            snapshot = await load_position(self.log, scope_of(self.group, at))
            if snapshot is None:
                continue
            if beginnings[at] <= snapshot <= last:
                usable[at] = snapshot
            else:
                _log.warning(
                    "snapshot not used",
                    group=self.group,
                    partition=str(at),
                    reason=f"it is of offset {snapshot}; usable is one of {beginnings[at]} to {last}",
                )
        return usable

    async def _restore(self, folds: Mapping[TopicPartition, PartitionFold], begin: Positions) -> int:
        """Fold each partition from where its state begins up to its position; return the number of events."""
        folds = {at: one for at, one in folds.items() if begin.get(at, 0) < one.next_offset}
        if not folds:
            return 0
        topics = sorted({at.topic for at in folds})
        starts = await self._restore_from(topics, folds, begin)
        folded = 0
        reader = await self.log.consumer(topics)
        try:
            await reader.seek(starts)
            targets = {at: one.next_offset for at, one in folds.items()}
            async for records in read_on(reader, targets, max_records=1000):
                batches = _by_partition(records)
                for at in batches.keys() & folds.keys():
                    folded += await folds[at].fold_again(batches[at])
        finally:
            await reader.close()
        return folded

    async def _restore_from(
        self,
        topics: Collection[str],
        folds: Mapping[TopicPartition, PartitionFold],
        begin: Positions,
    ) -> Positions:
        """Return the positions to read from: where the state of partitions to restore begins, the end of
        others.
        """
        starts: dict[TopicPartition, int] = {}
        for topic in topics:
            beginnings = await self.log.beginning_offsets(topic)
            for at, end in (await self.log.end_offsets(topic)).items():
                target = folds[at].next_offset if at in folds else 0
                if target == 0:
                    starts[at] = end
                elif beginnings[at] > begin.get(at, 0) or end < target:
                    raise ServiceError(
                        f"{self.group}: {at} holds offsets {beginnings[at]} to {end}, but the state "
                        f"up to {target} is a fold from {begin.get(at, 0)}, and no snapshot reaches it. "
                        "Records were deleted: restore the log, or start a new run"
                    )
                else:
                    starts[at] = begin.get(at, 0)
        return starts

    async def _hand_over(self, at: TopicPartition, error: BaseException) -> None:
        await self._open.pop(at).close()
        before, now = self._fenced_at.get(at), _now()
        if before is not None and now - before < _UNEXPLAINED_WITHIN_S:
            raise FencedError(
                f"{self.group}: {at} is assigned to this host, yet another keeps taking it over. "
                "This one stops; nothing was lost. Hosts share partitions only with hosts of the same "
                f"runtime: is one of the other runtime running too? ({error})"
            ) from error
        self._fenced_at[at] = now
        _log.info("partition taken over by another host", group=self.group, partition=str(at))


def _by_partition(records: Sequence[StoredRecord]) -> dict[TopicPartition, list[StoredRecord]]:
    batches: dict[TopicPartition, list[StoredRecord]] = {}
    for record in records:
        batches.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
    return batches


def _now() -> float:
    return asyncio.get_running_loop().time()
