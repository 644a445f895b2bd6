"""Forget the saved states of runs that are over, so that they do not take space for ever.

A saved state is disposable while the records that it was folded from are in the log. So the states of a run
may go once the run is over and the log still has the run's records from its start. If it goes on all the
same, it is folded again from there (:mod:`~unstable_stream.streams.partition_fold`). A state whose records
are gone from the log is the only one there is; it stays until a person names its run.

A run is over when it has ended, or when it was killed: it never ended, and nothing was recorded of it for
long. A host takes a run without a state for one that begins, and one may be alive, also one of this run
alone. So of a killed run a state without content stays, which says where its records begin.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from unstable_stream.events import GameStarted, LearnerUpdate, RunStarted
from unstable_stream.log.port import EventLog, TopicPartition
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.records import source_header
from unstable_stream.runs.history import RunHistory, RunStatus, read_history
from unstable_stream.runs.starts import recorded_starts
from unstable_stream.streams.snapshots import (
    MARK,
    POSITION,
    inputs_of,
    is_of_topics,
    pack_run,
    run_name,
    unpack_run,
)

__all__ = ["FinishedState", "finished_states", "forget_states", "idle_runs"]

_AT_ONCE: Final = 500
_PRODUCER: Final = "forget-states"
_SIGNS_OF_LIFE: Final = (RunStarted.TOPIC, GameStarted.TOPIC, LearnerUpdate.TOPIC)
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class FinishedState:
    """Saved states of one run that is over: in one partition of one processor, or its collector's."""

    run_id: str
    scope: str
    names: tuple[str, ...]
    kept: bool
    """The log has no longer the records that the state was folded from, so it stays."""
    emptied: bool = False
    """The state stays without its content: it tells a host that the run has begun."""


async def idle_runs(log: EventLog, history: RunHistory, now_ms: int, idle_ms: int) -> set[str]:
    """Return the runs that have not ended, and of which nothing was recorded for ``idle_ms`` before now.

    Reads the last hour, then the time before only for runs that have not been met.
    """
    since_ms = now_ms - idle_ms
    silent = {
        source_header(run.run_id): run.run_id
        for run in history.runs.values()
        if run.began is not None and run.ended is None and run.started_at_ms < since_ms
    }
    there = await log.topics()
    topics = [topic for topic in _SIGNS_OF_LIFE if topic in there]
    for first_ms in (max(since_ms, now_ms - _HOUR_MS), since_ms):
        for topic in topics if silent else ():
            starts = await log.offsets_for_time(topic, first_ms)
            async for record in read_to_end(log, (topic,), starts=starts):
                silent.pop(record.headers.get("ce_source", b""), None)
    return set(silent.values())


async def finished_states(
    log: EventLog,
    *,
    ended_before_ms: int,
    named: Collection[str] = (),
    now_ms: int = 0,
    idle_ms: int | None = None,
) -> list[FinishedState]:
    """Return the saved states of runs that are over, sorted by run.

    Args:
        log: the event log.
        ended_before_ms: of runs that have ended, only if that was before, Unix milliseconds.
        named: full ids of runs; if there are any, only of these, and nothing of them is kept.
        now_ms: the time, Unix milliseconds.
        idle_ms: a run that never ended is over if nothing was recorded of it for so long; ``None``: it is
            not.
    """
    history, log_id = await read_history(log), await log.log_id()
    saved_names = await log.saved_names()
    ended = {
        run.run_id: run
        for run in history.runs.values()
        if run.ended is not None
        and run.ended.occurred_at_ms < ended_before_ms
        and (not named or run.run_id in named)
    }
    full: set[tuple[str, str]] = set()
    if idle_ms is not None:
        silent = RunHistory()
        silent.runs = {
            run.run_id: run
            for run in history.runs.values()
            if run.ended is None
            and run.started_at_ms < now_ms - idle_ms
            and (not named or run.run_id in named)
        }
        # Most runs of long ago have nothing that could be forgotten: their topics need not be read.
        full = await _with_content(log, saved_names, silent.runs)
        silent.runs = {run_id: silent.runs[run_id] for run_id in {run_id for _, run_id in full}}
        ended |= {one: history.runs[one] for one in await idle_runs(log, silent, now_ms, idle_ms)}
    if not ended:
        return []
    by_name = {run_name(run_id): run for run_id, run in ended.items()}
    topics = await log.topics()
    begins: dict[TopicPartition, int] = {}
    found = []
    for scope, names in saved_names.items():
        group, inputs = inputs_of(scope, topics)
        for topic in {at.topic for at in inputs if at not in begins}.intersection(topics):
            begins |= await log.beginning_offsets(topic)
        owner = ended.get(group.partition("/")[2])
        of_runs: list[tuple[RunStatus, tuple[str, ...]]]
        of_runs = [(by_name[name], (name,)) for name in names if name in by_name]
        if owner is not None and (owner.ever_ended or is_of_topics(scope)):
            of_runs = [(owner, tuple(names))]
        for run, theirs in of_runs:
            starts = recorded_starts(run.began, log_id, {at.topic for at in inputs})
            kept = not named and any(begins.get(at, 0) > starts.get(at, 0) for at in inputs)
            emptied = not run.ever_ended and not is_of_topics(scope)
            if emptied and (scope, run.run_id) not in full:
                continue
            found.append(FinishedState(run.run_id, scope, tuple(sorted(theirs)), kept, emptied))
    return sorted(found, key=lambda each: (each.run_id, each.scope))


async def forget_states(log: EventLog, states: Collection[FinishedState]) -> int:
    """Forget states that are not to be kept; return their number.

    A host or collector that saves one of them at the same moment does no harm: whatever is there last can be
    used, and what it lacks is folded again.
    """
    going = [
        (each.scope, name, await _emptied(log, each.scope, name) if each.emptied else b"")
        for each in states
        if not each.kept
        for name in each.names
    ]
    if not going:
        return 0
    producer = await log.producer(_PRODUCER)
    try:
        for first in range(0, len(going), _AT_ONCE):
            async with producer.transaction() as transaction:
                for scope, name, content in going[first : first + _AT_ONCE]:
                    await transaction.save(scope, {name: content})
    finally:
        await producer.close()
    return sum(name not in (MARK, POSITION) for _, name, _ in going)


async def _with_content(
    log: EventLog, saved_names: Mapping[str, Collection[str]], run_ids: Collection[str]
) -> set[tuple[str, str]]:
    """Return scope and run of the states of these runs that hold something."""
    found: set[tuple[str, str]] = set()
    by_name = {run_name(run_id): run_id for run_id in run_ids}
    for scope, names in saved_names.items():
        owner = inputs_of(scope, {})[0].partition("/")[2]
        if owner in run_ids and is_of_topics(scope):
            found.add((scope, owner))
            continue
        wanted = [name for name in names if name in by_name]
        for name, packed in (await log.saved(scope, wanted)).items() if wanted else ():
            state = unpack_run(packed)
            if state is not None and state.state is not None:
                found.add((scope, by_name[name]))
    return found


async def _emptied(log: EventLog, scope: str, name: str) -> bytes:
    """Return a run's saved state without its content: it is then folded again from its first record."""
    packed = (await log.saved(scope, [name])).get(name, b"")
    state = unpack_run(packed)
    return packed if state is None else pack_run(state.first, state.position, state.digest, None)
