"""The stream processors for rewards, ratings and metrics: each has its own group, all one event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from unstable_stream.algorithms.rolling_metrics import MetricsProcessor
from unstable_stream.extensions import Spec
from unstable_stream.log.port import Consumer, EventLog
from unstable_stream.model_pool import RatingProcessor
from unstable_stream.model_pool.systems import live_rating_system
from unstable_stream.reward_transformations import RewardProcessor, build_final, build_step
from unstable_stream.runs.config import RunConfig
from unstable_stream.services.streams.consumer import Pace, run_consumer
from unstable_stream.services.streams.fold_sink import FoldSink
from unstable_stream.services.streams.processor import Processor, ProcessorSpec
from unstable_stream.services.streams.run_configs import RunDirectory


def reward_processor(
    run_id: str,
    final: Sequence[Mapping[str, Any]] = (),
    step: Sequence[Mapping[str, Any]] = (),
    *,
    filter_opponent_invalid: bool = False,
    step_texts: bool = False,
) -> RewardProcessor:
    """Return a fresh reward processor; ``final`` and ``step`` hold ``{"type": name, **arguments}``.

    Raises:
        ConfigError: a transformation is unknown or does not take these arguments.
    """
    build_final(final), build_step(step)  # finds mistakes now; each environment gets fresh ones later
    return RewardProcessor(
        run_id,
        partial(build_final, final),
        partial(build_step, step),
        filter_opponent_invalid=filter_opponent_invalid,
        step_texts=step_texts,
    )


def rating_processor(
    run_id: str, draw_probability: Mapping[str, float] | None = None, system: Spec = "trueskill"
) -> RatingProcessor:
    """Return a fresh rating processor; raises :class:`ConfigError` for a probability outside (0, 1)."""
    return RatingProcessor(run_id, live_rating_system(system, draw_probability))


def _reward_settings(config: RunConfig) -> Any:
    rewards = config.rewards.model_dump(mode="json")
    return [rewards["final"], rewards["step"], config.collector.filter_opponent_invalid, config.step_texts]


def _rewards_of(run_id: str, config: RunConfig) -> Processor:
    final, step, filtered, step_texts = _reward_settings(config)
    return reward_processor(run_id, final, step, filter_opponent_invalid=filtered, step_texts=step_texts)


def _rating_settings(config: RunConfig) -> Any:
    pool = config.model_pool.model_dump(mode="json")
    return [pool["draw_probability"], pool["rating_system"]]


REWARDS: Final = ProcessorSpec(
    RewardProcessor.name,
    RewardProcessor.inputs,
    _rewards_of,
    _reward_settings,
    code=("final_transformation", "step_transformation"),
    version=2,  # the first play of a game counts also if it asked no trained seat
)
RATINGS: Final = ProcessorSpec(
    RatingProcessor.name,
    RatingProcessor.inputs,
    lambda run_id, config: rating_processor(run_id, *_rating_settings(config)),
    _rating_settings,
    code=("rating_system",),
)
METRICS: Final = ProcessorSpec(
    MetricsProcessor.name, MetricsProcessor.inputs, lambda run_id, config: MetricsProcessor(run_id)
)
PROCESSORS: Final = (REWARDS, RATINGS, METRICS)


async def fold_sinks(log: EventLog, runs: RunDirectory, run_id: str | None) -> list[FoldSink]:
    """Return a sink for each processor, for one run or for all.

    Args:
        log: the event log.
        runs: the runs of the log.
        run_id: full id of the run; ``None``: all runs, each with its first configuration.

    Raises:
        EventError: no such run.
        ConfigError: a transformation is unknown or does not take its arguments.
    """
    if run_id is not None:
        await runs.learn([run_id])
        for spec in PROCESSORS:
            spec.make(run_id, runs.config(run_id))  # finds mistakes before anything is read
    return [FoldSink(log, spec, runs, run_id) for spec in PROCESSORS]


async def _join_group(sink: FoldSink) -> Consumer:
    return await sink.log.consumer(sink.spec.inputs, sink.group)


async def host_processors(
    sinks: Sequence[FoldSink],
    *,
    stop: asyncio.Event,
    drain: bool = True,
    max_records: int = 500,
    on_ready: Callable[[], None] = lambda: None,
    join: Callable[[FoldSink], Awaitable[Consumer]] = _join_group,
) -> None:
    """Host processors, each in its own group, until ``stop``; the first failure ends all.

    Args:
        sinks: the sinks of the processors.
        stop: ends them.
        drain: after ``stop``, first process all records of their partitions; otherwise end after the current
            batch.
        max_records: the most records of one batch.
        on_ready: called when all have joined their groups and opened their first partitions.
        join: returns what reads for a sink.

    Raises:
        FencedError: a process outside the group takes its partitions over.
        ServiceError: a fold failed, its state cannot be restored, or records were deleted before they were
            processed; nothing of the batch is committed.
    """
    pace = Pace(max_records, linger_s=0.02)
    waiting = len(sinks)

    def one_is_ready() -> None:
        nonlocal waiting
        waiting -= 1
        if waiting == 0:
            on_ready()

    async def host(sink: FoldSink) -> None:
        topics = sink.spec.inputs
        consumer = await join(sink)
        await run_consumer(
            sink.log, topics, consumer, sink, stop=stop, drain=drain, pace=pace, on_ready=one_is_ready
        )

    hosts = [asyncio.ensure_future(host(sink)) for sink in sinks]
    try:
        await asyncio.gather(*hosts)
    finally:
        for one in hosts:
            one.cancel()  # safe at any point: an open transaction is aborted
        await asyncio.gather(*hosts, return_exceptions=True)
