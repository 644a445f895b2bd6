"""The stream processors, rewards and ratings, each with a group of its own, in one event loop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from unstable_stream.log.port import EventLog
from unstable_stream.model_pool import RatingProcessor, TrueSkillSettings
from unstable_stream.reward_transformations import RewardProcessor, build_final, build_step
from unstable_stream.runs.config import RunConfig
from unstable_stream.streams.by_run import ProcessorByRun, RunDirectory
from unstable_stream.streams.host import run_processor
from unstable_stream.streams.partition import HostCounters, Hosting, Processor

__all__ = [
    "PROCESSOR_INPUTS",
    "host_processors",
    "hostings",
    "rating_processor",
    "reward_processor",
    "run_processors",
]


def reward_processor(
    run_id: str,
    final: Sequence[Mapping[str, Any]] = (),
    step: Sequence[Mapping[str, Any]] = (),
    *,
    filter_opponent_invalid: bool = False,
) -> RewardProcessor:
    """Return a fresh reward processor; ``final`` and ``step`` are ``{"type": name, **arguments}``.

    Raises:
        ConfigError: an unknown transformation or arguments it does not take.
    """
    return RewardProcessor(
        run_id, build_final(final), build_step(step), filter_opponent_invalid=filter_opponent_invalid
    )


def rating_processor(run_id: str, draw_probability: Mapping[str, float] | None = None) -> RatingProcessor:
    """Return a fresh rating processor; raises :class:`ConfigError` for a probability outside (0, 1)."""
    return RatingProcessor(run_id, TrueSkillSettings(draw_probability=draw_probability or {}))


def _rewards_of(run_id: str, config: RunConfig) -> Processor:
    return reward_processor(
        run_id,
        config.rewards.final,
        config.rewards.step,
        filter_opponent_invalid=config.collector.filter_opponent_invalid,
    )


def _ratings_of(run_id: str, config: RunConfig) -> Processor:
    return rating_processor(run_id, config.model_pool.draw_probability)


_PROCESSORS: Final = ((RewardProcessor, _rewards_of), (RatingProcessor, _ratings_of))

PROCESSOR_INPUTS: Final = {kind.name: kind.inputs for kind, _ in _PROCESSORS}
"""The topics each processor reads, by its name."""


async def hostings(
    log: EventLog, runs: RunDirectory, run_id: str | None, counters: Mapping[str, HostCounters] | None = None
) -> list[Hosting]:
    """Return the processors of one run, or of all, ready to be hosted.

    Args:
        log: the event log.
        runs: its runs.
        run_id: full id of the run; ``None``: all, each with the configuration it began with.
        counters: by processor name, to be kept up to date.

    Raises:
        EventError: no such run.
        ConfigError: an unknown transformation, or arguments it does not take.
    """
    if run_id is not None:
        await runs.learn([run_id])
        for _, make in _PROCESSORS:
            make(run_id, runs.config(run_id))  # a mistake in it is to be known before anything is read
    return [
        Hosting(
            log,
            partial(ProcessorByRun, kind.name, kind.inputs, runs, make),
            run_id=run_id,
            learn_runs=runs.learn,
            counters=(counters or {}).get(kind.name) or HostCounters(),
        )
        for kind, make in _PROCESSORS
    ]


async def host_processors(
    hosted: Sequence[Hosting],
    *,
    stop: asyncio.Event,
    drain: bool,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Host several processors until ``stop``; the first that fails ends all and is raised.

    ``drain`` and ``on_ready`` are as for :func:`run_processor`; ready is when all are.
    """
    waiting = len(hosted)

    def one_is_ready() -> None:
        nonlocal waiting
        waiting -= 1
        if waiting == 0:
            on_ready()

    hosts = [
        asyncio.ensure_future(run_processor(one, stop=stop, drain=drain, on_ready=one_is_ready))
        for one in hosted
    ]
    try:
        await asyncio.gather(*hosts)
    finally:
        for host in hosts:
            host.cancel()  # safe at any point: an open transaction is aborted
        await asyncio.gather(*hosts, return_exceptions=True)


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
    """Serve the processors of one run, or of all, until ``stop``.

    Args:
        log: the event log.
        run_id: see :func:`hostings`.
        stop: ends them.
        runtime: what hosts them.
        location: where ``log`` is, for a runtime that makes connections of its own.
        drain: whether they first process what is there by then.
        on_ready: called when they have joined their groups and restored their state.

    Raises:
        EventError: no such run.
        ConfigError: settings that make no processor, or a runtime that cannot host them on this log.
        ServiceError: a fold failed; nothing of its batch was committed.
        FencedError: somebody else takes the partitions over.
    """
    async with RunDirectory(log) as runs:
        hosted = await hostings(log, runs, run_id)
        if runtime == "faust":
            from unstable_stream.streams.faust import run_on_faust  # loads Faust

            await run_on_faust(hosted, location, stop=stop, drain=drain, on_ready=on_ready)
        else:
            await host_processors(hosted, stop=stop, drain=drain, on_ready=on_ready)
