"""Offline training: a new run whose learner trains on the steps of an old one, without playing a game.

The learner is the same service on the same topics. In place of collector and reward processor a feeder
publishes the old run's steps as the new run's, in their original order, and no faster than the learner uses
them, so that its buffer drops none that a live run would not. Everything a step was recorded with stays:
tokens, log-probabilities, rewards as shaped then, trajectory and turn, which name its origin. Its id
is derived from the new run, the epoch and the old id.

A step's age means nothing here: its policy version counts the old run's updates. So there is no bound on
staleness; importance ratios are taken against the recorded log-probabilities, as always.
"""

import asyncio
import contextlib
import tomllib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events import LearnerUpdate, RunStarted, Step
from unstable_stream.log.port import Consumer, EventLog
from unstable_stream.log.reading import readable_events
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.proofs.replayed_steps import replayed_step
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.history import RunHistory
from unstable_stream.runs.records import finish_run, new_run_id, start_run
from unstable_stream.streams.history import History, Slice, merged

__all__ = ["OfflineProgress", "find_recorded_run", "load_offline_config", "train_offline"]

_POLL_S: Final = 0.5
_PUBLISH_AT_ONCE: Final = 500


@dataclass(slots=True)
class OfflineProgress:
    """How far offline training has come."""

    published: int = 0
    """Steps."""
    used: int = 0
    """Steps trained on or dropped."""
    updates: int = 0


async def find_recorded_run(history: History, prefix: str) -> tuple[str, Mapping[str, Any]]:
    """Return a run's full id and the configuration it ran with last, given its id or an unambiguous prefix.

    Raises:
        RunError: no such run, or several; lists what is there.
    """
    runs = RunHistory()
    async for piece in merged(history, Slice(topics=(RunStarted.TOPIC,))):
        for event in readable_events(piece.records):
            runs.apply(event)
    run = runs.find(prefix)
    return run.run_id, run.settings


def load_offline_config(
    recorded: Mapping[str, Any], path: Path, overrides: Sequence[str] = (), *, log: str = "local"
) -> RunConfig:
    """Return the configuration of a run on replayed steps: the recorded one with what a file says.

    Args:
        recorded: of the run whose steps are replayed.
        path: a TOML file with what is different; a complete configuration will do.
        overrides: ``key.path=value``, stronger than the file.
        log: where the new run is recorded.

    Raises:
        ConfigError: the file cannot be read, or what comes of it cannot run or bounds the staleness of steps.
    """
    try:
        changes = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    tree = _overlaid(recorded, {"log": log, "buffer": {"max_staleness": None}})
    config = parse_config(_overlaid(tree, changes), overrides, origin=str(path))
    if config.buffer.max_staleness is not None:
        raise ConfigError(
            f"{path}: buffer.max_staleness = {config.buffer.max_staleness}, but the policy versions of "
            "replayed steps count the updates of another run: leave it out"
        )
    return config


