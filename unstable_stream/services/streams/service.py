"""The service of the stream processors, on either host."""

import asyncio
from collections.abc import Callable
from typing import Literal

from unstable_stream.log.port import EventLog
from unstable_stream.services.streams.processors import fold_sinks, host_processors
from unstable_stream.services.streams.run_configs import RunDirectory


async def run_processors(
    log: EventLog,
    run_id: str | None,
    stop: asyncio.Event,
    *,
    runtime: Literal["generic", "faust"] = "generic",
    location: str = "local",
    drain: bool = True,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Host the processors of one run, or of all runs, until ``stop``.

    Args:
        log: the event log.
        run_id: see :func:`fold_sinks`.
        stop: ends them.
        runtime: the host of the processors.
        location: the location of ``log``, for a runtime that opens its own connections.
        drain: after ``stop``, first process all records.
        on_ready: called when the processors have joined their groups and restored their state.

    Raises:
        EventError: no such run.
        ConfigError: no processor can be made from these settings, or the runtime cannot read this log.
        ServiceError: a fold failed; nothing of its batch was committed.
        FencedError: another process takes the partitions over.
    """
    async with RunDirectory(log) as runs:
        sinks = await fold_sinks(log, runs, run_id)
        if runtime == "faust":
            from unstable_stream.services.streams.faust import run_on_faust  # loads Faust

            await run_on_faust(sinks, location, stop=stop, drain=drain, on_ready=on_ready)
        else:
            await host_processors(sinks, stop=stop, drain=drain, on_ready=on_ready)
