"""The saved states of stream processors: how to forget those of runs that have ended."""

import time
from collections.abc import Sequence

from unstable_stream.api.loops import wait_for
from unstable_stream.api.place import Place
from unstable_stream.errors import RunError
from unstable_stream.runs.history import read_history
from unstable_stream.streams.finished_states import FinishedState, finished_states, forget_states

__all__ = ["FinishedState", "prune_states"]


def prune_states(place: Place, runs: Sequence[str] = (), *, dry_run: bool = False) -> list[FinishedState]:
    """Forget the saved states of runs that have ended; return what was found.

    Args:
        place: whose log.
        runs: ids or prefixes of runs that are never resumed again; nothing of them is kept. If empty, of
            all runs, what the log still has the records of.
        dry_run: only return what is there.

    Raises:
        RunError: no such run, or it has not ended.
        EventLogError: there is no log.
    """

    async def work() -> list[FinishedState]:
        async with place.opened_log() as log:
            history = await read_history(log)
            named = [history.find(run) for run in runs]
            for run in named:
                if run.ended is None:
                    raise RunError(
                        f"run {run.run_id} has not ended, so its states are needed. If it was killed, resume "
                        "it and stop it with Ctrl-C"
                    )
            found = await finished_states(
                log, ended_before_ms=int(time.time() * 1000) + 1, named=[run.run_id for run in named]
            )
            if not dry_run:
                await forget_states(log, found)
            return found

    return wait_for(work())
