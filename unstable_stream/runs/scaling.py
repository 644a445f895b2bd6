"""Record how many engines a person wants for a run that is going on."""

import time

from unstable_stream.errors import RunError
from unstable_stream.events import EnginesWanted, event_id
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.history import list_runs


async def want_engines(log: EventLog, run_id: str, engines: int | None) -> None:
    """Record that a run shall have so many engines from now on; ``None``: as configured.

    Raises:
        RunError: the run is over.
    """
    run = next(run for run in await list_runs(log) if run.run_id == run_id)
    if run.state != "running":
        raise RunError(f"run {run_id} is {run.state}: it has no engines; resume it first")
    now_ms = time.time_ns() // 1_000_000
    wanted = EnginesWanted(
        event_id=event_id(run_id, "engines-wanted", now_ms),
        run_id=run_id,
        occurred_at_ms=now_ms,
        engines=engines,
    )
    await log.append([record_from_event(wanted)])
