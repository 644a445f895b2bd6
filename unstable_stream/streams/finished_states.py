"""Forget the saved states of runs that have ended, so that they do not take space for ever.

A saved state is disposable while the records that it was folded from are in the log. So the states of a run
may go once the run has ended and the log still has the run's records from its start. If the run is resumed
all the same, it is folded again from there (:mod:`~unstable_stream.streams.partition_fold`). A state whose
records are gone from the log is the only one there is; it stays until a person names its run.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from unstable_stream.log.port import EventLog, TopicPartition
from unstable_stream.runs.history import RunStatus, read_history
from unstable_stream.runs.starts import recorded_starts
from unstable_stream.streams.snapshots import POSITION, run_name

__all__ = ["FinishedState", "finished_states", "forget_states"]

_AT_ONCE: Final = 500
_PRODUCER: Final = "forget-states"


@dataclass(frozen=True, slots=True)
class FinishedState:
    """Saved states of one run that has ended, in one partition of one processor."""

    run_id: str
    scope: str
    names: tuple[str, ...]
    kept: bool
    """The log has no longer the records that the state was folded from, so it stays."""


async def finished_states(
    log: EventLog, *, ended_before_ms: int, named: Collection[str] = ()
) -> list[FinishedState]:
    """Return the saved states of runs that have ended, sorted by run.

    Args:
        log: the event log.
        ended_before_ms: only of runs that ended before, Unix milliseconds.
        named: full ids of runs; if there are any, only of these, and nothing of them is kept.
    """
    history, log_id = await read_history(log), await log.log_id()
    ended = {
        run.run_id: run
        for run in history.runs.values()
        if run.ended is not None
        and run.ended.occurred_at_ms < ended_before_ms
        and (not named or run.run_id in named)
    }
    if not ended:
        return []
    by_name = {run_name(run_id): run for run_id, run in ended.items()}
    begins: dict[str, dict[int, int]] = {}
    found = []
    for scope, names in (await log.saved_names()).items():
        group, topic, partition = _parts(scope)
        if topic not in begins:
            there = await log.beginning_offsets(topic) if topic in await log.topics() else {}
            begins[topic] = {at.partition: begin for at, begin in there.items()}
        owner = ended.get(group.partition("/")[2])
        of_runs = [(owner, tuple(names))] if owner else [(by_name[n], (n,)) for n in names if n in by_name]
        for run, theirs in of_runs:
            start = _start(run, log_id, TopicPartition(topic, partition))
            kept = not named and begins[topic].get(partition, 0) > start
            found.append(FinishedState(run.run_id, scope, tuple(sorted(theirs)), kept))
    return sorted(found, key=lambda each: (each.run_id, each.scope))


async def forget_states(log: EventLog, states: Collection[FinishedState]) -> int:
    """Forget states that are not to be kept; return their number.

    A host that saves one of them at the same moment does no harm: whatever is there last can be used.
    """
    going = [(each.scope, name) for each in states if not each.kept for name in each.names]
    if not going:
        return 0
    producer = await log.producer(_PRODUCER)
    try:
        for first in range(0, len(going), _AT_ONCE):
            async with producer.transaction() as transaction:
                for scope, name in going[first : first + _AT_ONCE]:
                    await transaction.save(scope, {name: b""})
    finally:
        await producer.close()
    return sum(name != POSITION for _, name in going)


def _parts(scope: str) -> tuple[str, str, int]:
    """Return group, topic and partition of a scope; see :func:`~.snapshots.scope_of`."""
    group, topic, partition = scope.rsplit("/", 2)
    return group, topic, int(partition)


def _start(run: RunStatus, log_id: str, at: TopicPartition) -> int:
    return recorded_starts(run.began, log_id, [at.topic]).get(at, 0)
