"""The processors of a run: rewards and ratings, each with its own group, in one event loop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unstable_stream.config import RunConfig
from unstable_stream.eventlog.port import EventLog
from unstable_stream.model_pool import RatingProcessor, TrueSkillSettings
from unstable_stream.reward_transformations import RewardProcessor, build_final, build_step
from unstable_stream.services.data_dir import DataDir, open_log
from unstable_stream.services.processor_host import HostCounters, Processor, run_processor

__all__ = ["host_processors", "rating_processor", "reward_processor", "run_processors"]


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


async def host_processors(
    log: EventLog,
    makers: Sequence[Callable[[], Processor]],
    *,
    run_id: str | None,
    stop: asyncio.Event,
    counters: Mapping[str, HostCounters] | None = None,
) -> None:
    """Host several processors until ``stop``; the first that fails ends all and is raised.

    ``counters`` are by processor name.
    """
    hosts = [
        asyncio.ensure_future(
            run_processor(log, make, run_id=run_id, stop=stop, counters=(counters or {}).get(make().name))
        )
        for make in makers
    ]
    try:
        await asyncio.gather(*hosts)
    finally:
        for host in hosts:
            host.cancel()  # safe at any point: an open transaction is aborted
        await asyncio.gather(*hosts, return_exceptions=True)


async def run_processors(config: RunConfig, run_id: str, data: DataDir, stop: asyncio.Event) -> None:
    """Serve a run's reward and rating processors until ``stop`` is set and their topics are drained."""
    rewards, pool = config.rewards, config.model_pool
    log = open_log(config, data)
    try:
        await host_processors(
            log,
            [
                lambda: reward_processor(
                    run_id,
                    rewards.final,
                    rewards.step,
                    filter_opponent_invalid=config.collector.filter_opponent_invalid,
                ),
                lambda: rating_processor(run_id, pool.draw_probability),
            ],
            run_id=run_id,
            stop=stop,
        )
    finally:
        await log.close()
