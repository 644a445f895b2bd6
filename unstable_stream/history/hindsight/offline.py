"""Offline training: a new run whose learner trains on the steps of an old one, without playing a game.

The learner is the same service on the same topics. A feeder replaces the collector and the reward processor:
it publishes the old run's steps as steps of the new run, in their original order. It publishes no faster than
the learner uses them, so that the buffer drops only steps that a live run would drop too. A step keeps its
recorded tokens, log-probabilities and shaped rewards, and its trajectory and turn, which name its origin. Its
id is computed from the new run, the epoch and the old id.

A step's age has no meaning here: its policy version counts the old run's updates. So there is no bound on
staleness. Importance ratios use the recorded log-probabilities, as always.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events import LearnerUpdate, RunStarted, Step, trained_model
from unstable_stream.history.proofs.recompute import replayed_step
from unstable_stream.log.port import Consumer, EventLog
from unstable_stream.log.reading import readable_events
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topic_drift import create_declared_topics
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.base_model import base_model_path, with_fingerprint
from unstable_stream.runs.config import RunConfig, parse_config, read_toml
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.history import RunHistory, RunStatus
from unstable_stream.runs.overlay import overlaid
from unstable_stream.runs.recording import finish_run, new_run_id, start_run
from unstable_stream.services.launch.stopping import Stop, end_by, say, stopped_by_signals
from unstable_stream.services.streams.ordered_history import History, Slice, merged
from unstable_stream.services.streams.reports import Reporter
from unstable_stream.services.tracking.service_reports import LAUNCHER

_POLL_S: Final = 0.5
_PUBLISH_AT_ONCE: Final = 500


@dataclass(slots=True)
class OfflineProgress:
    """The progress of offline training."""

    published: int = 0
    """Steps."""
    used: int = 0
    """The number of steps trained or dropped."""
    updates: int = 0


async def find_recorded_run(history: History, wanted: str, dropped: Collection[str] = ()) -> RunStatus:
    """Return a run, as far as its topic says; see :meth:`RunHistory.find`.

    Raises:
        RunError: no such run, or several; lists what is there.
    """
    runs = RunHistory()
    async for piece in merged(history, Slice(topics=(RunStarted.TOPIC,))):
        for event in readable_events(piece.records):
            runs.apply(event)
    return runs.find(wanted, dropped)


def load_offline_config(
    recorded: Mapping[str, Any], path: Path, overrides: Sequence[str] = (), *, log: str = "local"
) -> RunConfig:
    """Return the configuration of a run on replayed steps: the recorded one, changed by a file.

    Args:
        recorded: the configuration of the run whose steps are replayed.
        path: a TOML file with the differences; it may be a complete configuration.
        overrides: ``key.path=value``; they win over the file.
        log: where the new run is recorded.

    Raises:
        ConfigError: the file cannot be read, or the result cannot run or bounds the staleness of steps, or
            the steps were sampled with top-p.
    """
    changes = read_toml(path)
    begun = parse_config(recorded)
    alone = {"log": log, "buffer": {"max_staleness": None}, "learner": {"num_learners": 1}}
    tree = overlaid(begun.model_dump(mode="json"), alone)
    config = parse_config(overlaid(tree, changes), overrides, origin=str(path))
    if config.model != begun.model:
        config = config.model_copy(update={"model_fingerprint": ""})
    if len(config.trained_models) > 1:
        names = [model.name for model in config.trained_models]
        raise ConfigError(
            f"the run trains {', '.join(names)}, and its steps are replayed to one of them: name it with "
            f"--set 'trained_models=[{{name = \"{names[0]}\"}}]'"
        )
    if config.buffer.max_staleness is not None:
        raise ConfigError(
            f"{path}: buffer.max_staleness = {config.buffer.max_staleness}, but the policy versions of "
            "replayed steps count the updates of another run: leave it out"
        )
    check_scores(begun)
    return config


def check_scores(recorded: RunConfig) -> None:
    """Refuse the steps of a run whose tokens no learner can weigh.

    Raises:
        ConfigError: it sampled with top-p.
    """
    if recorded.sampling.top_p < 1:
        raise ConfigError(
            f"the steps were sampled with sampling.top_p = {recorded.sampling.top_p}: the learner scores "
            "tokens under the whole distribution, so its importance ratios would be wrong. Take a run with "
            "top_p = 1"
        )


async def train_offline(
    history: History,
    wanted: Slice,
    config: RunConfig,
    data: DataDir,
    log: EventLog,
    *,
    epochs: int = 1,
    stop: Stop | None = None,
    progress: OfflineProgress | None = None,
    on_start: Callable[[str], None] = lambda run_id: None,
) -> str:
    """Run a configuration on replayed steps and return the new run's id.

    It ends after ``learner.iterations`` updates, or earlier if too few steps are left for an update.

    Args:
        history: the source of the steps.
        wanted: the slice to train on; its filter names the run.
        config: the new run's configuration.
        data: the data directory of its checkpoints.
        log: where the new run is recorded.
        epochs: the number of passes over the slice; the steps of each epoch have their own ids.
        stop: ends it after the current update, as a signal does; asked again, at once.
        progress: updated during the run.
        on_start: called with the new run's id.

    Raises:
        RunError: the slice holds no steps.
        LearnerError: training cannot go on, see the message.
        KeyboardInterrupt, SystemExit: a signal ended it; the end is recorded.
    """
    # Imported here: the learner loads torch.
    from unstable_stream.services.workers.learner import LearnerService

    wanted = replace(wanted, topics=(Step.TOPIC,))
    (model,) = config.model_names
    source = await _source_of(history, wanted, model)
    model_path = base_model_path(config)
    config = with_fingerprint(config, model_path)
    stop = stop or Stop()
    progress = progress or OfflineProgress()
    run_id = new_run_id(config.name)
    await create_declared_topics(log, load_topics())
    with stopped_by_signals(stop):
        await start_run(log, config, run_id, replayed_run_id=source)
        alive = Reporter(log, run_id, LAUNCHER, lambda: {"services/learner/up": 1.0})
        works = (alive.run(), _announce(stop, run_id))
        beside: list[asyncio.Future[Any]] = [asyncio.ensure_future(work) for work in works]
        service: LearnerService | None = None
        outcome, reason = "failed", "interrupted"
        try:
            on_start(run_id)
            build = partial(LearnerService, config, run_id, data, model_path, has_games=False, model=model)
            service = await asyncio.to_thread(build)
            feed = _feed(history, wanted, config, run_id, log, epochs, stop.asked, progress)
            feeding = asyncio.ensure_future(feed)
            training = asyncio.ensure_future(service.train(log, stop.asked))
            hurry = asyncio.ensure_future(stop.at_once.wait())
            beside += [feeding, hurry]
            await asyncio.wait((training, hurry), return_when=asyncio.FIRST_COMPLETED)
            if training.done():
                progress.updates = training.result()
                outcome, reason = _result(progress.updates, config, source, feeding, stop)
            else:
                training.cancel()
                outcome, reason = "stopped", stop.reason
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            await finish_run(log, run_id, outcome, reason)
            if stop.at_once.is_set() and stop.signal is not None:
                end_by(stop.signal)  # else the update would hold this process up
            if service is not None:
                await asyncio.to_thread(service.close)
    _raise_for(stop.signal)
    return run_id


def _result(
    updates: int, config: RunConfig, source: str, feeding: "asyncio.Future[None]", stop: Stop
) -> tuple[str, str]:
    """Return outcome and reason of training that has ended; raise the error of the feed if it failed."""
    if feeding.done():
        feeding.result()
    reason = f"{updates} updates on steps of {source}"
    if updates >= config.learner.iterations:
        return "completed", reason
    return "stopped", f"{reason}: {'there were no more steps' if feeding.done() else stop.reason}"


def _raise_for(number: int | None) -> None:
    """End the caller as Python does at a signal, if one stopped the run."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number is not None:
        raise SystemExit(128 + number)


