"""The saved states of stream processors: how to forget those of runs that are over."""

import time
from collections.abc import Sequence

from unstable_stream.api.place import Place
from unstable_stream.errors import RunError
from unstable_stream.log.port import EventLog
from unstable_stream.runs.history import read_history
from unstable_stream.services.streams.finished_states import (
    FinishedState,
    finished_states,
    forget_states,
    idle_runs,
)

__all__ = ["FinishedState", "prune_states"]


def prune_states(
    place: Place, runs: Sequence[str] = (), *, dry_run: bool = False, idle_days: float = 30
) -> list[FinishedState]:
    """Forget the saved states of runs that are over; return what was found.

    Args:
        place: whose log.
        runs: ids or prefixes of runs; if empty, of all.
        dry_run: only return what is there.
        idle_days: a run that never ended is over if nothing was recorded of it for so many days.

    Raises:
        RunError: no such run, or it is not over.
        EventLogError: there is no log.
    """

    async def work(log: EventLog) -> list[FinishedState]:
        history = await read_history(log)
        named = [history.find(run) for run in runs]
        now_ms, idle_ms = int(time.time() * 1000), int(idle_days * 24 * 3600 * 1000)
        idle = await idle_runs(log, history, now_ms, idle_ms) if named else ()
        for run in named:
            if run.ended is None and run.run_id not in idle:
                raise RunError(
                    f"run {run.run_id} has not ended, and something was recorded of it within "
                    f"{idle_days:g} days, so its states are needed. If it was killed, resume it and stop "
                    "it with Ctrl-C, or give a lower number: --idle-days"
                )
        found = await finished_states(
            log,
            ended_before_ms=now_ms + 1,
            named=[run.run_id for run in named],
            now_ms=now_ms,
            idle_ms=idle_ms,
        )
        if not dry_run:
            await forget_states(log, found)
        return found

    return place.ask_log(work)
