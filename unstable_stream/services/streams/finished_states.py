"""Forget the saved states of runs that are over, so that they do not take space for ever.

A saved state is disposable: if the run goes on all the same, it is folded again from its start
(:mod:`~unstable_stream.services.streams.fold_sink`). A run is over when it has ended, or when it was killed:
it never ended, and nothing was recorded of it for long.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from unstable_stream.events import GameStarted, LearnerUpdate, RunStarted
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.records import source_header
from unstable_stream.runs.history import RunHistory, read_history
from unstable_stream.services.streams.snapshots import POSITION, group_of_scope, run_name

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
        named: full ids of runs; if there are any, only of these.
        now_ms: the time, Unix milliseconds.
        idle_ms: a run that never ended is over if nothing was recorded of it for so long; ``None``: it is
            not.
    """
    history, saved_names = await read_history(log), await log.saved_names()
    asked = {run_id: run for run_id, run in history.runs.items() if not named or run_id in named}
    over = {
        run_id
        for run_id, run in asked.items()
        if run.ended is not None and run.ended.occurred_at_ms < ended_before_ms
    }
    if idle_ms is not None:
        # Most runs of long ago have nothing that could be forgotten: their topics need not be read.
        with_states = {name.removeprefix(run_name("")) for names in saved_names.values() for name in names}
        with_states |= {group_of_scope(scope).partition("/")[2] for scope in saved_names}
        silent = RunHistory()
        silent.runs = {run_id: run for run_id, run in asked.items() if run_id in with_states}
        over |= await idle_runs(log, silent, now_ms, idle_ms)
    found = []
    for scope, names in saved_names.items():
        owner = group_of_scope(scope).partition("/")[2]
        if owner in over:
            found.append(FinishedState(owner, scope, tuple(sorted(names))))
        elif not owner:
            runs = {name.removeprefix(run_name("")) for name in names} & over
            found += [FinishedState(run_id, scope, (run_name(run_id),)) for run_id in runs]
    return sorted(found, key=lambda each: (each.run_id, each.scope))


async def forget_states(log: EventLog, states: Collection[FinishedState]) -> int:
    """Forget states; return their number.

    A host or collector that saves one of them at the same moment does no harm: whatever is there last can be
    used, and what it lacks is folded again.
    """
    going = [(each.scope, name) for each in states for name in each.names]
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