def _overlaid(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged_tree = dict(base)
    for key, value in changes.items():
        below = merged_tree.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged_tree[key] = _overlaid(below, value)
        else:
            merged_tree[key] = value
    return merged_tree


async def train_offline(
    history: History,
    wanted: Slice,
    config: RunConfig,
    data: DataDir,
    log: EventLog,
    *,
    epochs: int = 1,
    stop: asyncio.Event | None = None,
    progress: OfflineProgress | None = None,
    on_start: Callable[[str], None] = lambda run_id: None,
) -> str:
    """Make a run of a configuration on replayed steps and return its id.

    It ends after ``learner.iterations`` updates, or with fewer when the steps do not suffice for another.

    Args:
        history: where the steps are.
        wanted: which of them; the run is in its filter.
        config: of the new run.
        data: where its checkpoints go.
        log: where the new run is recorded.
        epochs: how often the slice is gone through; every epoch's steps have ids of their own.
        stop: ends it after the update under way.
        progress: updated on the way.
        on_start: told the new run's id.

    Raises:
        RunError: there are no such steps.
        LearnerError: training cannot go on, see the message.
    """
    # Imported here: the learner loads torch.
    from unstable_stream.inference.base_model import resolve_model
    from unstable_stream.workers.learner import LearnerService

    wanted = replace(wanted, topics=(Step.TOPIC,))
    source = wanted.filter.run_id
    assert source is not None
    if not await _is_there_any(history, wanted):
        raise RunError(
            f"no such steps of run {source} here. A log keeps steps for some days only: take them from the "
            "archive with --source archive"
        )
    model_path = resolve_model(config.model)
    stop = stop or asyncio.Event()
    progress = progress or OfflineProgress()
    run_id = new_run_id(config.name)
    await log.create_topics(list(load_topics().values()))
    await start_run(log, config, run_id, replayed_run_id=source)
    on_start(run_id)
    service = await asyncio.to_thread(LearnerService, config, run_id, data, model_path)
    feeding = asyncio.ensure_future(_feed(history, wanted, config, run_id, log, epochs, stop, progress))
    outcome, reason = "failed", "interrupted"
    try:
        updates = await service.train(log, stop)
        done = updates >= config.learner.iterations
        exhausted = feeding.done()
        if exhausted:
            feeding.result()  # raises what went wrong with it
        progress.updates = updates
        outcome = "completed" if done else "stopped"
        reason = f"{updates} updates on steps of {source}" + (
            "" if done else ": there were no more steps" if exhausted else ": interrupted"
        )
    finally:
        feeding.cancel()
        await asyncio.wait([feeding])
        await finish_run(log, run_id, outcome, reason)
    return run_id


async def _feed(
    history: History,
    wanted: Slice,
    config: RunConfig,
    run_id: str,
    log: EventLog,
    epochs: int,
    stop: asyncio.Event,
    progress: OfflineProgress,
) -> None:
    """Publish steps while fewer than the back-pressure bound wait; at the end, stop the learner."""
    needed = int(config.learner.batch_size * config.learner.batch_delay_buffer)
    updates = await log.consumer([LearnerUpdate.TOPIC])
    try:
        for epoch in range(1, epochs + 1):
            pending: list[Step] = []
            async for step in _steps(history, wanted):
                pending.append(replayed_step(step, run_id, epoch))
                room = config.max_pending_steps - (progress.published - progress.used)
                if len(pending) >= min(room, _PUBLISH_AT_ONCE):
                    await _publish(log, pending, progress)
                    pending = []
                while progress.published - progress.used >= config.max_pending_steps:
                    await _count_used(updates, run_id, progress)
            await _publish(log, pending, progress)
        while progress.published - progress.used >= needed:
            await _count_used(updates, run_id, progress)
    finally:
        stop.set()  # a learner that waits for a batch would wait for ever
        await updates.close()


async def _publish(log: EventLog, steps: list[Step], progress: OfflineProgress) -> None:
    if steps:
        await log.append([record_from_event(step) for step in steps])
        progress.published += len(steps)


async def _count_used(updates: Consumer, run_id: str, progress: OfflineProgress) -> None:
    for event in readable_events(await updates.poll(timeout_s=_POLL_S)):
        if isinstance(event, LearnerUpdate) and event.run_id == run_id:
            progress.used += len(event.step_ids) + len(event.dropped)
            progress.updates = event.update


async def _steps(history: History, wanted: Slice) -> AsyncGenerator[Step, None]:
    async with contextlib.aclosing(merged(history, wanted)) as pieces:
        async for piece in pieces:
            for event in readable_events(piece.records):
                if isinstance(event, Step):
                    yield event


async def _is_there_any(history: History, wanted: Slice) -> bool:
    async with contextlib.aclosing(_steps(history, wanted)) as steps:
        return await anext(steps, None) is not None
