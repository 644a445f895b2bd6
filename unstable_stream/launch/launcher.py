"""The launcher: records the run, starts and supervises its processes, and ends it in order.

1. check the whole configuration; nothing has been started or written yet;
2. record the run (or its resumption) in the log;
3. start the services that do not run elsewhere, and Ray before those that need it;
4. wait until the learner has made its updates and the collector has evaluated the last checkpoint;
5. record the end, stop the processors, then the archiver, each after it has drained its topics.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from unstable_stream.errors import RunError, ServiceError
from unstable_stream.launch.preflight import check_config
from unstable_stream.launch.ray_cluster import resolve_model, start_local, stop_local
from unstable_stream.launch.supervisor import Supervisor
from unstable_stream.log.open import open_log_at
from unstable_stream.log.port import EventLog
from unstable_stream.log.topic_drift import prepare_topics
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.fork import Fork
from unstable_stream.runs.records import finish_run, new_run_id, resume_run, run_started, start_run
from unstable_stream.tracking.reports import LAUNCHER, Reporter, Service, service_values

__all__ = ["Launch", "launch"]


@dataclass(frozen=True)
class Launch:
    """What the caller of :func:`launch` learns when the run is over."""

    run_id: str
    outcome: str
    """``completed`` or ``stopped``."""


async def launch(
    config: RunConfig,
    data: DataDir,
    *,
    resume: str | None = None,
    fork: Fork | None = None,
    watch: Callable[[EventLog, str, RunConfig, Mapping[str, Service]], Awaitable[None]] | None = None,
) -> Launch:
    """Run a configuration to its end, or until SIGINT or SIGTERM.

    ``resume`` is the id of a run to go on with, ``fork`` where in another run's history to begin.
    ``watch`` is run beside it as a live view and cancelled at the end.

    Raises:
        ConfigError: the configuration cannot run; nothing was written.
        RunError: the run to resume plays no games.
        ServiceError: a service kept dying; the run can be resumed.
    """
    check_config(config)
    resolve_model(config.model)
    run_id = resume or new_run_id(config.name)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    _stop_on_signals(stop)
    log = open_log_at(config.log, data.log, config.synchronous)
    try:
        await prepare_topics(log, config.log, data.options(config.log))
        if resume:
            if (await run_started(log, run_id)).replays:
                raise RunError(
                    f"run {run_id} trains on the replayed steps of another run and plays no games: begin one "
                    f"with games from its checkpoint, unstable-stream fork {run_id}"
                )
            await resume_run(log, run_id, config)
        else:
            await start_run(log, config, run_id, fork)
        supervisor = Supervisor(
            ["--run", run_id, "--data", str(data.root.absolute()), "--log", config.log, "--die-with-parent"],
            data.service_logs(run_id),
            max_restarts=config.max_restarts,
            environment={"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        viewer = asyncio.ensure_future(watch(log, run_id, config, supervisor.services)) if watch else None
        try:
            return await _supervise(log, run_id, config, supervisor, stop)
        except ServiceError as error:
            raise ServiceError(
                f"run {run_id} stopped: {error}\n"
                f"resume it with: unstable-stream train --resume {run_id}{data.options(config.log)}"
            ) from error
        finally:
            if viewer is not None:
                viewer.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await viewer
    finally:
        await asyncio.to_thread(stop_local)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        await log.close()


async def _supervise(
    log: EventLog, run_id: str, config: RunConfig, supervisor: Supervisor, stop: asyncio.Event
) -> Launch:
    reporter = Reporter(log, run_id, LAUNCHER, lambda: service_values(supervisor.services))
    reporting = asyncio.ensure_future(reporter.run())
    work = asyncio.ensure_future(_work(supervisor, config, stop))
    stopping = asyncio.ensure_future(stop.wait())
    outcome, reason = "failed", "the launcher was interrupted"
    try:
        await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
            outcome, reason = "completed", f"{config.learner.iterations} updates"
        else:
            outcome, reason = "stopped", "interrupted"
    except ServiceError as error:
        reason = str(error)
        raise
    finally:
        work.cancel()
        stopping.cancel()
        await asyncio.wait((work, stopping))
        await asyncio.gather(supervisor.stop("collector"), supervisor.stop("learner"))
        await supervisor.stop("processors")
        reporting.cancel()
        await asyncio.wait([reporting])
        await reporter.report()  # that they are down; the archiver stores it yet
        await finish_run(log, run_id, outcome, reason)
        await asyncio.gather(supervisor.stop("archiver"), supervisor.stop("monitor"))
    return Launch(run_id, outcome)


async def _work(supervisor: Supervisor, config: RunConfig, stop: asyncio.Event) -> None:
    """Start everything that is not external and return when learner and collector are done."""
    for name in ("processors", "archiver"):
        if name not in config.external:
            supervisor.start(name)
    if config.metrics_port is not None:
        supervisor.start("monitor", essential=False)
    # In a thread, so that these two start meanwhile and Ctrl-C is heard.
    supervisor.environment["RAY_ADDRESS"] = await asyncio.to_thread(start_local)
    _stop_on_signals(stop)  # again: Ray has put a handler of its own in place, which aborts at SIGTERM
    for name in ("learner", "collector"):
        supervisor.start(name)
    await supervisor.wait(("learner", "collector"))


def _stop_on_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
