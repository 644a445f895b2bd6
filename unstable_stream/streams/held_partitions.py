"""The input partitions one host of a processor holds: opened, processed side by side, handed over.

Hosts of one processor share its partitions out, and a partition may change hands at any moment. Its next
holder opens it (:mod:`unstable_stream.streams.partition`), which fences the former one: that one drops
the partition, loses nothing but the work since its last commit, and goes on with the others. A partition
that was taken over although it is still assigned to us may have gone to another host and back unseen, so it
is opened once more after a while. If that happens twice in a row, somebody outside the sharing uses the same
group: then the host stops rather than take turns with it.
"""

import asyncio
from collections.abc import Iterable, Set
from typing import Final

import structlog

from unstable_stream.errors import FencedError
from unstable_stream.log.port import Positions, StoredRecord, TopicPartition
from unstable_stream.streams.partition import Hosting, PartitionFold, open_folds

__all__ = ["HeldPartitions"]

_UNEXPLAINED_WITHIN_S: Final = 60.0
"""Being fenced again within this time, with the partition assigned all along, has no innocent reason."""
_LAG_EVERY_S: Final = 1.0

_log = structlog.get_logger(__name__)


class HeldPartitions:
    """The open partitions of one host. One task at a time may use it."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._folds: dict[TopicPartition, PartitionFold] = {}
        self._fenced_at: dict[TopicPartition, float] = {}
        self._lag_due = 0.0

    def positions(self) -> Positions:
        """Return the next offset to be processed of every open partition."""
        return {at: fold.next_offset for at, fold in self._folds.items()}

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        """Close partitions that were taken away and open those that were given.

        Returns the partitions opened now with the offset to read on from: what has been read of them before
        is not to be processed.

        Raises:
            ServiceError: the state of a partition cannot be restored.
        """
        lost = self._folds.keys() - assigned
        for at in lost:
            await self._folds.pop(at).close()
        if lost:
            _log.info("partitions closed", group=self._hosting.group, partitions=[*map(str, sorted(lost))])
        self._fenced_at = {at: when for at, when in self._fenced_at.items() if at in assigned}
        settled_before = _now() - self._hosting.settle_s
        gained = {
            at
            for at in assigned - self._folds.keys()
            if at not in self._fenced_at or self._fenced_at[at] <= settled_before
        }
        if not gained:
            return {}
        opened = await open_folds(self._hosting, gained)
        self._folds.update(opened)
        return {at: fold.next_offset for at, fold in opened.items()}

    async def process(self, records: Iterable[StoredRecord]) -> None:
        """Process records, each partition's in a transaction of its own; those of others are passed over.

        Raises:
            ServiceError: a fold failed; nothing of its batch was committed.
            FencedError: partitions are taken over by somebody who does not share them out with us.
        """
        batches: dict[TopicPartition, list[StoredRecord]] = {}
        for record in records:
            batches.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        held = [at for at in batches if at in self._folds]
        results = await asyncio.gather(
            *(self._folds[at].process(batches[at]) for at in held), return_exceptions=True
        )
        errors = {at: error for at, error in zip(held, results, strict=True) if error is not None}
        for error in errors.values():
            if not isinstance(error, FencedError):
                raise error
        for at, error in errors.items():
            await self._hand_over(at, error)

    async def measure_lag(self, *, at_once: bool = False) -> None:
        """Bring the counter up to date, at most once a second unless ``at_once``."""
        now = _now()
        if now < self._lag_due and not at_once:
            return
        self._lag_due = now + _LAG_EVERY_S
        lag = 0
        for topic in {at.topic for at in self._folds}:
            for at, end in (await self._hosting.log.end_offsets(topic)).items():
                if at in self._folds:
                    lag += max(0, end - self._folds[at].next_offset)
        self._hosting.counters.lag = lag

    async def close(self) -> None:
        """Close all partitions; whoever opens them next goes on from what was committed."""
        folds, self._folds = self._folds, {}
        await asyncio.gather(*(fold.close() for fold in folds.values()))

    async def _hand_over(self, at: TopicPartition, error: BaseException) -> None:
        await self._folds.pop(at).close()
        before, now = self._fenced_at.get(at), _now()
        if before is not None and now - before < _UNEXPLAINED_WITHIN_S:
            raise FencedError(
                f"{self._hosting.group}: {at} is assigned to this host, yet another keeps taking it over. "
                "This one stops; nothing was lost. Hosts share partitions only with hosts of the same "
                f"runtime: is one of the other runtime running too? ({error})"
            ) from error
        self._fenced_at[at] = now
        _log.info("partition taken over by another host", group=self._hosting.group, partition=str(at))


def _now() -> float:
    return asyncio.get_running_loop().time()
