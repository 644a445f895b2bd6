"""Runs as they stand in the log: start one, find one, read back its configuration."""

import re
import secrets
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from unstable_stream.errors import RunError
from unstable_stream.events import Event, LearnerUpdate, RunFinished, RunResumed, RunStarted, event_id
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import events_to_end
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.code import code_in_use
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.version import __version__

if TYPE_CHECKING:
    from unstable_stream.runs.fork import Fork

__all__ = [
    "find_run",
    "finish_run",
    "new_run_id",
    "resume_run",
    "run_started",
    "start_run",
]


def new_run_id(name: str) -> str:
    """Return an id that sorts by time and says what it is, e.g. ``demo-20260131-142501-3fa1``."""
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-") or "run"
    return f"{slug}-{datetime.now(tz=UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


async def start_run(
    log: EventLog,
    config: RunConfig,
    run_id: str,
    fork: "Fork | None" = None,
    *,
    replayed_run_id: str | None = None,
) -> RunStarted:
    """Record that a run exists and, if it is a fork, the checkpoints it takes over from its parent.

    ``replayed_run_id`` is the run whose steps it trains on instead of playing games.
    """
    event = RunStarted(
        event_id=event_id(run_id, "run-started"),
        run_id=run_id,
        occurred_at_ms=_now_ms(),
        name=config.name,
        seed=config.seed,
        config=config.model_dump(mode="json"),
        package_version=__version__,
        parent_run_id=fork.parent_run_id if fork else replayed_run_id,
        parent_update=fork.update if fork else None,
        parent_games=fork.games if fork else 0,
        extensions=code_in_use(config),
    )
    taken_over = fork.checkpoints_of(run_id, event.occurred_at_ms) if fork else []
    await log.append([record_from_event(each) for each in (event, *taken_over)])
    return event


async def run_started(log: EventLog, run_id: str) -> RunStarted:
    """Return how a run began; raises :class:`RunError` if there is no such run."""
    for event in await _run_events(log, run_id):
        if isinstance(event, RunStarted):
            return event
    raise RunError(f"no run {run_id!r} in this log")


async def resume_run(log: EventLog, run_id: str, config: RunConfig) -> RunResumed:
    """Record that a run goes on."""
    resumptions = sum(1 for event in await _run_events(log, run_id) if isinstance(event, RunResumed))
    event = RunResumed(
        event_id=event_id(run_id, "run-resumed", resumptions + 1),
        run_id=run_id,
        occurred_at_ms=_now_ms(),
        resumption=resumptions + 1,
        config=config.model_dump(mode="json"),
        package_version=__version__,
        extensions=code_in_use(config),
    )
    await log.append([record_from_event(event)])
    return event


async def finish_run(log: EventLog, run_id: str, outcome: str, reason: str) -> None:
    """Record how a run ended; ``outcome`` is ``completed``, ``stopped`` or ``failed``."""
    resumptions = sum(1 for event in await _run_events(log, run_id) if isinstance(event, RunResumed))
    updates = {
        event.update
        async for _, event in events_to_end(log, (LearnerUpdate.TOPIC,), run_id=run_id)
        if isinstance(event, LearnerUpdate)
    }
    finished = RunFinished(
        event_id=event_id(run_id, "run-finished", resumptions),
        run_id=run_id,
        occurred_at_ms=_now_ms(),
        outcome=outcome,
        reason=reason,
        updates=len(updates),
    )
    await log.append([record_from_event(finished)])


async def find_run(log: EventLog, run_id: str) -> tuple[str, RunConfig]:
    """Return a run's full id and the configuration it runs with, given its id or an unambiguous prefix.

    Raises:
        RunError: no such run, or several; lists what is there.
    """
    events = await _run_events(log, run_id, prefix=True)
    found = {event.run_id for event in events if isinstance(event, RunStarted)}
    if run_id in found:
        found = {run_id}
    if not found:
        known = sorted({e.run_id for e in await _run_events(log, "", prefix=True)}) or ["none"]
        raise RunError(f"no run {run_id!r} in this log; known runs: {', '.join(known[-10:])}")
    if len(found) > 1:
        raise RunError(f"{run_id!r} is the beginning of several runs: {', '.join(sorted(found))}")
    full_id = found.pop()
    configs = [e.config for e in events if e.run_id == full_id and isinstance(e, RunStarted | RunResumed)]
    return full_id, parse_config(configs[-1], origin=f"run {full_id}")


async def _run_events(log: EventLog, run_id: str, *, prefix: bool = False) -> list[Event]:
    if RunStarted.TOPIC not in await log.topics():
        return []  # a log that no run has used yet
    events = [event async for _, event in events_to_end(log, ("runs",))]
    return [e for e in events if (e.run_id.startswith(run_id) if prefix else e.run_id == run_id)]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