async def _announce(stop: Stop, run_id: str) -> None:
    await stop.asked.wait()
    if stop.signal is not None:
        say(f"{stop.reason}: stopping run {run_id} after its update. A second signal ends it at once")


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
    """Publish steps while fewer wait than the back-pressure bound; at the end, stop the learner."""
    needed = int(config.learner.batch_size * config.learner.batch_delay_buffer)
    (model,) = config.model_names
    updates = await log.consumer([LearnerUpdate.TOPIC])
    try:
        for epoch in range(1, epochs + 1):
            pending: list[Step] = []
            async for step in _steps(history, wanted, model):
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
        progress.published += len(steps)  # before: the learner may end, and with it this task, in mid-append
        await log.append([record_from_event(step) for step in steps])


async def _count_used(updates: Consumer, run_id: str, progress: OfflineProgress) -> None:
    for event in readable_events(await updates.poll(timeout_s=_POLL_S)):
        if isinstance(event, LearnerUpdate) and event.run_id == run_id:
            progress.used += len(event.step_ids) + len(event.dropped)
            progress.updates = event.update


async def _steps(history: History, wanted: Slice, model: str | None) -> AsyncGenerator[Step, None]:
    async with contextlib.aclosing(merged(history, wanted)) as pieces:
        async for piece in pieces:
            for event in readable_events(piece.records):
                if isinstance(event, Step) and trained_model(event.model_uid) == model:
                    yield event


async def _source_of(history: History, wanted: Slice, model: str | None) -> str:
    """Return the run of the slice, if it holds a step."""
    assert wanted.filter.run_id is not None
    async with contextlib.aclosing(_steps(history, wanted, model)) as steps:
        if await anext(steps, None) is None:
            of_model = f" and model {model}" if model else ""
            raise RunError(
                f"no such steps of run {wanted.filter.run_id}{of_model} here. A log keeps steps for some "
                "days only: take them from the archive with --source archive"
            )
    return wanted.filter.run_id
